"""Ranges of a float argument in which torch behaves alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from jitmagic.graph.symbolic.number_ranges import range_of_number, takes_float
from jitmagic.symbols.interval import Interval

MOST = torch.finfo(torch.float32).max
TINY, BELOW = 5e-324, math.nextafter(1.0, 0.0)


def meta(dtype: torch.dtype = torch.float32, needs_grad: bool = True) -> torch.Tensor:
    return torch.empty(4, 8, dtype=dtype, device="meta", requires_grad=needs_grad)


def range_of(target: Any, hint: float, grad: bool = True, **named: Any) -> Interval | None:
    x = meta(needs_grad=grad)
    return range_of_number(target, lambda number: ((x, number), named), hint, grad)


RANGES: dict[str, tuple[Any, float, Interval]] = {
    "slope": (F.leaky_relu, 0.3, Interval(-MOST, MOST)),
    "softplus": (torch._C._nn.softplus, 0.3, Interval(-MOST, MOST)),
    "factor left out": (torch.rsub, 0.3, Interval(-MOST, MOST)),
    # The kernel refuses 0, the meta function does not.
    "celu": (torch.celu, 0.3, Interval(TINY, MOST)),
    "negative": (torch.celu, -0.3, Interval(-MOST, -TINY)),
    "probability": ("bernoulli_", 0.3, Interval(0.0, 1.0)),
    "rate": ("exponential_", 0.3, Interval(TINY, MOST)),
    "quantile": (torch.quantile, 0.3, Interval(0.0, 1.0)),
}


@pytest.mark.parametrize("name", RANGES)
def test_the_range(name: str) -> None:
    target, hint, wanted = RANGES[name]
    grad = not isinstance(target, str)
    found = range_of(target, hint, grad)
    assert found == wanted


def test_probing_preserves_the_random_state() -> None:
    """Kernels are asked on the CPU, whatever the call's device, and nobody's generator is."""
    torch.manual_seed(0)
    before = torch.get_rng_state()
    generator = torch.Generator()

    def drawn(std: float, **named: Any) -> Interval | None:
        given = (lambda number: ((0.0, number, (3,)), named), std, False)
        return range_of_number(torch.normal, *given)

    assert drawn(0.3, device=torch.device("cuda", 0)) is not None
    assert drawn(0.3, generator=generator) is None
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(generator.get_state(), torch.Generator().get_state())


def test_device_arguments_inside_a_function_are_accepted() -> None:
    """The graph of a function under a transform names the program's device."""

    def scaled(x: torch.Tensor, s: float) -> torch.Tensor:
        return F.elu(x, s) * torch.full((4, 1), 2.0, device=torch.device("meta"))

    assert range_of(scaled, 0.3) == range_of(F.elu, 0.3)


def test_dropout_range_excludes_special_cases() -> None:
    def dropout(x: torch.Tensor, p: float) -> torch.Tensor:
        return torch.dropout(x, p, True)

    assert range_of(dropout, 0.3) == Interval(TINY, BELOW)
    for hint in (0.0, 1.0, -0.5, 1.5, math.nan):
        assert range_of(dropout, hint) is None


def test_infinity_and_nan_where_the_dtype_has_room() -> None:
    x = meta(torch.float64)
    found = range_of_number(F.leaky_relu, lambda number: ((x, number), {}), 0.3, True)
    assert found == Interval(-math.inf, math.inf, nan=True)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, s: torch.arange(0.0, s, 0.1),
        lambda x, s: F.interpolate(x[None], scale_factor=s),
        lambda x, s: x * s if s < 0.5 else x,
        lambda x, s: x * math.sin(s),
    ],
    ids=["how many", "a size", "a branch", "no visible function"],
)
def test_numbers_that_change_the_result_are_refused(call: Callable[..., Any]) -> None:
    assert range_of(call, 0.3) is None


def test_random_numbers_are_not_used_up() -> None:
    torch.manual_seed(0)
    wanted = torch.rand(3)
    torch.manual_seed(0)
    range_of_number(torch.normal, lambda number: ((0.5, number, (7,)), {}), 0.3, False)
    range_of("bernoulli_", 0.3, grad=False)
    assert torch.equal(torch.rand(3), wanted)


def test_ints_that_behave_like_floats() -> None:
    x, whole = meta(), meta(torch.int64, needs_grad=False)
    assert takes_float(F.elu, lambda number: ((x, number), {}), 3, True)
    assert not takes_float(F.hardtanh, lambda number: ((whole, 0, number), {}), 3, True)
    assert not takes_float(torch.sum, lambda number: ((x, number), {}), 1, True)
    assert not takes_float(torch.full_like, lambda number: ((whole, number), {}), 1, True)
