"""Results of images lie as eager's, row-major or channels_last, at all sizes of one handle, and
where they are so large that no kernel is asked about tensors of that size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitmagic

Program = Callable[[Tensor], Any]


def _places(x: Tensor, factor: int) -> Tensor:
    """Return the position of each pixel in an image scaled along each dimension."""
    places = torch.arange(x[0, 0].numel()).view(x.shape[2:]) * factor
    return (torch.zeros_like(x, dtype=torch.int64) + places).to(torch.int64)


def _unpooled(x: Tensor) -> Tensor:
    return F.max_unpool2d(x, _places(x, 4), [2, 2])


def _unpooled_to(x: Tensor) -> Tensor:
    size = (*x.shape[:2], 2 * x.shape[2] + 1, 2 * x.shape[3])
    return F.max_unpool2d(x, _places(x, 2), [2, 2], output_size=size)


def _sampled(mode: str) -> Program:
    def program(x: Tensor) -> Tensor:
        grid = torch.linspace(-1, 1, 18).view(1, 3, 3, 2).expand(x.shape[0], 3, 3, 2).contiguous()
        return F.grid_sample(x, grid, mode=mode, align_corners=False)

    return program


def _ones(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1])


FLAT: dict[str, Program] = {
    "max_unpool2d": _unpooled,
    "max_unpool2d with a size": _unpooled_to,
    "max_pool2d": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 2),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 2),
    "lp_pool2d": lambda x: F.lp_pool2d(x, 2.0, 2),
    **{
        f"interpolate {mode}": partial(F.interpolate, scale_factor=2, mode=mode)
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
    },
    "antialias": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", antialias=True),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    **{
        f"pad {mode}": partial(F.pad, pad=(1, 2, 1, 1), mode=mode)
        for mode in ("constant", "reflect", "replicate", "circular")
    },
    "batch_norm": lambda x: F.batch_norm(x, None, None, _ones(x), _ones(x), True),
    "batch_norm of statistics": lambda x: F.batch_norm(x, _ones(x), _ones(x)),
    "instance_norm": lambda x: F.instance_norm(x),
    "group_norm": lambda x: F.group_norm(x, 2),
    "local_response_norm": lambda x: F.local_response_norm(x, 2),
    **{f"grid_sample {m}": _sampled(m) for m in ("bilinear", "nearest", "bicubic")},
    "conv2d": lambda x: F.conv2d(x, torch.ones(3, 8, 2, 2)),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, torch.ones(8, 3, 2, 2)),
    "unfold": lambda x: F.unfold(x, 2),
    "glu": lambda x: F.glu(x, 1),
    "softmax": lambda x: F.softmax(x, 1),
    "cumsum": lambda x: x.cumsum(1),
    "index_select": lambda x: x.index_select(1, torch.tensor([1, 0])),
    "cat": lambda x: torch.cat([x, x], 1),
    "repeat": lambda x: x.repeat(1, 2, 1, 1),
}
DEEP: dict[str, Program] = {
    "max_unpool3d": lambda x: F.max_unpool3d(x, _places(x, 8), [2, 2, 2]),
    "max_pool3d": lambda x: F.max_pool3d(x, 2, return_indices=True),
    "avg_pool3d": lambda x: F.avg_pool3d(x, 2),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, 2),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, 2),
    "interpolate trilinear": lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
    "pad reflect 3d": lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), mode="reflect"),
    "pad replicate 3d": lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), mode="replicate"),
}
FORMATS: dict[int, torch.memory_format] = {4: torch.channels_last, 5: torch.channels_last_3d}


def _parts(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, tuple) else [value]


def _check(program: Program, shapes: Sequence[Sequence[int]], last: bool, dynamic: bool) -> None:
    compiled = jitmagic.jit(lambda x: program(x), dynamic=dynamic)
    for shape in shapes:
        x = torch.linspace(-2, 2, torch.Size(shape).numel()).view(*shape)
        if last:
            x = x.contiguous(memory_format=FORMATS[len(shape)])
        for requires_grad in (False, True):
            ours, eagers = (x.clone().requires_grad_(requires_grad) for _ in range(2))
            have, wanted = _parts(compiled(ours)), _parts(program(eagers))
            torch.testing.assert_close(have, wanted, rtol=1e-4, atol=1e-4)
            assert [t.stride() for t in have] == [t.stride() for t in wanted]
            if requires_grad:
                for made in (have, wanted):
                    made[0].sum().backward()
                torch.testing.assert_close(ours.grad, eagers.grad, rtol=1e-4, atol=1e-4)
                assert ours.grad is not None and eagers.grad is not None
                assert ours.grad.stride() == eagers.grad.stride()


@pytest.mark.parametrize("last", [False, True], ids=["row-major", "channels_last"])
@pytest.mark.parametrize("name", [*FLAT, *DEEP])
def test_at_two_sizes(name: str, last: bool) -> None:
    if name in FLAT:
        _check(FLAT[name], [(2, 8, 4, 6), (3, 8, 6, 8)], last, dynamic=True)
    else:
        _check(DEEP[name], [(2, 8, 4, 6, 4), (3, 8, 6, 4, 4)], last, dynamic=True)


@pytest.mark.parametrize("name", [*FLAT, *DEEP])
def test_large_ones_in_channels_last(name: str) -> None:
    if name in FLAT:
        _check(FLAT[name], [(2, 8, 32, 48)], True, dynamic=False)
    else:
        _check(DEEP[name], [(2, 8, 8, 8, 16)], True, dynamic=False)
