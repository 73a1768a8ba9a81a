"""Input tensors of fuzz programs: one call makes values, dtype, memory layout and grad from a seed.

The text of a program holds these calls, so a find is reproduced by its source alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["LAYOUTS", "VALUES", "living_on", "tensor"]

LAYOUTS = ("plain", "transposed", "strided", "offset", "expanded", "overlapping", "padded")
VALUES = ("normal", "special", "ones", "positive")
DEVICE = "cpu"  # where they live, see living_on
_SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 1e-3, 88.0)


@contextmanager
def living_on(device: str) -> Iterator[None]:
    """Inputs are made there while the context lasts.

    Never while programs are generated: what a generator tries and drops raises on the CPU, and ends
    the process on a GPU.
    """
    global DEVICE
    before, DEVICE = DEVICE, device
    try:
        yield
    finally:
        DEVICE = before


def tensor(
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    layout: str = "plain",
    values: str = "normal",
    grad: bool = False,
) -> Tensor:
    """A tensor whose elements depend on shape, dtype, seed and kind alone."""
    generator = torch.Generator().manual_seed(seed)
    made = _laid_out(_elements(shape, dtype, values, generator).to(DEVICE), layout)
    return made.requires_grad_() if grad else made


def _elements(
    shape: tuple[int, ...], dtype: torch.dtype, values: str, generator: torch.Generator
) -> Tensor:
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if values == "ones":
        return torch.ones(shape, dtype=dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return _real_or_complex(shape, dtype, values, generator)
    low = 0 if dtype == torch.uint8 or values == "positive" else -6
    made = torch.randint(low, 7, shape, generator=generator).to(dtype)
    if values == "special":
        limits = torch.iinfo(dtype)
        extremes = torch.tensor([limits.min, limits.max, 0, 1], dtype=dtype)
        chosen = torch.randint(0, 4, shape, generator=generator)
        made = torch.where(torch.rand(shape, generator=generator) < 0.3, extremes[chosen], made)
    return made


def _real_or_complex(
    shape: tuple[int, ...], dtype: torch.dtype, values: str, generator: torch.Generator
) -> Tensor:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    made = torch.randn(shape, generator=generator, dtype=wide) * 1.5
    if values == "positive":
        made = made.abs().to(wide) + 0.1
    if values == "special" and not dtype.is_complex:
        chosen = torch.randint(0, len(_SPECIAL), shape, generator=generator)
        extremes = torch.tensor(_SPECIAL, dtype=wide)[chosen]
        made = torch.where(torch.rand(shape, generator=generator) < 0.3, extremes, made)
    return made.to(dtype)


def _laid_out(made: Tensor, layout: str) -> Tensor:
    """The same elements in other memory; where a layout does not suit the shape, plain."""
    shape = made.shape
    if layout == "transposed" and made.dim() >= 2:
        return made.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "strided" and made.dim() >= 1:
        store = made.new_zeros((*shape[:-1], shape[-1] * 2))
        view = store[..., ::2]
        return view.copy_(made)
    if layout == "offset":
        store = made.new_zeros(made.numel() + 1)
        return store[1:].view(shape).copy_(made)
    if layout == "padded" and made.dim() >= 2:
        store = made.new_zeros((*shape[:-1], shape[-1] + 3))
        return store[..., 1 : 1 + shape[-1]].copy_(made)
    if layout == "expanded" and made.dim() >= 1 and shape[0]:
        return made[:1].clone().expand(shape)
    if layout == "overlapping" and made.dim() == 2 and made.numel():
        store = torch.cat([made.reshape(-1), made.reshape(-1)])
        return store.as_strided(shape, (1, 1))
    return made
