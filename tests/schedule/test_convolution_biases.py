"""Biases of convolutions on a GPU are added by the nests that read their results."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from jitmagic.devices import CUDA_ROW
from jitmagic.graph.operators import convolution
from jitmagic.loops.interp import run
from jitmagic.loops.ir import Extern, Nest
from jitmagic.loops.verify import verify
from jitmagic.schedule.libraries import convolution_biases
from jitmagic.schedule.libraries.convolution_biases import with_separate_biases

from .test_fusion import lowered, scheduled

CONVOLUTION = torch.ops.aten.convolution.default
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(convolution_biases, "row_of", lambda device: CUDA_ROW)


class TwoPasses(TorchFunctionMode):
    """The bias is added to a rounded result, as cuDNN does it."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if not getattr(func, "__name__", "").startswith("conv"):
            return func(*args, **(kwargs or {}))
        x, weight, bias, *rest = args
        made = func(x, weight, None, *rest, **(kwargs or {}))
        return made + bias.reshape(-1, *[1] * (x.dim() - 2))


def tensors(dtype=torch.float32, rank=2):
    g = torch.Generator().manual_seed(rank)
    shapes = ((2, 4, *(7, 6, 5)[:rank]), (8, 4, *[3] * rank), (8,))
    return [torch.randn(shape, generator=g).to(dtype) for shape in shapes]


def images(x, w, b):
    return F.relu(F.conv2d(x, w, b, stride=2))


def turned(x, w, b):
    return torch.sigmoid(F.conv_transpose2d(x, w[:4], b[:4], 2, 1))


def rows(x, w, b):
    return F.gelu(F.conv1d(x, w, b, padding=1)) * 2


def volumes(x, w, b):
    return F.silu(F.conv3d(x, w, b, padding=1))


def shown(x, w, b):  # the result leaves the program, and is read
    y = F.conv2d(x, w, b)
    return y, y.relu()


def summed(x, w, b):
    return F.conv2d(x, w, b).sum((2, 3))


def shared(x, w, b):  # the same bias twice
    return F.relu(F.conv2d(x, w, b)) - F.conv2d(x * 2, w, b)


def channels_last(x, w, b):  # its input is laid out by a nest
    return F.relu(F.conv2d((x * 2).contiguous(memory_format=torch.channels_last), w, b))


PROGRAMS = {
    images: 2, turned: 2, rows: 1, volumes: 3, shown: 2, summed: 2, shared: 2, channels_last: 2,
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_values_match_two_passes(fn, dtype, as_on_a_gpu):
    given = tensors(dtype, PROGRAMS[fn])
    program = scheduled(fn, *given).program
    verify(program)
    calls = [s for s in program.steps if isinstance(s, Extern) and s.op is CONVOLUTION]
    assert calls
    assert all(call.args[2] is None for call in calls)
    written = {store.buffer for s in program.steps if isinstance(s, Nest) for store in s.stores}
    shown_too = {name for name in program.outputs if name is not None}
    assert fn in (shared, channels_last) or written <= shown_too, "a sum has a kernel of its own"
    with TwoPasses():
        expected = fn(*given)
    found = run(program, given)
    expected = expected if isinstance(expected, tuple) else (expected,)
    bound = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float64: 1e-12}.get(dtype, 1e-5)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=bound, atol=4 * bound)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_results_are_rounded_before_the_bias(dtype, as_on_a_gpu):
    x, w, b = tensors(dtype)
    (got,) = run(scheduled(images, x, w, b * 100).program, [x, w, b * 100])
    apart = F.conv2d(x, w, None, stride=2) + (b * 100)[:, None, None]
    assert torch.equal(got, F.relu(apart))


def plain(x, w, b):
    return F.conv2d(x, w, b)


def grouped(x, w, b):
    return F.relu(F.conv2d(x, w[:, :2], b, groups=2))


def of_one_channel(x, w, b):
    return F.gelu(F.conv2d(x, w[:4, :1], b[:4], groups=4))


def turned_of_groups(x, w, b):
    return F.gelu(F.conv_transpose2d(x, w[:4, :2], b[:4], groups=2))


@pytest.mark.parametrize("fn", [grouped, of_one_channel, turned_of_groups])
@pytest.mark.parametrize("backend", ["Cudnn", "CudnnTranspose", "CudaDepthwise2d", "Slow2d"])
def test_grouped_convolutions_of_cudnn_add_biases_separately(fn, backend, as_on_a_gpu, monkeypatch):
    chosen = getattr(torch._C._ConvBackend, backend)
    monkeypatch.setattr(convolution, "select_convolution", lambda *given: chosen)
    (call,) = [s for s in scheduled(fn, *tensors()).program.steps if isinstance(s, Extern)]
    assert (call.args[2] is None) == backend.startswith("Cudnn")


def without(x, w, b):
    return F.relu(F.conv2d(x, w)) + b[0]


@pytest.mark.parametrize("fn", [plain, grouped, without], ids=lambda fn: fn.__name__)
def test_other_convolutions_keep_their_bias(fn, as_on_a_gpu):
    program = lowered(fn, *tensors())
    assert with_separate_biases(program).steps == program.steps


def test_cpu_convolutions_keep_their_bias():
    program = lowered(images, *tensors())
    assert with_separate_biases(program) is program
