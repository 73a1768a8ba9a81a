"""Depthwise convolutions of a GPU that are written as nests, by Triton's interpreter."""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from jitmagic.codegen.plan import Call
from jitmagic.schedule.libraries import depthwise

from .for_gpu import compiled, on_cpu
from .interpreted import run_interpreted

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

CONVOLUTION = torch.ops.aten.convolution.default


class Window(NamedTuple):
    size: tuple[int, int]
    stride: int | tuple[int, int] = 1
    padding: int | tuple[int, int] = 0
    dilation: int | tuple[int, int] = 1
    image: tuple[int, int] = (10, 16)


WINDOWS = {
    "3x3": Window((3, 3), padding=1),
    "5x5": Window((5, 5), padding=2),
    "7x7": Window((7, 7), padding=3, image=(9, 8)),
    "3x3 by 2": Window((3, 3), 2, 1),
    "not padded": Window((3, 3), image=(8, 10)),
    "dilated": Window((3, 3), 1, 2, 2),
    "in one direction": Window((1, 5), (2, 1), (0, 2), (1, 1)),
    "two results of a thread": Window((3, 3), padding=1, image=(5, 6)),
}


def convolved(x: Tensor, w: Tensor, case: Window) -> Tensor:
    made = F.conv2d(x, w, None, *case[1:4], groups=x.shape[1])
    return F.relu(made) * 2


def inputs_of(case: Window, dtype: torch.dtype, channels: int = 24) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(2, channels, *case.image).to(memory_format=torch.channels_last)
    return x.to(dtype), torch.randn(channels, 1, *case.size).to(dtype)


def calls_of(program, *inputs):
    plan, source = compiled(program, *inputs)
    return [step.op for step in plan.steps if isinstance(step, Call)], plan, source


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", WINDOWS)
def test_values(name, dtype):
    case = WINDOWS[name]
    x, w = inputs_of(case, dtype)
    calls, plan, source = calls_of(lambda x, w: convolved(x, w, case), x, w)
    assert CONVOLUTION not in calls
    (got,), _ = run_interpreted(source, on_cpu(plan), [x, w])
    exact = convolved(x.double(), w.double(), case)
    assert got.shape == exact.shape
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), exact, rtol=eps, atol=4e-6)


def test_infinite_and_missing_elements():
    """Elements beyond the image are zeros, also beside infinite weights."""
    case = WINDOWS["3x3"]
    x, w = inputs_of(case, torch.bfloat16)
    w[0] = torch.inf
    x[0, 1, 4, 4] = torch.nan
    _, plan, source = calls_of(lambda x, w: convolved(x, w, case), x, w)
    (got,), _ = run_interpreted(source, on_cpu(plan), [x, w])
    inner = convolved(x.double(), w.double(), case)[..., 1:-1, 1:-1]
    torch.testing.assert_close(got[..., 1:-1, 1:-1].double(), inner, rtol=1e-2, atol=1e-2,
                               equal_nan=True)  # fmt: skip


def test_neighbours_share_what_they_load(monkeypatch):
    case = Window((7, 7), padding=3, image=(8, 16))
    loads = {}
    for size in (8, 2):
        monkeypatch.setattr(depthwise, "_NEIGHBOURS", size)
        inputs = inputs_of(case, torch.bfloat16)
        _, _, source = calls_of(lambda x, w: convolved(x, w, case).sum(1), *inputs)
        text = source.text.split("def ")
        (kernel,) = (part for part in text if "tl.fma(" in part)
        loads[size] = kernel.count("tl.load(x0 ")
        if size == 8:  # and what is loaded is used soon
            lines = kernel.split("\n")
            first = next(n for n, line in enumerate(lines) if "tl.fma(" in line)
            assert sum("tl.load(x0 " in line for line in lines[:first]) <= 2
    assert loads == {8: 7 * 14, 2: 7 * 8}


def test_threads_hold_fewer_results_of_a_window():
    case = WINDOWS["3x3"]
    x, w = torch.empty(64, 64, 32, 32), torch.empty(64, 1, 3, 3)
    x = x.to(torch.bfloat16, memory_format=torch.channels_last)
    _, _, source = calls_of(lambda x, w: convolved(x, w, case), x, w.bfloat16())
    warps = {name: grid.num_warps for name, grid in source.grids.items()}
    assert [warps[name] for name in warps if name.startswith("conv")] == [8]


OTHERS = {
    "float32": (WINDOWS["3x3"], torch.float32),
    "an odd width": (Window((3, 3), padding=1, image=(8, 9)), torch.bfloat16),
    "a large window": (Window((9, 9), padding=4), torch.bfloat16),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay_cudnns(name):
    case, dtype = OTHERS[name]
    calls, *_ = calls_of(lambda x, w: convolved(x, w, case), *inputs_of(case, dtype))
    assert CONVOLUTION in calls


def test_windows_over_several_channels_stay_cudnns():
    x, w = torch.randn(2, 24, 8, 8).bfloat16(), torch.randn(24, 2, 3, 3).bfloat16()
    calls, *_ = calls_of(lambda x, w: F.relu(F.conv2d(x, w, padding=1, groups=12)), x, w)
    assert CONVOLUTION in calls
