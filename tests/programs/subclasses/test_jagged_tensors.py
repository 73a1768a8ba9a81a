"""Jagged nested tensors: the identity of offsets, variants over batches, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitmagic
from tests.ecosystem.with_subclasses import ragged

from ..counts import breaks_of, counts_of, eager_of
from .compared import BACKENDS

STRICT = {"on_error": "raise"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_have_the_offsets_of_the_argument(backend: str) -> None:
    tagged = jitmagic.jit(lambda x: (x.sin(), x * 2), backend=backend, options=STRICT)
    for grad in (False, True):
        x = ragged((2, 4, 3)).requires_grad_(grad)
        for made in tagged(x):
            assert made.offsets() is x.offsets()
            assert made.shape == x.shape
            torch.testing.assert_close((made + x).offsets(), x.offsets())


def test_the_third_batch_of_lengths_and_later_ones_share_a_variant() -> None:
    tagged = jitmagic.jit(lambda x: (x * 2).relu().values(), options=STRICT)
    for lengths in ((2, 4, 3), (5, 3, 2), (3, 3, 4, 6)):
        tagged(ragged(lengths))
    before = counts_of(tagged).graphs
    for lengths in ((9, 8, 2, 3, 4), (2, 2, 5), (7, 5, 3, 2)):
        x = ragged(lengths)
        torch.testing.assert_close(tagged(x), (x * 2).relu().values())
    assert counts_of(tagged).graphs == before <= 3
    assert (breaks_of(tagged), eager_of(tagged)) == ([], [])


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_values_that_become_nested(backend: str) -> None:
    def run(values: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
        made = torch.nested.nested_tensor_from_jagged(values, offsets)
        return F.linear(made, weight).sin()

    seen = []
    for each in (jitmagic.jit(run, backend=backend, options=STRICT), run):
        torch.manual_seed(0)
        values, weight = torch.randn(9, 8, requires_grad=True), torch.randn(3, 8).requires_grad_()
        made = each(values, torch.tensor([0, 2, 6, 9]), weight)
        made.values().square().sum().backward()
        seen.append((made.values().detach(), values.grad, weight.grad))
    torch.testing.assert_close(*seen)


def test_tensors_of_other_offsets_do_not_add_up() -> None:
    tagged = jitmagic.jit(lambda x, y: x + y)
    x, y = ragged((2, 4, 3)), ragged((2, 4, 3))
    with pytest.raises(RuntimeError, match="inputs of shapes"):
        tagged(x, y)
    same: Any = torch.nested.nested_tensor_from_jagged(y.values(), x.offsets())
    torch.testing.assert_close(tagged(x, same).values(), x.values() + y.values())
    with pytest.raises(RuntimeError, match="inputs of shapes"):
        tagged(x, y)


def test_a_view_of_parts_is_eagers() -> None:
    x = torch.nested.nested_tensor([torch.randn(5, 4), torch.randn(7, 4)], layout=torch.jagged)
    starts, lengths, rows = torch.tensor([0, 1, 2]), torch.tensor([3, 2, 4]), torch.randn(3, 6, 4)
    narrowed = torch.nested.narrow(rows, 1, starts, lengths, layout=torch.jagged)
    tagged = jitmagic.jit(lambda x: x * 2)
    for each in (x, narrowed):
        torch.testing.assert_close(
            [one.clone() for one in tagged(each).unbind()], [one * 2 for one in each.unbind()]
        )


def _split_heads(x: Tensor) -> Tensor:
    return x.view(x.shape[0], x.size(1), 2, 4).transpose(1, 2) * 2


def _unpacked(x: Tensor) -> Tensor:
    batch, length, width = x.shape
    return x.sin().reshape(batch, length, 2, width // 2)


def _compared(x: Tensor) -> Tensor:
    return x * (2 if x.shape == x.cos().shape and x.size(1) != x.size(0) else 3)


def _converted(x: Tensor) -> Tensor:
    return x.to(torch.float64).float() + torch.zeros_like(x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [_split_heads, _unpacked, _compared, _converted])
def test_ragged_sizes_are_arguments(program: Any, backend: str) -> None:
    tagged = jitmagic.jit(program, backend=backend, options=STRICT)
    for grad in (False, True):
        for lengths in ((2, 4, 3), (5, 3, 2)):
            x, same = (ragged(lengths) for _ in range(2))
            same = torch.nested.nested_tensor_from_jagged(x.values().clone(), same.offsets())
            seen = []
            for run, one in ((tagged, x), (program, same)):
                made = run(one.requires_grad_(grad))
                if grad:
                    made.values().square().sum().backward()
                seen.append((made.values().detach(), one.grad.values() if grad else 0))
            torch.testing.assert_close(*seen)
    assert (breaks_of(tagged), eager_of(tagged)) == ([], [])


def test_a_ragged_size_leaves_the_graph() -> None:
    tagged = jitmagic.jit(lambda x: (x * 2, x.shape, x.size(1)), options=STRICT)
    x = ragged((2, 4, 3))
    made, shape, size = tagged(x)
    assert shape == x.shape == made.shape
    assert size == x.size(1)


def test_strided_nested_tensors_are_a_graph_break() -> None:
    def run(x: Tensor) -> Tensor:
        return torch.nested.as_nested_tensor([x, x[:2]]).sin()

    tagged, x = jitmagic.jit(run), torch.randn(4, 3)
    torch.testing.assert_close([*tagged(x).unbind()], [*run(x).unbind()])
    assert breaks_of(tagged)
