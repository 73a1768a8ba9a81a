"""float32 convolutions under cudnn.allow_tf32 are as precise as eager's, whatever their layout."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import jitmagic

pytestmark = pytest.mark.device

STEMS = {
    "alexnet": ((16, 3, 224, 224), (64, 3, 11, 11), 4, 2),
    "resnet": ((8, 3, 224, 224), (64, 3, 7, 7), 2, 3),
    "vgg": ((8, 3, 64, 64), (64, 3, 3, 3), 1, 1),
    "gray": ((8, 1, 64, 64), (32, 1, 3, 3), 1, 1),
    "five": ((8, 5, 64, 64), (30, 5, 3, 3), 1, 1),
    "eight": ((8, 8, 64, 64), (32, 8, 3, 3), 1, 1),
    "sixteen": ((16, 16, 112, 112), (32, 16, 3, 3), 1, 1),
    "wide window": ((16, 32, 112, 112), (64, 32, 11, 11), 4, 5),
    "whole": ((8, 64, 56, 56), (64, 64, 3, 3), 1, 1),
}


@pytest.mark.parametrize("name", STEMS)
def test_errors_are_at_most_twice_eager(name: str) -> None:
    shape, weights, stride, padding = STEMS[name]
    torch.manual_seed(0)
    x, w = torch.randn(shape, device="cuda"), torch.randn(weights, device="cuda")

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(F.conv2d(x, w, None, stride, padding))

    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True), torch.no_grad():
        exact = run(x.double(), w.double())
        made = jitmagic.jit(run, options={"keep": "compiled"})(x, w)
        errors = [float((y - exact).abs().max()) for y in (made, run(x, w))]
    assert errors[0] <= 2 * errors[1] + 1e-6 * float(exact.abs().max()), errors
