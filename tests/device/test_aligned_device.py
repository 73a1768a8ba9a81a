"""Products whose rows begin at no multiples of 16 bytes: values, gradients, layouts as eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import jitmagic
from jitmagic.schedule.libraries import aligned_products

pytestmark = pytest.mark.device


@pytest.fixture(autouse=True)
def always(monkeypatch):
    monkeypatch.setattr(aligned_products, "_WORTH", 0)
    monkeypatch.setattr(aligned_products, "_WORTH_ODD", 0)


def head(x, w, b):
    return F.linear(F.gelu(x), w, b)


def loss(x, w, b):
    logits = F.linear(x, w, b)
    targets = torch.arange(x.shape[0] * x.shape[1], device=x.device) % 7
    return logits, F.cross_entropy(logits.float().flatten(0, 1), targets)


def mixed(x, w, b):
    y = F.gelu(F.linear(x.transpose(1, 2), w[: x.shape[1], :13].t().contiguous(), None))
    return F.linear(y, w[:197, :13].contiguous(), b[:197]).transpose(1, 2).sum(-1)


def attention(x, w, b):
    scores = torch.mm(x[0], w.t()) / 8
    return torch.mm(F.softmax(scores.float(), -1).to(x.dtype), w), b * 2


@pytest.mark.parametrize("graphs", ["default", "reduce-overhead"])
@pytest.mark.parametrize("part", [64 << 20, 1 << 17])
@pytest.mark.parametrize("words", [1001, 1002, 1004, 1008])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("fn", [head, loss, mixed, attention])
def test_values_gradients_and_layouts(fn, dtype, words, part, graphs, tf32, monkeypatch):
    monkeypatch.setattr(aligned_products, "_PART_BYTES", part)
    torch.manual_seed(0)
    x, w, b = torch.randn(4, 197, 64), torch.randn(words, 64) / 8, torch.randn(words)
    given = [t.to("cuda", dtype) for t in (x, w, b)]
    compiled = jitmagic.jit(fn, fullgraph=True, mode=graphs)
    for _ in range(3):
        results = []
        for run in (fn, compiled):
            leaves = [t.clone().requires_grad_() for t in given]
            made = run(*leaves)
            made = made if isinstance(made, tuple) else (made,)
            sum(y.float().square().mean() for y in made).backward()
            results.append([*made, *(t.grad for t in leaves if t.grad is not None)])
        for a, b in zip(*results, strict=True):
            assert a.stride() == b.stride()
            torch.testing.assert_close(a, b, rtol=3e-2, atol=3e-2)
