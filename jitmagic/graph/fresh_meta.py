"""A new tensor as a shape rule gives it: on the meta device, row-major unless strides are given."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["META", "fresh_meta"]

META = torch.device("meta")


def fresh_meta(
    shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None
) -> torch.Tensor:
    if strides is None:
        return torch.empty(shape, dtype=dtype, device=META)
    return torch.empty_strided(shape, strides, dtype=dtype, device=META)
