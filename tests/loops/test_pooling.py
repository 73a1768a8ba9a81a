"""Pooling in kernels gives the bits of ATen's, with NaN, infinities and zeros of both signs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import jitmagic
from jitmagic.loops.ir import Extern
from tests.schedule.test_fusion import scheduled

WINDOWS: dict[str, Callable[[Tensor], Tensor]] = {
    "max 3 padded": partial(F.max_pool2d, kernel_size=3, stride=2, padding=1),
    "max 2": partial(F.max_pool2d, kernel_size=2),
    "max beyond the end": partial(
        F.max_pool2d, kernel_size=(3, 2), stride=(2, 1), padding=(1, 0), ceil_mode=True
    ),
    "max dilated": partial(F.max_pool2d, kernel_size=3, stride=2, padding=1, dilation=2),
    "mean 3 padded": partial(F.avg_pool2d, kernel_size=3, stride=2, padding=1),
    "mean of the image": partial(
        F.avg_pool2d, kernel_size=3, stride=1, padding=1, count_include_pad=False
    ),
    "mean beyond the end": partial(
        F.avg_pool2d, kernel_size=(3, 2), stride=2, ceil_mode=True, count_include_pad=False
    ),
    "sum": partial(F.avg_pool2d, kernel_size=2, ceil_mode=True, divisor_override=1),
}


def images(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 11, 13).to(dtype)
    x[0, 0, :3, :3] = torch.tensor([[0.0, -0.0, 0.0], [-0.0, 0.0, -0.0], [-0.0, -0.0, -0.0]])
    x[0, 1, 2, 2], x[1, 0, :5, :5], x[1, 2] = float("nan"), -float("inf"), float("inf")
    return [x, x.to(memory_format=torch.channels_last)]


def bits(x: Tensor) -> Tensor:
    """Return the bits of all elements; those of NaN are one pattern."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize]
    return torch.where(x.isnan(), torch.full_like(x, float("nan")), x).view(integers)


@pytest.mark.parametrize(
    ("tier", "dtype"),
    [
        ("cpp", torch.float32),
        ("cpp", torch.bfloat16),
        ("blocks", torch.float32),
        ("blocks", torch.float64),
    ],
)
@pytest.mark.parametrize("name", WINDOWS)
def test_bits_are_eagers(name: str, tier: str, dtype: torch.dtype) -> None:
    pool = WINDOWS[name]
    made = jitmagic.jit(lambda x: pool(x), fullgraph=True, options={"cpu_tier": tier})
    for x in images(dtype):
        ours, eager = made(x), pool(x)
        assert torch.equal(bits(ours), bits(eager))
        assert ours.stride() == eager.stride()
    assert torch.equal(bits(made(images(dtype)[0][0])), bits(pool(images(dtype)[0][0])))


@pytest.mark.parametrize("tier", ["cpp", "blocks"])
@pytest.mark.parametrize("name", WINDOWS)
def test_gradients_have_eagers_bits(name: str, tier: str) -> None:
    pool = WINDOWS[name]
    made = jitmagic.jit(lambda x: pool(x) * 1.5, fullgraph=True, options={"cpu_tier": tier})
    for x in images(torch.float32):
        ours, eager = (x.clone().requires_grad_() for _ in range(2))
        result = made(ours)
        weights = torch.randn_like(result)
        result.backward(weights)
        (pool(eager) * 1.5).backward(weights)
        assert ours.grad is not None
        assert eager.grad is not None
        assert torch.equal(bits(ours.grad), bits(eager.grad))
        assert ours.grad.stride() == eager.grad.stride()


@pytest.mark.parametrize("name", [name for name in WINDOWS if name.startswith("max")])
def test_positions_are_eagers(name: str) -> None:
    pool = WINDOWS[name]
    made = jitmagic.jit(lambda x: pool(x, return_indices=True), options={"cpu_tier": "blocks"})
    for x in images(torch.float32):
        for a, b in zip(made(x), pool(x, return_indices=True), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
            assert a.stride() == b.stride()


def _externs(fn: Callable[[Tensor], object], *inputs: Tensor) -> list[str]:
    steps = scheduled(fn, *inputs).program.steps
    return [step.op.__name__ for step in steps if isinstance(step, Extern)]


def test_pooling_is_fused_with_what_is_around_it() -> None:
    program = scheduled(lambda x: F.max_pool2d(x.relu(), 2) + 1, torch.randn(2, 3, 8, 8)).program
    assert len(program.steps) == 1


def test_long_windows_are_left_to_aten() -> None:
    x = torch.randn(2, 3, 16, 16)
    assert not _externs(lambda x: F.max_pool2d(x, 4, return_indices=True), x)
    assert _externs(lambda x: F.max_pool2d(x, 6), x)
    assert _externs(lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True), x)


@pytest.mark.parametrize("pool", ["max 3 padded", "mean of the image"])
def test_sizes_that_vary_and_training(pool: str) -> None:
    fn = WINDOWS[pool]
    made = jitmagic.jit(lambda x: fn(x).tanh(), dynamic=True, fullgraph=True)
    for size in (9, 12, 7, 16):
        x = torch.randn(2, 3, size, size + 1)
        torch.testing.assert_close(made(x), fn(x).tanh())
        ours, eager = (x.clone().requires_grad_() for _ in range(2))
        made(ours).sum().backward()
        fn(eager).tanh().sum().backward()
        torch.testing.assert_close(ours.grad, eager.grad)
