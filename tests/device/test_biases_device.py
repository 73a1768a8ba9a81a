"""Biases of convolutions of any number of groups: rounded apart where eager's kernels do."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import jitmagic

pytestmark = pytest.mark.device

LAYOUTS = {"row-major": torch.contiguous_format, "channels_last": torch.channels_last}


@pytest.fixture(autouse=True)
def all_bits(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("groups", [1, 4, 32])
@pytest.mark.parametrize("size", [3, 7])
def test_rounded_as_eager_rounds(size, groups, layout, dtype):
    torch.manual_seed(0)
    x = torch.randn(3, 32, 18, 18, device="cuda", dtype=dtype).to(memory_format=LAYOUTS[layout])
    w = torch.randn(32, 32 // groups, size, size, device="cuda", dtype=dtype)
    bias = torch.randn(32, device="cuda", dtype=dtype) * 50

    def images(x, w, bias):
        return F.relu(F.conv2d(x, w, bias, padding=size // 2, groups=groups))

    compiled = jitmagic.jit(images, fullgraph=True)
    expected = images(x, w, bias)
    for _ in range(3):
        got = compiled(x, w, bias)
        # Layouts may be chosen otherwise, and with them cuDNN's algorithm: the last bit of a sum.
        bound = torch.finfo(dtype).eps * 64
        torch.testing.assert_close(got, expected, rtol=bound, atol=bound * 16)
