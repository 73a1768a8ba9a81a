"""Strides and dtypes of results are eager's, whatever layout the kernels of single calls choose.

What a later step reads from a call's result must be what the call wrote: views of such results are
checked by value as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitmagic
from tests.covering import covered

CASES: dict[str, tuple[Callable[..., Any], str]] = {
    "fft real": (lambda x: torch.fft.fft(x, dim=1).real, "plain"),
    "fft real plus": (lambda x: torch.fft.fft(x, dim=1).real + 1, "plain"),
    "fft imag": (lambda x: torch.fft.fft(x, dim=(1)).imag * 2, "last"),
    "view_as_real": (lambda x: torch.view_as_real(torch.fft.fft(x, dim=1)), "plain"),
    "irfft": (lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1), dim=1), "plain"),
    "angle": (lambda x: torch.fft.fft(x, dim=1).angle(), "last"),
    "svd": (lambda x: torch.linalg.svd(x), "plain"),
    "qr": (lambda x: torch.linalg.qr(x), "plain"),
    "lu": (lambda x: torch.linalg.lu_factor_ex(x)[:2], "square"),
    "convolution": (lambda x: F.conv2d(x, torch.ones(3, 4, 1, 1)).relu(), "last"),
    "transposed convolution": (lambda x: F.conv_transpose2d(x, torch.ones(4, 3, 2, 2)), "last"),
    "weights in channels_last": (
        lambda x: F.conv2d(x, torch.ones(3, 4, 3, 3).to(memory_format=torch.channels_last)) + 1,
        "plain",
    ),
    "roll": (lambda x: x.roll(1, 1), "last"),
    "roll flat": (lambda x: x.roll(3), "last"),
    "roll nothing": (lambda x: x.roll(0, 1), "last"),
    "roll several": (lambda x: x.roll((1, 2), (1, 2)), "last"),
    "flip": (lambda x: x.flip(1), "last"),
    "pooling": (lambda x: F.max_pool2d(x, 2, return_indices=True), "last"),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), "last"),
    "topk": (lambda x: torch.topk(x, 2, dim=1), "last"),
    "embedding_bag": (
        lambda x: F.embedding_bag(
            torch.tensor([1, 2, 3, 0]), x[0, 0], torch.tensor([0, 2]), mode="mean"
        ),
        "square",
    ),
    "attention": (lambda x: F.scaled_dot_product_attention(x.mT, x.mT, x.mT), "plain"),
    "indexed": (lambda x: x[:, torch.tensor([0, 2])], "last"),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True).relu(), "last"),
    "batch norm of columns": (
        lambda x: F.batch_norm(x.flatten(2).mT, None, None, training=True).mT.reshape(2, -1),
        "plain",
    ),
    "batch norm of an excerpt": (
        lambda x: F.batch_norm(x[..., ::2], torch.zeros(4), torch.ones(4)) + 1,
        "last",
    ),
    "batch norm of one row for all": (
        lambda x: F.batch_norm(x[:1].expand(3, -1, -1, -1), None, None, training=True),
        "plain",
    ),
    "cumsum": (lambda x: x.transpose(1, 2).cumsum(1), "plain"),
}
INPUTS = {
    "plain": lambda: torch.randn(2, 4, 6, 5),
    "last": lambda: torch.randn(2, 4, 6, 5).to(memory_format=torch.channels_last),
    "square": lambda: torch.randn(2, 2, 4, 4),
}


def _tensors(made: Any) -> list[Tensor]:
    return [made] if isinstance(made, Tensor) else list(made)


@covered(
    name=CASES,
    backend=["native", "aot_eager", "eager"],
    grad=[False, True],
    autocast=[False, True],
)
def test_results_lie_as_in_eager(name: str, backend: str, grad: bool, autocast: bool) -> None:
    function, kind = CASES[name]
    x = INPUTS[kind]().requires_grad_(grad)
    run = jitmagic.jit(function, backend=backend)
    with (
        warnings.catch_warnings(),
        torch.set_grad_enabled(grad),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        warnings.simplefilter("error", jitmagic.FallbackWarning)
        wanted = _tensors(function(x))
        for _ in range(2):
            for got, want in zip(_tensors(run(x)), wanted, strict=True):
                assert (got.dtype, got.stride()) == (want.dtype, want.stride())
                torch.testing.assert_close(got, want)


@pytest.mark.parametrize("backend", ["native", "aot_eager", "eager"])
def test_values_made_from_a_layout_that_the_meta_kernel_does_not_know(backend: str) -> None:
    def used(x: Tensor) -> tuple[Tensor, ...]:  # LAPACK's vh is column-major, meta says row-major
        return tuple(part * 2 + 1 for part in torch.linalg.svd(x))

    x = torch.randn(2, 4, 6, 5)
    for got, want in zip(jitmagic.jit(used, backend=backend)(x), used(x), strict=True):
        torch.testing.assert_close(got, want)


BINARY = {
    **{name: getattr(torch, name) for name in (
        "add sub mul div remainder fmod floor_divide pow maximum minimum fmax fmin atan2 copysign "
        "xlogy float_power"
    ).split()},
    "div, floored": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div, truncated": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "lerp": lambda a, b: torch.lerp(a.float(), b.float(), 0.3),
    "addcmul": lambda a, b: torch.addcmul(a.float(), b.float(), a.float()),
    "heaviside": lambda a, b: torch.heaviside(a.double(), b.double()),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, 2),
    "logaddexp": lambda a, b: torch.logaddexp(a.float(), b.float()),
    "shift": lambda a, b: a.int() << b.int(),
    "clamp": lambda a, b: torch.clamp(a, b, None),
}  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_results_of_two_dtypes_and_layouts_lie_as_in_eager(name: str) -> None:
    """torch 2.11 says of some that they are row-major where the dtypes differ."""
    function = BINARY[name]

    def program(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> list[Tensor]:
        return [function(*pair) for pair in ((a, b), (b, a), (a, c), (c, b), (d, b), (a, d))]

    floats, ints = torch.rand(2, 5, 3) + 1, torch.arange(1, 31).view(5, 3, 2) % 3 + 1
    given = floats.movedim(0, -1), ints, floats.double().permute(1, 2, 0), ints[:, :1].mT.mT
    run = jitmagic.jit(program)
    for got, want in zip(run(*given), program(*given), strict=True):
        assert (got.dtype, got.stride()) == (want.dtype, want.stride())
        torch.testing.assert_close(got, want)
