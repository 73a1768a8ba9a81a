"""Products of few rows on a GPU: as near to the products in float64 as cuBLAS's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import jitmagic

pytestmark = pytest.mark.device


def with_epilogue(x, w, b, r):
    return F.silu(F.linear(x, w, b)) * r


def gated(x, w, b, r):
    return F.silu(F.linear(x, w)) * F.linear(x, w.flip(0)) + b


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
@pytest.mark.parametrize("fn", [with_epilogue, gated])
@pytest.mark.parametrize(
    ("dtype", "rows"),
    [(torch.float32, 1), *((d, m) for d in (torch.float16, torch.bfloat16) for m in (1, 2, 16))],
)
@pytest.mark.parametrize(("n", "k"), [(6400, 1024), (6401, 1003), (6400, 11008)])
def test_values(fn, dtype, rows, n, k, mode):
    torch.manual_seed(0)
    shapes = (rows, k), (n, k), (n,), (rows, n)
    x, w, b, r = (torch.randn(shape, device="cuda") for shape in shapes)
    given = [t.to(dtype) for t in (x, w / k**0.5, b, r)]
    got = jitmagic.jit(fn, fullgraph=True, mode=mode)(*given)
    exact, eager = fn(*(t.double() for t in given)), fn(*given)
    error, of_eager = ((y.double() - exact).abs().max() for y in (got, eager))
    assert error <= 2 * of_eager + 1e-6 * exact.abs().max()
    assert not got.isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 64, 32), (16, 1024, 768), (1, 999, 501), (3000, 4096, 1024)])
def test_relu_of_the_library_is_eagers(dtype, shape):
    m, n, k = shape
    x, w = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda") / k**0.5
    b = torch.randn(n, device="cuda")
    b[1], b[2], b[3], x[m // 2, 0] = torch.nan, torch.inf, -torch.inf, torch.inf
    given = [t.to(dtype) for t in (x, w, b)]

    def layer(x, w, b):
        return F.relu(F.linear(x, w, b))

    got, want = jitmagic.jit(layer, fullgraph=True)(*given), layer(*given)
    assert got.isnan().equal(want.isnan())
    torch.testing.assert_close(got, want, equal_nan=True)
