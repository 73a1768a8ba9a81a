"""What shape rules make: tensors on the meta device, row-major unless strides are given."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["META", "broadcast", "fresh_meta", "same_shape"]

META = torch.device("meta")


def fresh_meta(
    shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None
) -> torch.Tensor:
    if strides is None:
        return torch.empty(shape, dtype=dtype, device=META)
    return torch.empty_strided(shape, strides, dtype=dtype, device=META)


def same_shape(a: Sequence[int], b: Sequence[int]) -> bool:
    """The number of dimensions first: comparing symbolic sizes makes guards."""
    return len(a) == len(b) and tuple(a) == tuple(b)


def broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    """The shape of an elementwise result."""
    rank = max(map(len, shapes))
    made = [1] * rank
    for shape in shapes:
        for i, extent in enumerate(shape, rank - len(shape)):
            if made[i] == 1:
                made[i] = extent
            elif extent not in (1, made[i]):
                raise RuntimeError(f"shapes {[list(s) for s in shapes]} do not broadcast")
    return made
