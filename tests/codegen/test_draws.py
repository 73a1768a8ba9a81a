"""Dropouts of a GPU that draw in their kernels: the bits of ATen's, without a GPU.

tests/device/test_draws_device.py compares them with ATen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from jitmagic.codegen.plan import Call
from jitmagic.loops.ir import LoopProgram
from jitmagic.loops.philox_state import PHILOX_STATE
from jitmagic.operators import SCALARS
from jitmagic.schedule.libraries import dropouts

from . import for_gpu
from .for_gpu import H200, compiled, on_cpu
from .interpreted import PHILOX, run_interpreted

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

aten = torch.ops.aten
THREADS = 132 * 2048  # of an H200


def drawn(x: Tensor, p: float, most: int = THREADS) -> Tensor:
    """Return the mask that ATen's kernel draws for a dense tensor (aten/.../cuda/Dropout.cu)."""
    count, vector = x.numel(), 16 // x.element_size()
    while count % vector:
        vector //= 2
    threads = min(most, -(-count // 256) * 256)
    at = torch.arange(count)
    numbers = (torch.tensor(n) for n in (vector, threads))
    bits = SCALARS["philox"].reference(*map(torch.tensor, PHILOX), at, *numbers)
    uniform = (bits.to(torch.float32).double() * 2.0**-32 + 2.0**-33).float()
    kept = uniform < torch.tensor(1 - p, dtype=torch.float32)
    return torch.as_strided(kept, x.shape, x.stride())


def test_philox_is_that_of_its_paper():
    """The known answer of Philox4x32-10 for a zero key and counter."""
    zero, four, one = torch.tensor(0), torch.arange(4), torch.tensor(1)
    bits = SCALARS["philox"].reference(zero, zero, four, 4 * one, one)
    assert [hex(n) for n in bits.tolist()] == [
        "0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8",
    ]  # fmt: skip


@pytest.mark.parametrize("p", [0.1, 0.5, 1e-30])
def test_the_least_bits_that_are_dropped(p):
    bound = dropouts._kept_below(1 - p)
    near = torch.arange(max(bound - 300, 0), min(bound + 300, 2**32))
    uniform = (near.to(torch.float32).double() * 2.0**-32 + 2.0**-33).float()
    assert torch.equal(near < bound, uniform < torch.tensor(1 - p, dtype=torch.float32))


SHAPES = [(4096,), (64, 256), (3, 5, 8), (7, 12), (2, 8, 6, 6), (5, 4), (16, 3000)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_masks_and_values(shape, dtype):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=dtype)
    check(lambda x: aten.native_dropout(x, 0.3, True), x)


def check(program: Callable[[Tensor], tuple[Tensor, Tensor]], x: Tensor, p: float = 0.3) -> str:
    """Require the bits of ATen's kernel."""
    plan, source = compiled(program, x)
    assert [step.op for step in plan.steps if isinstance(step, Call)] == [PHILOX_STATE]
    (y, mask), _ = run_interpreted(source, on_cpu(plan), [x])
    expected = drawn(x, p)
    assert torch.equal(mask, expected)
    assert mask.stride() == y.stride() == x.stride()
    scale = torch.tensor(1 / torch.tensor(1 - p).item(), dtype=torch.float32)
    torch.testing.assert_close(y, (x.float() * expected * scale).to(x.dtype), rtol=0, atol=0)
    return source.text


def test_layouts_of_memory_decide():
    x = torch.randn(2, 16, 6, 6).to(memory_format=torch.channels_last)
    check(lambda x: aten.native_dropout(x, 0.3, True), x)
    check(lambda x: aten.native_dropout(x, 0.3, True), torch.randn(24, 20).t())


def test_special_values_are_multiplied():
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0] * 64)
    plan, source = compiled(lambda x: aten.native_dropout(x, 0.3, True), x)
    (y, mask), _ = run_interpreted(source, on_cpu(plan), [x])
    scale = torch.tensor(1 / torch.tensor(0.7).item(), dtype=torch.float32)
    expected = x * mask * scale
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(y.signbit() | y.isnan(), expected.signbit() | y.isnan())


def test_four_numbers_at_a_time():
    """In a row of a norm, beside a sum and in a pointwise kernel, four lanes share a draw."""

    def normed(x: Tensor, r: Tensor) -> Tensor:
        return torch.softmax(aten.native_dropout(x, 0.3, True)[0] + r, -1)

    _, source = compiled(normed, torch.randn(64, 256), torch.randn(64, 256))
    assert "philox_run(" in source.text
    assert source.text.count("def ") == 4, source.text  # two helpers, the maximum, the kernel
    odd = check(lambda x: aten.native_dropout(x, 0.3, True), torch.randn(8, 5))
    assert "philox_bits(" not in odd, "places of a flat tile follow each other"


def test_two_draws_of_one_place():
    """Two dropouts that one kernel computes have the place of their elements in common."""

    def program(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, first = aten.native_dropout(x, 0.3, True)
        _, second = aten.native_dropout(x * 2, 0.3, True)
        return y + x, first, second

    x = torch.randn(64, 256)
    plan, source = compiled(program, x)
    assert source.text.count("philox_run(") == 3, "the helper, and one for each"
    (_, first, second), _ = run_interpreted(source, on_cpu(plan), [x])
    assert torch.equal(first, drawn(x, 0.3))
    assert torch.equal(second, drawn(x, 0.3)), "the test's state of the generator stays the same"


KEPT = {
    "in double": (torch.randn(64, dtype=torch.float64), 0.5, True),
    "of an odd number": (torch.randn(9), 0.5, True),
    "of all": (torch.randn(64), 1.0, True),
    "of none": (torch.randn(64), 0.0, True),
    "with gaps": (torch.randn(8, 16)[:, ::2], 0.5, True),
}


@pytest.mark.parametrize("name", KEPT)
def test_others_are_those_of_aten(name):
    x, p, train = KEPT[name]
    plan, _ = compiled(lambda x: aten.native_dropout(x, p, train)[0] * 2, x)
    assert aten.native_dropout.default in [s.op for s in plan.steps if isinstance(s, Call)]


def test_recorded_graphs_and_unknown_gpus_draw_by_aten():
    empty = LoopProgram("p", {}, (), (), ())
    assert dropouts.with_own_dropouts(empty, H200, records_graphs=True) is empty
    elsewhere = replace(H200, resident_threads=0)
    assert dropouts.with_own_dropouts(empty, elsewhere, records_graphs=False) is empty


def test_a_smaller_gpu_has_fewer_threads(monkeypatch):
    """A thread takes every 128 * 1536th run of elements on an RTX 4090, and so draws more."""
    small = replace(H200, multiprocessors=4, resident_threads=1536)
    monkeypatch.setattr(for_gpu, "H200", small)
    x = torch.randn(9, 4096)
    plan, source = compiled(lambda x: aten.native_dropout(x, 0.3, True), x)
    (draw,) = (step for step in plan.steps if isinstance(step, Call))
    assert draw.args[-1] == 4 * 2, "each of 6144 threads draws for two runs of four"
    (_, mask), _ = run_interpreted(source, on_cpu(plan), [x])
    assert torch.equal(mask, drawn(x, 0.3, 4 * 1536))
