"""flex_attention on a GPU: results and gradients against attention written out in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import jitmagic
from tests.programs.counts import counts_of

pytestmark = pytest.mark.device


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_causal_attention_with_slopes(dtype: torch.dtype) -> None:
    length, heads = 256, 4
    slopes = torch.linspace(0.01, 0.1, heads, device="cuda")
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cuda")

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(
            q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i), block_mask=mask
        )

    def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i, j = torch.arange(length, device="cuda")[:, None], torch.arange(length, device="cuda")
        scores = q @ k.transpose(-2, -1) * 64**-0.5 + slopes[:, None, None] * (j - i)
        return torch.softmax(scores.masked_fill(i < j, -float("inf")), -1) @ v

    given = [
        torch.randn(2, heads, length, 64, device="cuda", dtype=dtype, requires_grad=True)
        for _ in range(3)
    ]
    exact = [x.detach().double().requires_grad_() for x in given]
    fast = jitmagic.jit(program, fullgraph=True)
    made, wanted = fast(*given), written_out(*exact)
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if dtype is torch.bfloat16 else {}
    torch.testing.assert_close(made, wanted.to(dtype), **tolerance)
    found = torch.autograd.grad(made.float().square().sum(), given)
    expected = torch.autograd.grad(wanted.square().sum(), exact)
    for ours, theirs in zip(found, expected, strict=True):
        scale = theirs.abs().max().item()
        torch.testing.assert_close(ours.double() / scale, theirs / scale, rtol=0, atol=2e-2)
    assert counts_of(fast).breaks == 0
