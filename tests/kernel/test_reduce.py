"""Accumulators against torch and fp64, per ISA."""

from __future__ import annotations

import ctypes

import pytest
import torch

from .building import CXX, ISAS, library

pytestmark = pytest.mark.skipif(CXX is None, reason="no C++ compiler")

SIZES = [1, 2, 3, 15, 16, 17, 31, 64, 100, 1000, 4097]
NAMES = {torch.float32: "f32", torch.float64: "f64", torch.int32: "i32", torch.int64: "i64"}


def reduce(isa: str, name: str, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    fn = getattr(library("reductions.cpp", isa), f"{name}_{NAMES[x.dtype]}")
    fn(ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(x.numel()), ctypes.c_void_p(out.data_ptr()))
    return out


def scalar(isa: str, name: str, x: torch.Tensor) -> torch.Tensor:
    return reduce(isa, name, x, torch.empty((), dtype=x.dtype))


def index(isa: str, name: str, x: torch.Tensor) -> int:
    return int(reduce(isa, name, x, torch.empty((), dtype=torch.int64)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", NAMES)
def test_order_and_arg(isa: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for n in SIZES:
        x = torch.randint(-50, 50, (n,), generator=generator).to(dtype)
        assert scalar(isa, "max", x) == x.max()
        assert scalar(isa, "min", x) == x.min()
        assert index(isa, "argmax", x) == int((x == x.max()).nonzero()[0])
        assert index(isa, "argmin", x) == int((x == x.min()).nonzero()[0])
        assert scalar(isa, "prod", x.sign()) == x.sign().prod(dtype=dtype)
        assert scalar(isa, "sum", x) == x.sum(dtype=dtype)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_and_infinity(isa: str, dtype: torch.dtype) -> None:
    for n in (5, 40, 333):
        for at in {0, n // 2, n - 1}:
            x = torch.randn(n, dtype=dtype, generator=torch.Generator().manual_seed(n))
            x[at] = float("nan")
            x[n - 1] = float("nan")
            assert scalar(isa, "max", x).isnan()
            assert scalar(isa, "min", x).isnan()
            assert index(isa, "argmax", x) == index(isa, "argmin", x) == at
        lowest = torch.full((n,), float("-inf"), dtype=dtype)
        assert scalar(isa, "max", lowest) == float("-inf")
        assert index(isa, "argmax", lowest) == 0
        assert index(isa, "argmin", -lowest) == 0


@pytest.mark.parametrize("isa", ISAS)
def test_integers_at_their_ends(isa: str) -> None:
    for dtype in (torch.int32, torch.int64):
        info = torch.iinfo(dtype)
        x = torch.full((70,), info.min, dtype=dtype)
        assert scalar(isa, "max", x) == info.min
        assert index(isa, "argmax", x) == 0
        assert scalar(isa, "min", torch.full((70,), info.max, dtype=dtype)) == info.max
        assert scalar(isa, "sum", x) == x.sum(dtype=dtype)  # wraps


@pytest.mark.parametrize("isa", ISAS)
def test_sums_are_as_good_as_eager(isa: str) -> None:
    generator = torch.Generator().manual_seed(0)
    ours = eager = 0.0
    for n in (1000, 10_000, 100_000, 2_000_000):
        for x in (torch.rand(n, generator=generator), torch.randn(n, generator=generator)):
            scale = x.double().abs().sum()
            mine = float((scalar(isa, "sum", x).double() - x.double().sum()).abs() / scale)
            theirs = float((x.sum().double() - x.double().sum()).abs() / scale)
            ours, eager = max(ours, mine), max(eager, theirs)
            assert mine < 2e-6
    assert ours <= 2 * eager + 1e-7


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_welford(isa: str, dtype: torch.dtype) -> None:
    tight = (
        {"rtol": 3e-6, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-13, "atol": 1e-13}
    )
    for n in (2, 7, 16, 40, 1000, 30_001):
        x = torch.randn(n, dtype=dtype, generator=torch.Generator().manual_seed(n)) + 100
        mean, variance, count = reduce(isa, "welford", x, torch.empty(3, dtype=dtype))
        assert count == n
        torch.testing.assert_close(mean, x.double().mean().to(dtype), rtol=1e-6, atol=0)
        torch.testing.assert_close(variance, x.double().var().to(dtype), **tight)
    single = reduce(isa, "welford", torch.ones(1, dtype=dtype), torch.empty(3, dtype=dtype))
    assert single[1].isnan()


@pytest.mark.parametrize("isa", ISAS)
def test_any_all(isa: str) -> None:
    lib = library("reductions.cpp", isa)
    for n in SIZES:
        for m in (
            torch.zeros(n),
            torch.ones(n),
            torch.arange(n) == n - 1,
            torch.arange(n) != n // 2,
        ):
            m = m.bool()
            got = lib.any_all(ctypes.c_void_p(m.data_ptr()), ctypes.c_int64(n))
            assert got == bool(m.any()) + 2 * bool(m.all())
