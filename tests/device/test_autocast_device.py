"""Calls under torch.autocast on a GPU: dtypes as eager, values no further from float64 than eager.

CUDA casts more operations than the CPU: exp, sums, norms and most losses are computed in float32.
"""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

import jitmagic

pytestmark = pytest.mark.device


def products(x, w):
    y = F.linear(x, w)
    return y, y.exp(), y.sum(0), F.softmax(y, -1), F.layer_norm(y, (16,)), y + x[:, :16]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_dtypes_and_values_are_eagers(backend, dtype):
    torch.manual_seed(0)
    x, w = torch.randn(8, 32, device="cuda"), torch.randn(16, 32, device="cuda") / 6
    run = jitmagic.jit(products, backend=backend, fullgraph=True)
    with warnings.catch_warnings(), torch.autocast("cuda", dtype):
        warnings.simplefilter("error", jitmagic.FallbackWarning)
        eager, ours = products(x, w), run(x, w)
    for got, want, exact in zip(ours, eager, products(x.double(), w.double()), strict=True):
        assert got.dtype is want.dtype
        limit = 2 * (want.double() - exact).abs().max() + 0.004 * exact.abs().max()
        assert (got.double() - exact).abs().max() <= limit


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_a_region_inside_is_part_of_the_graph(backend):
    def mixed(x, w):
        with torch.autocast("cuda"):
            y = F.linear(x, w)
            with torch.autocast("cuda", enabled=False):
                z = y.float() @ w
        return y, z, x @ w.t()

    torch.manual_seed(0)
    x, w = torch.randn(8, 32, device="cuda"), torch.randn(16, 32, device="cuda") / 6
    run = jitmagic.jit(mixed, backend=backend, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", jitmagic.FallbackWarning)
        eager, ours = mixed(x, w), run(x, w)
    exact = F.linear(x.double(), w.double())
    for got, want, true in zip(ours, eager, (exact, exact @ w.double(), exact), strict=True):
        assert got.dtype is want.dtype
        limit = 2 * (want.double() - true).abs().max() + 0.004 * true.abs().max()
        assert (got.double() - true).abs().max() <= limit
    assert not torch.is_autocast_enabled("cuda")


def test_gradients_of_parameters_keep_their_dtype():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)
    ).cuda()
    x, target = torch.randn(16, 32, device="cuda"), torch.randint(0, 8, (16,), device="cuda")
    made = []
    for call in (model, jitmagic.jit(model)):
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(call(x), target)
        loss.backward()
        made.append([parameter.grad.clone() for parameter in model.parameters()])
    for got, want in zip(*made, strict=True):
        assert got.dtype is want.dtype is torch.float32
        torch.testing.assert_close(got, want, rtol=0.05, atol=2e-3)
