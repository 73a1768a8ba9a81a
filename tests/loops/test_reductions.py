"""Reductions over dtypes, dimensions and odd sizes, against eager and float64."""

from __future__ import annotations

import math

import pytest
import torch
from recording import check

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom")
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
ALL = [*FLOATS, *INTS, torch.bool]
SPREADS = tuple(f"aten.{name}.correction" for name in ("var", "std", "var_mean"))


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    if dtype is torch.bool:
        return torch.rand(shape) > 0.3
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0, 9, shape).to(dtype)


DIMS = [None, 0, -1, (0, 2), (1,), (0, 1, 2)]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("keepdim", [True, False])
def test_sum_and_mean(dtype, dims, keepdim):
    x = values(dtype, 5, 6, 7)
    if dims is None:
        check(lambda x: x.sum(), x, exact=not dtype.is_floating_point)
        return
    check(lambda x: x.sum(dims, keepdim), x, exact=not dtype.is_floating_point)
    if dtype.is_floating_point:
        check(lambda x: x.mean(dims, keepdim), x, exact=False)


def test_sum_with_a_dtype():
    x = values(torch.float32, 5, 6)
    check(lambda x: (x.sum(0, dtype=torch.float64), x.mean(dtype=torch.float64)), x, exact=False)
    check(lambda x: x.sum(1, dtype=torch.int32), values(torch.int8, 4, 40))
    check(lambda x: x.sum(1, dtype=torch.float32), values(torch.int64, 4, 40), exact=False)
    check(lambda x: x.sum(dtype=torch.bfloat16), values(torch.float32, 50), exact=False)


@pytest.mark.parametrize("dtype", ALL)
def test_extrema(dtype):
    x = values(dtype, 5, 6, 7)
    check(lambda x: (x.amax(1), x.amin((0, 2), keepdim=True), x.amax()), x)
    check(lambda x: (x.max(), x.min()), x)
    check(lambda x: (*x.max(1), *x.min(2, keepdim=True)), x)
    check(lambda x: x.max(0).indices, x)
    if dtype is not torch.bool:
        check(lambda x: (x.argmax(1), x.argmin(-1, keepdim=True), x.argmax()), x)


def test_extrema_of_nan_infinity_and_ties():
    x = torch.tensor([[1.0, math.nan, 2.0], [math.inf, 1.0, -math.inf], [3.0, 3.0, 1.0]])
    check(lambda x: (*x.max(1), *x.min(0), x.amax(1), x.argmax(1), x.argmin(0)), x)


@pytest.mark.parametrize("dtype", ALL)
def test_any_and_all(dtype):
    x = values(dtype, 4, 5)
    check(lambda x: (x.any(), x.all(), x.any(0), x.all(1, keepdim=True), x.count_nonzero(1)), x)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.bool])
def test_product(dtype):
    x = values(dtype, 4, 5)
    check(lambda x: (x.prod(), x.prod(1)), x, exact=not dtype.is_floating_point)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("correction", [0, 1, 2.5, 9])
def test_variance(dtype, correction):
    """A variance of too few numbers is left to ATen, whose kernel warns."""
    x = values(dtype, 9, 7) + 3
    scalar = x[0, 0].clone()

    def spread(fn, x, count):
        check(fn, x, exact=False, fallbacks=SPREADS if count <= correction else ())

    spread(lambda x: (x.var(0, correction=correction), x.std(0, correction=correction)), x, 9)
    spread(lambda x: torch.var_mean(x, (0, 1), correction=correction, keepdim=True), x, 63)
    spread(lambda x: torch.var_mean(x, 1, correction=correction), x, 7)
    spread(lambda x: torch.var_mean(x, -1, correction=correction, keepdim=True), scalar, 1)
    spread(lambda x: x.std(correction=correction), scalar, 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_norms(dtype):
    x = values(dtype, 6, 7)
    for order in (2, 1, 0, math.inf, -math.inf, 3, 0.5, -1, 2.5):
        check(lambda x: torch.linalg.vector_norm(x, order, 1), x, exact=False)
        check(lambda x: torch.linalg.vector_norm(x, order, 0), x[0, 0].clone(), exact=False)
    check(lambda x: torch.linalg.vector_norm(x), x, exact=False)
    check(lambda x: torch.logsumexp(x, 1), x, exact=False)
    check(lambda x: torch.logsumexp(x, (0, 1), keepdim=True), x, exact=False)
    check(lambda x: torch.logsumexp(x, -1), x[0, 0].clone(), exact=False)


@pytest.mark.parametrize("order", [2, 0, math.inf, 3])
def test_norms_in_another_dtype(order):
    for dtype, asked in ((torch.bfloat16, torch.float32), (torch.float32, torch.float64)):
        x = values(dtype, 6, 7)
        check(lambda x: torch.linalg.vector_norm(x, order, 1, dtype=asked), x, exact=False)


@pytest.mark.parametrize("dtype", [*INTS, torch.bool])
def test_logsumexp_of_integers(dtype):
    check(lambda x: torch.logsumexp(x, 1), values(dtype, 6, 7), exact=False)


def test_logsumexp_of_infinities():
    x = torch.tensor([[-math.inf, -math.inf], [math.inf, 1.0], [1.0, -math.inf]])
    check(lambda x: torch.logsumexp(x, 1), x, exact=False)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (0, 3), (1, 1, 4), (2, 1)])
def test_odd_sizes(shape):
    x = torch.randn(shape)
    check(lambda x: (x.sum(), x.sum(-1), x.mean(-1), x.any(), x.all(-1), x.prod()), x, exact=False)
    if 0 not in shape:
        check(lambda x: (x.amax(), x.argmax(-1), *x.max(-1)), x)
    check(lambda x: x.var(-1), x, exact=False, fallbacks=SPREADS)


def test_reductions_of_views_and_strided_inputs():
    x = torch.randn(4, 6, 10)
    check(
        lambda x: (x.permute(2, 0, 1).sum(1), x[:, ::2].sum(1), x.view(24, 10).sum(0)),
        x,
        exact=False,
    )
    check(lambda x: x.sum((0, 1)), x.transpose(0, 2), exact=False)
    check(lambda x: (x.t().amax(0), x.expand(3, 4, 5).sum(0)), torch.randn(4, 5), exact=False)
