"""Python numbers as operands of every family of operations: eager's dtypes and values, no fallback.

A number given where an operation's schema has a tensor must promote as a number does, also in calls
left to ATen.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic

DTYPES = (
    torch.int64, torch.int8, torch.uint8, torch.bool, torch.float32, torch.bfloat16, torch.float64,
    torch.complex64,
)  # fmt: skip
NUMBERS = (7, 2.5, True)
# Meta kernels refuse booleans here that eager takes: a graph break, no wrong answer.
STRICTER_ON_META = ("pow_", "lshift", "rshift")
Family = Callable[[Tensor, Any], Tensor]


def _both_ways(function: Callable[..., Any]) -> tuple[Family, Family]:
    return (lambda t, s: function(t, s)), (lambda t, s: function(s, t))


_OPERATORS = "add sub mul truediv floordiv mod pow and_ or_ xor lshift rshift eq lt".split()
_FUNCTIONS = (
    "rsub fmod float_power true_divide floor_divide remainder xlogy bitwise_left_shift copysign"
).split()
FAMILIES: dict[str, Family] = {
    "alpha": lambda t, s: torch.add(t, t, alpha=s),
    "alpha of a number": lambda t, s: torch.sub(t, s, alpha=2),
    "addcmul": lambda t, s: torch.addcmul(t, t, t, value=s),
    "addcdiv": lambda t, s: torch.addcdiv(t, t, t, value=s),
    "clamp": lambda t, s: t.clamp(0, s),
    "where": lambda t, s: torch.where(t == t, t, s),
    "where of numbers": lambda t, s: torch.where(t == t, s, 2.5),
    "masked_fill": lambda t, s: t.masked_fill(t == t, s),
    "isin": lambda t, s: torch.isin(t, s),
    "isin of a number": lambda t, s: torch.isin(s, t),
    "searchsorted": lambda t, s: torch.searchsorted(t, s),
    "lerp": lambda t, s: torch.lerp(t, t + 1, s),
    "floor division": lambda t, s: torch.div(t, s, rounding_mode="floor"),
    "truncated division": lambda t, s: torch.div(t, s, rounding_mode="trunc"),
    "pow_": lambda t, s: t.clone().pow_(s),
    "floor_divide_": lambda t, s: t.clone().floor_divide_(s),
    "remainder_": lambda t, s: t.clone().remainder_(s),
    "polygamma_": lambda t, s: t.clone().polygamma_(s),
}
for _name in _OPERATORS:
    FAMILIES[_name], FAMILIES[f"{_name} reflected"] = _both_ways(getattr(operator, _name))
for _name in _FUNCTIONS:
    FAMILIES[f"torch.{_name}"], FAMILIES[f"torch.{_name} reflected"] = _both_ways(
        getattr(torch, _name)
    )


@cache
def _accepted(name: str) -> list[tuple[Tensor, Any, Tensor]]:
    """Return the calls that eager accepts: (tensor, number, eager's result)."""
    found = []
    family = FAMILIES[name]
    for dtype in DTYPES:
        if dtype is torch.bool and name in STRICTER_ON_META:
            continue
        given = torch.tensor([-7.0, 5.5, 3.0, 2.0]).abs().to(dtype)
        for number in NUMBERS:
            try:
                found.append((given, number, family(given.clone(), number)))
            except (RuntimeError, TypeError, NotImplementedError):
                continue
    return found


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
@pytest.mark.parametrize("name", [name for name in FAMILIES if _accepted(name)])
def test_numbers_as_operands(name: str, backend: str) -> None:
    family, cases = FAMILIES[name], _accepted(name)
    numbers = [number for _, number, _ in cases]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(family(t, s) for t, s in zip(tensors, numbers, strict=True))

    with warnings.catch_warnings():
        warnings.simplefilter("error", jitmagic.FallbackWarning)
        made = jitmagic.jit(run, backend=backend, fullgraph=True)(*[t.clone() for t, _, _ in cases])
    for got, (given, number, wanted) in zip(made, cases, strict=True):
        assert got.dtype is wanted.dtype, (given.dtype, number)
        torch.testing.assert_close(got, wanted, equal_nan=True)


@pytest.mark.parametrize("other", [2.5, 300, -1])
def test_a_number_minus_an_unsigned_tensor(other: float) -> None:
    given = torch.arange(0, 255, 7, dtype=torch.uint8)
    got = jitmagic.jit(lambda t: other - t)(given)
    assert got.dtype is (other - given).dtype
    assert torch.equal(got, other - given)
