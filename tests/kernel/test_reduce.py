"""Sums and horizontal reductions against torch and fp64, per ISA."""

from __future__ import annotations

import ctypes
import math

import pytest
import torch

from .building import CXX, ISAS, library, pointer

pytestmark = pytest.mark.skipif(CXX is None, reason="no C++ compiler")

NAMES = {torch.float32: "f32", torch.float64: "f64", torch.int32: "i32", torch.int64: "i64"}


def scalar(isa: str, name: str, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty((), dtype=x.dtype)
    fn = getattr(library("reductions.cpp", isa), f"{name}_{NAMES[x.dtype]}")
    fn(pointer(x), ctypes.c_int64(x.numel()), pointer(out))
    return out


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", NAMES)
def test_across_lanes(isa: str, dtype: torch.dtype) -> None:
    n = library("reductions.cpp", isa).width()
    x = torch.randint(-50, 50, (n,), generator=torch.Generator().manual_seed(0)).to(dtype)
    assert scalar(isa, "max", x) == x.max()
    assert scalar(isa, "min", x) == x.min()
    assert scalar(isa, "lanes", x) == x.sum(dtype=dtype)
    assert scalar(isa, "prod", x.sign()) == x.sign().prod(dtype=dtype)
    if dtype.is_floating_point:
        x[n // 2] = math.nan
        assert scalar(isa, "max", x).isnan()
        assert scalar(isa, "min", x).isnan()


@pytest.mark.parametrize("isa", ISAS)
def test_sums_are_as_good_as_eager(isa: str) -> None:
    """Compare the root mean square of several draws."""
    generator = torch.Generator().manual_seed(0)
    for n in (1, 31, 1000, 10_000, 100_000):
        ours = eager = size = 0.0
        for _ in range(16):
            x = torch.randn(n, generator=generator)
            exact = x.double().sum()
            ours += float((scalar(isa, "sum", x) - exact).square())
            eager += float((x.sum() - exact).square())
            size += n
        assert math.sqrt(ours) <= 1.5 * math.sqrt(eager) + 2.0**-23 * math.sqrt(size)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_total_loses_nothing(isa: str, dtype: torch.dtype) -> None:
    """The sum of the rounded values is rounded once or twice; plain addition is off by hundreds."""
    x = torch.rand(300_000, dtype=dtype, generator=torch.Generator().manual_seed(0))
    exact = math.fsum(x.tolist())
    ulp = torch.finfo(dtype).eps * exact
    assert abs(float(scalar(isa, "total", x)) - exact) <= ulp


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["sum", "total"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_beyond_the_largest_number(isa: str, name: str, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    x = torch.ones(5000, dtype=dtype)
    for special in (math.inf, -math.inf, math.nan):
        x[700] = special
        torch.testing.assert_close(scalar(isa, name, x), x.sum(), equal_nan=True)
    x[701] = math.inf
    x[700] = -math.inf
    assert scalar(isa, name, x).isnan()
    assert scalar(isa, name, torch.full((5000,), largest, dtype=dtype)) == math.inf
