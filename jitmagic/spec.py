"""TensorSpec: all that is known about a tensor without its data.

The vocabulary shared by guards (what to check), trace and autograd (shape propagation on meta
tensors) and loops (what a buffer looks like). Frozen and hashable; sizes are Python integers, or a
Size where they differ from call to call; strides are in elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = ["TensorSpec", "contiguous_strides", "has_loose_strides", "spec_of"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, stride (elements), dtype, device and autograd facts of one tensor."""

    shape: tuple[int, ...]  # here and below: or Size, which computes like an int
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False
    is_leaf: bool = True
    cls: type = torch.Tensor
    storage_offset: int = 0

    @property
    def nbytes(self) -> int:
        """Of its elements, also of those that share memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        grad = " grad" if self.requires_grad else ""
        return f"{dtype}[{', '.join(map(str, self.shape))}] {self.device}{grad}"


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Read the spec off a strided tensor."""
    return TensorSpec(
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.dtype,
        tensor.device,
        tensor.requires_grad,
        tensor.is_leaf,
        type(tensor),
        int(tensor.storage_offset()),
    )


def has_loose_strides(shape: Sequence[int]) -> bool:
    """Whether some strides lead nowhere, for sure: those of extents of 0 and 1."""
    return any(type(extent) is int and extent < 2 for extent in shape)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements (an extent of 0 counts as 1, as torch does)."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return tuple(strides)
