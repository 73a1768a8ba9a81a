"""Images between convolutions are channels_last on a CPU; results and gradients stay eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jitmagic
from jitmagic.loops.ir import Extern

from .test_fusion import scheduled

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


def chain(x, w, v):
    y = F.conv2d(x, w, padding=1).relu()
    y = F.max_pool2d(F.conv2d(y, v[:, :1], padding=1, groups=8), 2)
    return F.conv2d(y, v, stride=2).relu().mean((2, 3))


def averaged(x, w, v):
    y = F.conv2d(x, w, padding=1).relu()
    y = F.avg_pool2d(F.conv2d(y, v, padding=1), 3, 2, 1, True)
    return F.conv2d(F.avg_pool2d(y, 2, divisor_override=3), v, padding=1).mean((2, 3))


def single(x, w, v):
    return F.conv2d(x, w, padding=1).relu().mean((2, 3))


def tensors(dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=g, dtype=dtype) for s in ((2, 8, 9, 10), (8, 8, 3, 3))] + [
        torch.randn(8, 8, 3, 3, generator=g, dtype=dtype)
    ]


def turned(fn, inputs) -> list[bool]:
    program = scheduled(fn, *inputs).program
    results = [
        program.buffers[step.results[0]]
        for step in program.steps
        if isinstance(step, Extern) and step.op is torch.ops.aten.convolution.default
    ]
    return [buffer.stride[1] == 1 for buffer in results]


@pytest.mark.parametrize("fn", [chain, averaged])
def test_images_between_convolutions_are_turned(fn):
    assert turned(fn, tensors()) == [True, True, True]
    with torch.no_grad():
        torch.testing.assert_close(jitmagic.jit(fn)(*tensors()), fn(*tensors()))


def test_one_convolution_is_not_worth_a_copy():
    assert turned(single, tensors()) == [False]


def test_float64_has_no_kernels_in_this_order():
    assert turned(chain, tensors(torch.float64)) == [False, False, False]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3, stride=2, groups=4)
        self.norm, self.third = nn.BatchNorm2d(16), nn.Conv2d(16, 4, 1)

    def forward(self, x):
        y = self.norm(self.second(self.first(x).relu()))
        return self.third(y.relu() + y.sigmoid()), y


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
def test_results_and_strides_match_eager(trains):
    torch.manual_seed(0)
    net = Net().train(trains)
    x = torch.randn(2, 3, 17, 15)
    with torch.set_grad_enabled(trains):
        expected = net(x)
        compiled = jitmagic.jit(net)
        got = compiled(x)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        assert a.stride() == b.stride()
    if trains:
        got[0].square().sum().backward()
        ours = [p.grad.clone() for p in net.parameters()]
        net.zero_grad()
        expected[0].square().sum().backward()
        for a, b in zip(ours, (p.grad for p in net.parameters()), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
