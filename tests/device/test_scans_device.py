"""Scans and rows in order on a GPU, against eager and float64."""

from __future__ import annotations

import math

import pytest
import torch

import jitmagic

from .compiled import check

pytestmark = pytest.mark.device
SHAPES = [(8, 8192), (300, 50), (3, 100_000), (5000, 33), (4, 17, 6)]


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda:0").to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_scans(shape, dim, dtype):
    def fn(x):
        logs = x.logcumsumexp(dim)
        return x.cumsum(dim) * 2, (1 + x / 1000).cumprod(dim), logs, *x.cummax(dim), *x.cummin(dim)

    check(fn, randn(*shape, dtype=dtype))


def test_integers_and_masks():
    x = torch.randint(-5, 9, (70, 900), device="cuda:0")
    check(lambda x: ((x > 0).cumsum(1), x.int().cumsum(0), *x.to(torch.int8).cummax(1)), x)


def test_a_gradient_is_one_kernel_of_scans():
    x, w = randn(64, 1000), randn(64, 1000)
    mine, eager = (x.clone().requires_grad_() for _ in range(2))
    fn = lambda x, w: torch.softmax(x, -1).cumsum(-1) * w
    jitmagic.jit(fn)(mine, w).sum().backward()
    fn(eager, w).sum().backward()
    torch.testing.assert_close(mine.grad, eager.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
@pytest.mark.parametrize("shape", [(4000, 128), (33, 256), (128, 7)])
def test_rows_in_order(shape, dtype):
    x = randn(*shape)
    x = (x > 0) if dtype == torch.bool else (x * 20).to(dtype)  # with equal elements

    def fn(x):
        down = torch.sort(x, stable=True, dim=0, descending=True) if x.shape[0] <= 256 else ()
        return *torch.sort(x, stable=True, dim=1), *down

    check(fn, x)


def test_first_elements_of_a_softmax():
    x = randn(6000, 128)
    x[3, 5], x[4, 6] = math.inf, math.nan
    check(lambda x: tuple(torch.topk(x, 8, -1)), x)
    values, places = jitmagic.jit(lambda x: torch.topk(torch.softmax(x, -1), 8))(x)
    shares = torch.softmax(x, -1)
    torch.testing.assert_close(values, shares.gather(1, places), equal_nan=True)
    want = torch.topk(shares, 8).values
    torch.testing.assert_close(values, want, equal_nan=True)
