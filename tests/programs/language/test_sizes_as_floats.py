"""Floats computed from sizes equal Python's, with one variant for all sizes but 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of

SIZES = (8, 5, 16, 33, 2, 14, 1)
Program = Callable[[torch.Tensor], torch.Tensor]

SHARED: dict[str, Program] = {
    "reciprocal": lambda x: x * (1.0 / x.shape[0]),
    "root": lambda x: (x @ x.t()) / math.sqrt(x.shape[0]),
    "one by a root": lambda x: x * (1 / math.sqrt(len(x))),
    "mean": lambda x: x.sum() / x.shape[0],
    "float and int": lambda x: x * (x.shape[0] * 0.3 + 1) - 7 / x.shape[0],
    "full": lambda x: x + torch.full((x.shape[0], 1), 1 / x.shape[0]),
    "square": lambda x: x * x.shape[0] ** 2,
    "negative power": lambda x: x * (x.shape[0] + 1.0) * 2**-1,
    "up to an int": lambda x: x * math.ceil(x.shape[0] / 4) + round(x.shape[0] / 3),
    "float": lambda x: x + float(x.shape[0]),
    "of all elements": lambda x: x.pow(2).sum() / (x.numel() - 1.0),
    "smoothed": lambda x: x.log_softmax(0) * (1 - 0.1) + 0.1 / x.shape[0],
    "rounded otherwise": lambda x: x * math.log(x.shape[0]) + x.shape[0] ** -0.5,
    "extremes": lambda x: x / max(x.shape[0] / 3, 1.0) + min(0.25 * x.shape[0], 3.0),
}
CONSTANT: dict[str, Program] = {
    "branch": lambda x: x + 1 if x.shape[0] * 0.5 > 10 else x - 1,
    "equality": lambda x: x + 1 if x.shape[0] / 7 == 2.0 else x - 1,
    "inequality": lambda x: x + 1 if x.shape[0] / 7 != 2.0 else x - 1,
    "as a bound": lambda x: x[: int(x.shape[0] * 0.3)] * 2,
    "of two sizes": lambda x: x + 1 if x.shape[0] / x.shape[1] > 1.5 else x - 1,
}


def variants(fn: Any) -> int:
    """Return the number of traces; kernels for further sizes have records of their own."""
    records = handle_of(fn).journal.records
    return sum(any(stage.stage == "trace" for stage in record.stages) for record in records)


def checked(fn: Program, dynamic: bool | None) -> Any:
    torch.manual_seed(0)
    made = jitmagic.jit(fn, dynamic=dynamic, options={"recompile_limit": 32})
    for n in SIZES:
        x = torch.randn(n, 6, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        found, wanted = made(x), fn(y)
        assert found.dtype is wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
        found.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-6, atol=1e-6)
    return made


@pytest.mark.parametrize(("dynamic", "most"), [(True, 2), (None, 3)])
@pytest.mark.parametrize("name", SHARED)
def test_one_variant_serves_all_sizes(name: str, dynamic: bool | None, most: int) -> None:
    assert variants(checked(SHARED[name], dynamic)) == most


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("name", CONSTANT)
def test_decisions_without_a_guard_are_right_for_each_size(name: str, dynamic: bool | None) -> None:
    assert variants(checked(CONSTANT[name], dynamic)) >= 2


@pytest.mark.parametrize("n", [2, 3, 7, 49, 10_007])
def test_floats_equal_python(n: int) -> None:
    def numbers(x: torch.Tensor) -> Any:
        n = x.shape[0]
        return x + 1, n / 3, 1 / n, math.sqrt(n), float(n), n * 0.1, n // 2.5, -n % 2.5, n**2 / 7

    made = jitmagic.jit(numbers, dynamic=True)
    for size in (11, n):
        x = torch.zeros(size)
        found, wanted = made(x)[1:], numbers(x)[1:]
        assert [(type(one), one) for one in found] == [(type(one), one) for one in wanted]
    assert variants(made) == 1 + (n > 1023)  # the first keeps to squares that are floats
