"""Tensors that a program makes of constants alone: what it asks of them is known to the trace.

Draws, uninitialised memory, writes and inputs are not, however they come in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import jitmagic

from ..counts import counts_of
from .test_read_numbers import agree


def mask_of_a_library(x: Tensor) -> Tensor:
    mask = torch.triu(torch.full((4, 4), float("-inf")), diagonal=1)
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    return x + 1 if bool((mask == causal).all()) else x - 1


def sizes_kept_in_tensors(x: Tensor) -> Any:
    span = torch.tensor(min(x.size(0), 2))
    rows = torch.div(x.size(0), 2, rounding_mode="trunc")
    return torch.clamp(x, 0, span * 2 - 1), x[: int(rows)], torch.zeros(rows, span), float(span)


def numbers_of_every_dtype(x: Tensor) -> list[Any]:
    dtypes = (torch.bool, torch.int8, torch.int64, torch.float32, torch.bfloat16, torch.float64)
    given = [torch.tensor([1.7, -0.0]).to(dtype) for dtype in dtypes]
    return [(one[0].item(), one[1].item(), float(one[0]), int(one[0])) for one in given] + [x]


def branches_on_numbers(x: Tensor) -> Tensor:
    for step in range(4):
        if torch.tensor(step).item() % 2:
            x = x * step
    return x if torch.tensor(float("nan")).item() != 1 else -x


def arrays_made_inside(x: Tensor) -> Any:
    weights = np.linspace(0, 1, 4).astype(np.float32)
    filled = np.full((4,), 2.0, dtype=np.float32)
    chosen = np.where(weights > 0.5, weights, filled)
    return x * torch.from_numpy(chosen)[:, None], np.pad(weights, (1, 1)), np.argsort(-weights)


KNOWN = [
    mask_of_a_library, sizes_kept_in_tensors, numbers_of_every_dtype, branches_on_numbers,
    arrays_made_inside,
]  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("function", KNOWN)
def test_what_is_made_of_constants_is_known(function: Callable[..., Any], backend: str) -> None:
    compiled = jitmagic.jit(function, backend=backend, fullgraph=True)
    for x in (torch.randn(4, 3), torch.randn(4, 3).t().contiguous().t()):
        agree(compiled(x), function(x))


def of_an_input(x: Tensor) -> Tensor:
    return x if x[0, 0] > 0 else -x


def of_a_draw(x: Tensor) -> Tensor:
    return x if torch.randn(()) > 0 else -x


def of_a_permutation(x: Tensor) -> Tensor:
    return x if torch.randperm(2)[0] > 0 else -x


def written_to(x: Tensor) -> Tensor:
    made = torch.zeros(2)
    made[0] = x.sum()
    return x if made[0] > 0 else -x


def written_through_a_view(x: Tensor) -> Tensor:
    made = torch.zeros(2, 2)
    row = made[1]
    row.add_(x[0, :2])
    return x if made.sum() > 0 else -x


@pytest.mark.parametrize(
    "function", [of_an_input, of_a_draw, of_a_permutation, written_to, written_through_a_view]
)
def test_what_is_not_made_of_constants_is_not(function: Callable[..., Any]) -> None:
    x = torch.randn(4, 3)
    compiled = jitmagic.jit(function, backend="eager")
    for given in (x, -x):
        for seed in range(4):
            torch.manual_seed(seed)
            wanted = function(given)
            torch.manual_seed(seed)
            assert torch.equal(compiled(given), wanted)
    assert counts_of(compiled).breaks


# -- assertions about numbers ----------------------------------------------------------------------


def checked(x: Tensor, lengths: Tensor) -> Tensor:
    if lengths.max().item() > 5:
        raise AssertionError  # an `assert` here would be pytest's
    if lengths.min().item() < 0:
        raise ValueError("negative")
    if x.sum().item() != x.sum().item():
        raise FloatingPointError("nan")
    return x * lengths.max().item()


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_number_that_is_only_checked_is_asserted(backend: str) -> None:
    compiled = jitmagic.jit(checked, backend=backend, fullgraph=True)
    x, lengths = torch.randn(3), torch.tensor([1, 2, 3])
    agree(compiled(x, lengths), checked(x, lengths))
    for given in ((x, lengths + 3), (x, lengths - 9), (x * float("nan"), lengths)):
        with pytest.raises(Exception) as wanted:  # noqa: PT011 - whatever eager raises
            checked(*given)
        with pytest.raises(type(wanted.value)) as found:
            compiled(*given)
        assert str(found.value) == str(wanted.value)
    agree(compiled(x, lengths), checked(x, lengths))
