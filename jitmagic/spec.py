"""Defines TensorSpec: the facts about a tensor apart from its data.

Guards check specs, trace and autograd propagate them on meta tensors, and loops describe buffers by
them. Frozen and hashable. A size is a Python integer, or a Size if it is dynamic; strides are in
elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .lazy_dataclass import dataclass

__all__ = ["TensorSpec", "contiguous_strides", "has_loose_strides", "spec_of"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Holds shape, stride (in elements), dtype, device and autograd facts of one tensor."""

    shape: tuple[int, ...]  # here and below: a dynamic size is a Size, which acts as an int
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False
    is_leaf: bool = True
    cls: type = torch.Tensor
    storage_offset: int = 0

    @property
    def nbytes(self) -> int:
        """Return the bytes of all elements; those of expanded dimensions count each time."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        grad = " grad" if self.requires_grad else ""
        return f"{dtype}[{', '.join(map(str, self.shape))}] {self.device}{grad}"


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Return the spec of a strided tensor."""
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
    """Return whether some dimension certainly has size 0 or 1, so that its stride is
    insignificant.
    """
    return any(type(extent) is int and extent < 2 for extent in shape)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return row-major strides in elements; a size of 0 counts as 1, as in torch."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return tuple(strides)
