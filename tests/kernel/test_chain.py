"""Consecutive matrix products against fp64, in every layout, on any number of threads."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch

from .building import CXX, ISAS, library
from .test_gemm import operands, pointer

pytestmark = pytest.mark.skipif(CXX is None, reason="no C++ compiler")

# rows, width, between, columns
SHAPES = [
    (1, 1, 1, 1), (8, 3, 17, 2), (16, 16, 16, 16), (17, 31, 33, 5), (32, 20, 30, 10), (5, 64, 1, 9),
    (40, 7, 100, 33), (33, 130, 15, 16), (100, 12, 48, 31), (9, 0, 4, 4), (64, 200, 70, 1),
]  # fmt: skip


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def two(isa: str, layout: str, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Return (result, fp64 result, scale of its error, whether the memory after the columns is
    untouched).
    """
    m, k, between, n = shape
    a, first = operands(layout, m, between, k)
    second = operands("N" + layout[1], m, n, between)[1]
    bias = torch.randn(between, generator=torch.Generator().manual_seed(n))
    before = torch.randn(m, n + 4, generator=torch.Generator().manual_seed(m))
    whole = before.clone()
    steps = (a.stride(), first.stride(), second.stride())
    sizes = [m, k, between, n, *(s for pair in steps for s in pair), whole.stride(0)]
    tensors = map(pointer, (a, first, bias, second, whole))
    library("chain.cpp", isa).chain2(*tensors, (ctypes.c_int64 * len(sizes))(*sizes))
    hidden = (a.double() @ first.double() + bias).relu()
    want = hidden @ second.double() + before[:, :n]
    scale = (a.double().abs() @ first.double().abs() + bias.abs()) @ second.double().abs()
    assert whole[:, n:].equal(before[:, n:]), "wrote beyond a row"
    return whole[:, :n], want, scale


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_two_products(isa: str, layout: str, threads: int) -> None:
    for shape in SHAPES:
        got, want, scale = two(isa, layout, shape)
        error = (got.double() - want).abs()
        bound = 1.2e-7 * (scale + 4) * (4 + (shape[1] + shape[2]) ** 0.5)
        assert (error <= bound).all(), shape


def test_result_does_not_depend_on_threads() -> None:
    a, b = torch.randn(70, 90), torch.randn(90, 90) / 9
    results = []
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 3, 5):
            torch.set_num_threads(count)
            out = torch.full((70, 90), float("nan"))
            sizes = (ctypes.c_int64(70), ctypes.c_int64(90))
            library("chain.cpp", "native").chain3(*map(pointer, (a, b, out)), *sizes)
            results.append(out)
    finally:
        torch.set_num_threads(before)
    assert all(out.equal(results[0]) for out in results)
    exact = a.double() @ b.double() @ b.double() @ b.double()
    torch.testing.assert_close(results[0].double(), exact, rtol=1e-4, atol=1e-4)
