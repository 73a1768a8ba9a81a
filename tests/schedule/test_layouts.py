"""Images between convolutions are channels_last on a GPU, in training too; results and gradients
stay eager's.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import jitmagic
from jitmagic.autograd.backward_graphs import SavedLayouts
from jitmagic.compile import executable
from jitmagic.devices import CUDA_ROW
from jitmagic.errors import CompileFailed
from jitmagic.loops.interp import run
from jitmagic.loops.ir import Extern
from jitmagic.loops.verify import verify
from jitmagic.schedule import schedule
from jitmagic.schedule.libraries import layouts
from jitmagic.schedule.libraries.layouts import with_images_channels_last

from .test_fusion import lowered, scheduled


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(layouts, "row_of", lambda device: CUDA_ROW)


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


def averaged(x, w, v):
    y = F.avg_pool2d(F.conv2d(x, w, padding=1).relu(), 3, 2, 1, count_include_pad=False)
    return F.conv2d(y, v).abs().flatten(1) + 0


def leaves(x, w, v):
    y = F.conv2d(x.relu(), w, padding=1)
    return y, F.conv2d(y.exp(), v).tanh().amax((0, 1))


def turned(x, w, v):
    y = F.conv2d(x, w, padding=1).permute(0, 2, 3, 1)
    return F.layer_norm(y, (8,)), F.conv2d(y.permute(0, 3, 1, 2).contiguous(), v).relu().sum(1)


FUNCTIONS = (residual, depthwise, pooled, averaged, leaves, turned)


def inputs(dtype=torch.bfloat16, shape=(2, 8, 9, 7)):
    torch.manual_seed(0)
    weights = [torch.randn(8, 8, 3, 3) * 0.2 for _ in range(2)]
    return [t.to(dtype) for t in (torch.randn(shape), *weights)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_results_and_strides_match_eager(fn, dtype):
    program = with_images_channels_last(lowered(fn, *inputs(dtype)))
    verify(program)
    expected = fn(*inputs(dtype))
    for final in (program, scheduled(fn, *inputs(dtype)).program):
        verify(final)
        got = run(final, inputs(dtype))
        for a, b in zip(got, expected if isinstance(expected, tuple) else (expected,)):
            torch.testing.assert_close(a, b, rtol=5e-2, atol=5e-2)
            assert a.stride() == b.stride()


def convolutions(program) -> list[Extern]:
    op = torch.ops.aten.convolution.default
    return [step for step in program.steps if isinstance(step, Extern) and step.op is op]


def order_of(program, step: Extern) -> tuple[bool, bool]:
    """Return whether a convolution reads and writes channels_last."""
    strides = [program.buffers[n].stride for n in (step.args[0].name, step.results[0])]
    return strides[0][1] == 1, strides[1][1] == 1


@pytest.mark.parametrize(
    ("fn", "count"), [(residual, 3), (depthwise, 2), (pooled, 2), (averaged, 2)]
)
def test_temporaries_have_the_layout_of_convolutions(fn, count):
    program = with_images_channels_last(lowered(fn, *inputs()))
    found = [
        s
        for s in program.steps
        if isinstance(s, Extern) and s.op is torch.ops.aten.convolution.default
    ]
    assert [order_of(program, step) for step in found].count((True, True)) == count


@pytest.fixture
def without_tf32():
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.mark.parametrize(
    "given",
    [
        inputs(torch.float32),  # other dtypes have kernels for either order
        [inputs()[0][:, :4], inputs()[1][:, :4], inputs()[2]],
    ],
)
def test_other_programs_are_unchanged(given, without_tf32):
    fn = leaves if given[0].dtype == torch.float32 else lambda x, w, v: F.conv2d(x, w)
    program = lowered(fn, *given)
    assert with_images_channels_last(program) is program


def test_groups_of_several_channels_keep_their_layout():
    x, w, _ = inputs()
    program = lowered(lambda x, w: F.conv2d(x, w, groups=2).relu().sum(), x, w[:, :4])
    assert with_images_channels_last(program) is program


@pytest.fixture
def with_tf32():
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        yield


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(
    ("channels", "window", "is_as_precise"),
    [(32, 3, True), (64, 7, True), (3, 3, False), (8, 3, False), (30, 3, False), (32, 11, False)],
)
def test_float32_images_change_layout_if_cudnn_rounds_equally(
    channels, window, is_as_precise, fast, with_tf32
):
    """With few channels cuDNN has TF32 kernels in channels_last alone: eager's is not TF32."""
    x = torch.randn(2, channels, 12, 12)
    w = torch.randn(32, channels, window, window) * 0.2

    def stem(x, w):
        return F.conv2d(x * 2, w, padding=window // 2).relu().sum((2, 3))

    program = with_images_channels_last(lowered(stem, x, w), fast=fast)
    (made,) = convolutions(program)
    assert order_of(program, made)[1] is (is_as_precise or fast)
    verify(program)
    torch.testing.assert_close(run(program, (x, w))[0], stem(x, w), rtol=1e-4, atol=1e-3)


def grouped(x, w, v):
    y = F.silu(F.group_norm(F.conv2d(x, w, padding=1), 2))
    return F.conv2d(y, v, padding=1).relu().sum((2, 3))


def test_inputs_of_group_norm_stay_row_major():
    program = with_images_channels_last(lowered(grouped, *inputs()))
    found = [
        s
        for s in program.steps
        if isinstance(s, Extern) and s.op is torch.ops.aten.convolution.default
    ]
    assert order_of(program, found[0]) == (False, False)
    normed = [b for b in program.buffers.values() if b.shape == (2, 8, 9, 7) and b.stride[1] == 1]
    assert {b.name for b in normed}.isdisjoint(layouts._read_in_groups(program))
    expected = grouped(*inputs())
    (got,) = run(scheduled(grouped, *inputs()).program, inputs())
    torch.testing.assert_close(got, expected, rtol=5e-2, atol=5e-2)


class Network(torch.nn.Module):
    """Strides, a pooling, depthwise channels, norms: the parts of image networks."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.wide = torch.nn.Conv2d(8, 8, 5, padding=2, groups=8, bias=False)
        self.groups = torch.nn.GroupNorm(2, 8)
        self.down = torch.nn.Conv2d(8, 12, 3, dilation=2, padding=2)
        self.up = torch.nn.ConvTranspose2d(12, 4, 2, stride=2)

    def forward(self, x):
        y = F.max_pool2d(self.norm(self.stem(x)).relu(), 3, 2, 1)
        y = y + F.silu(self.wide(y))
        y = self.down(F.hardswish(self.groups(y)) * y)
        return self.up(F.gelu(y)), y.mean((2, 3))


def gradients_of(network, call, x):
    made = call(x)
    sum((part.float() ** 2).mean() for part in made).backward()
    found = {name: p.grad for name, p in network.named_parameters()}
    return {"x": x.grad, **found, **dict(enumerate(made)), **dict(network.named_buffers())}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("tier", ["cpp", "aten"])
def test_a_backward_accepts_the_layouts_of_its_forward(autocast, tier, monkeypatch):
    told = []
    monkeypatch.setattr(
        SavedLayouts,
        "set_strides",
        lambda self, s, was=SavedLayouts.set_strides: told.append(s) or was(self, s),
    )
    network = Network()
    copied = copy.deepcopy(network)
    torch.manual_seed(1)
    x = torch.randn(2, 3, 21, 18)
    # float32 images of so few channels are turned where precision may differ from eager's.
    precision = "eager" if autocast else "fast"
    options = {"cpu_tier": tier, "keep": "compiled", "precision": precision}
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        compiled = jitmagic.jit(network, fullgraph=True, options=options)
        got = gradients_of(network, compiled, x.clone().requires_grad_())
        expected = gradients_of(copied, copied, x.clone().requires_grad_())
    close = {"rtol": 5e-2, "atol": 5e-2} if autocast else {"rtol": 1e-4, "atol": 1e-5}
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, **close)
        assert got[name].stride() == value.stride(), name
    assert any(told) == (tier == "cpp")


def test_a_fallback_backward_gets_the_traced_layouts(monkeypatch):
    def refuse(program, *rest):
        if program.name == "backward":
            raise CompileFailed("planted")
        return schedule(program, *rest)

    monkeypatch.setattr(executable, "schedule", refuse)

    def turned(x, w):
        y = F.conv2d(x.sin(), w)
        return (y * y).cos().view(2, -1).cumsum(1)

    x, w = torch.randn(2, 4, 6, 5), torch.randn(4, 4, 1, 1)
    ours, theirs = ([t.clone().requires_grad_() for t in (x, w)] for _ in range(2))
    with pytest.warns(UserWarning, match="planted"):
        jitmagic.jit(turned)(*ours).sum().backward()
    turned(*theirs).sum().backward()
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
