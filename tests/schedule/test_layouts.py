"""Images between convolutions lie channels_last where a GPU runs them; results stay eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from jitmagic.loops.interp import run
from jitmagic.loops.ir import Extern
from jitmagic.loops.verify import verify
from jitmagic.schedule import layouts
from jitmagic.schedule.layouts import with_images_channels_last

from .test_fusion import lowered, scheduled


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(layouts, "_DEVICES", {"cpu"})


def residual(x, w, v):
    y = F.conv2d(x, w, padding=1).relu()
    z = F.conv2d(y, v, padding=1)
    return (F.conv2d(y + z, w, padding=1) * 2).mean((2, 3))


def depthwise(x, w, v):
    y = F.silu(F.conv2d(x * 2, v[:, :1], padding=1, groups=8))
    gate = y.mean((2, 3), keepdim=True).sigmoid()
    return F.conv2d(y * gate, w, stride=2).relu().sum((2, 3))


def pooled(x, w, v):
    y = F.max_pool2d(F.conv2d(x, w, padding=1).relu(), 2)
    return F.conv2d(y, v).abs().flatten(1) + 0


def leaves(x, w, v):
    y = F.conv2d(x.relu(), w, padding=1)
    return y, F.conv2d(y.exp(), v).tanh().amax((0, 1))


def turned(x, w, v):
    y = F.conv2d(x, w, padding=1).permute(0, 2, 3, 1)
    return F.layer_norm(y, (8,)), F.conv2d(y.permute(0, 3, 1, 2).contiguous(), v).relu().sum(1)


FUNCTIONS = (residual, depthwise, pooled, leaves, turned)


def inputs(dtype=torch.bfloat16, shape=(2, 8, 9, 7)):
    torch.manual_seed(0)
    weights = [torch.randn(8, 8, 3, 3) * 0.2 for _ in range(2)]
    return [t.to(dtype) for t in (torch.randn(shape), *weights)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_results_and_their_strides_are_eagers(fn, dtype):
    program = with_images_channels_last(lowered(fn, *inputs(dtype)))
    verify(program)
    expected = fn(*inputs(dtype))
    for final in (program, scheduled(fn, *inputs(dtype)).program):
        verify(final)
        got = run(final, inputs(dtype))
        for a, b in zip(got, expected if isinstance(expected, tuple) else (expected,)):
            torch.testing.assert_close(a, b, rtol=5e-2, atol=5e-2)
            assert a.stride() == b.stride()


def order_of(program, step: Extern) -> tuple[bool, bool]:
    """Whether a convolution reads and writes channels_last."""
    strides = [program.buffers[n].stride for n in (step.args[0].name, step.results[0])]
    return strides[0][1] == 1, strides[1][1] == 1


@pytest.mark.parametrize(("fn", "count"), [(residual, 3), (depthwise, 2), (pooled, 2)])
def test_temporaries_lie_as_convolutions_take_them(fn, count):
    program = with_images_channels_last(lowered(fn, *inputs()))
    found = [s for s in program.steps if isinstance(s, Extern) and s.op is layouts._CONVOLUTION]
    assert [order_of(program, step) for step in found].count((True, True)) == count


@pytest.mark.parametrize(
    "given",
    [
        inputs(torch.float32),  # convolutions of 32 bits have kernels for either order
        [inputs()[0][:, :4], inputs()[1][:, :4], inputs()[2]],
    ],
)
def test_others_are_left_alone(given):
    fn = leaves if given[0].dtype == torch.float32 else lambda x, w, v: F.conv2d(x, w)
    program = lowered(fn, *given)
    assert with_images_channels_last(program) is program


def test_groups_of_several_channels_are_left_alone():
    x, w, _ = inputs()
    program = lowered(lambda x, w: F.conv2d(x, w, groups=2).relu().sum(), x, w[:, :4])
    assert with_images_channels_last(program) is program


def grouped(x, w, v):
    y = F.silu(F.group_norm(F.conv2d(x, w, padding=1), 2))
    return F.conv2d(y, v, padding=1).relu().sum((2, 3))


def test_what_group_norm_reads_stays_row_major():
    program = with_images_channels_last(lowered(grouped, *inputs()))
    found = [s for s in program.steps if isinstance(s, Extern) and s.op is layouts._CONVOLUTION]
    assert order_of(program, found[0]) == (False, False)
    normed = [b for b in program.buffers.values() if b.shape == (2, 8, 9, 7) and b.stride[1] == 1]
    assert {b.name for b in normed}.isdisjoint(layouts._read_in_groups(program))
    expected = grouped(*inputs())
    (got,) = run(scheduled(grouped, *inputs()).program, inputs())
    torch.testing.assert_close(got, expected, rtol=5e-2, atol=5e-2)
