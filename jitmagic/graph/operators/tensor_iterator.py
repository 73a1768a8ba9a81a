"""Computes the layout that ATen's TensorIterator gives a fresh result (ATen/TensorIterator.cpp).

Input: meta tensors, whose sizes may be symbols. Output: the meta tensor of the result, whose
strides are ordered like those of the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key
from typing import Any

import torch

from ...spec import contiguous_strides
from ..fresh_meta import META, broadcast, fresh_meta, same_shape
from ..symbolic.sym_node import as_dimensions, has_strides_along, in_layout

__all__ = [
    "CHANNELS_LAST",
    "Tensors",
    "dense",
    "elementwise",
    "has_insignificant_strides",
    "is_of_images",
    "iterator_strides",
    "like",
    "strides_along",
]

Tensors = Sequence[torch.Tensor]
CHANNELS_LAST = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}  # the fastest dimension first


def elementwise(tensors: Tensors, dtype: torch.dtype) -> torch.Tensor:
    """Return a fresh result of TensorIterator."""
    first = tensors[0]
    shape: Sequence[int] = first.shape
    if all(same_shape(t.shape, shape) and t.is_contiguous() for t in tensors):
        return fresh_meta(shape, dtype)
    shape = broadcast([as_dimensions(t.shape) for t in tensors])
    return fresh_meta(shape, dtype, iterator_strides(shape, tensors))


def is_of_images(x: torch.Tensor) -> bool:
    """Return whether at::suggest_memory_format gives channels_last."""
    order = CHANNELS_LAST.get(x.dim())
    sizes, strides = as_dimensions(x.shape), as_dimensions(x.stride())
    return order is not None and has_strides_along(order, sizes, strides)


def has_insignificant_strides(value: object) -> bool:
    """Return whether it is a tensor with insignificant strides, those of extents 0 and 1.

    It depends on the kernel whether they are kept: a number that it wraps as a tensor, say, is an
    operand of another shape, and then TensorIterator has no fast path.
    """
    if not isinstance(value, torch.Tensor) or any(type(n) is not int for n in value.shape):
        return False  # no kernel runs at symbolic sizes
    if 0 in value.shape or 1 not in value.shape:
        return 0 in value.shape
    rows = contiguous_strides(tuple(value.shape))
    sides = zip(value.shape, value.stride(), rows, strict=True)
    return any(n == 1 and in_layout("!=", have, row) for n, have, row in sides)


def iterator_strides(shape: Sequence[int], tensors: Tensors) -> tuple[int, ...]:
    """Compute strides of a fresh elementwise result (TensorIterator.cpp, reorder_dimensions)."""
    first = tensors[0].stride()
    if all(same_shape(t.shape, shape) for t in tensors):
        if all(t.is_contiguous() for t in tensors):
            return strides_along(shape, range(len(shape) - 1, -1, -1))
        if len(shape) == 4 and all(
            t.is_contiguous(memory_format=torch.channels_last) for t in tensors
        ):
            return strides_along(shape, (1, 3, 2, 0))
        if dense(shape, first) and all(t.stride() == first for t in tensors):
            return first
    rows = [_aligned(t, shape) for t in tensors]
    order = list(range(len(shape) - 1, -1, -1))
    for i in range(1, len(order)):
        at = i
        for before in range(i - 1, -1, -1):
            verdict = _compare(rows, shape, order[before], order[at])
            if verdict > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif verdict < 0:
                break
    return strides_along(shape, order)


def _aligned(tensor: torch.Tensor, shape: Sequence[int]) -> list[int]:
    """Return the strides of tensor against the broadcast shape, 0 where it is broadcast."""
    missing = len(shape) - tensor.dim()
    strides = [0] * missing
    for i, (extent, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True), missing):
        broadcast = in_layout("==", extent, 1) and in_layout("!=", shape[i], 1)
        strides.append(0 if broadcast else stride)
    return strides


def _compare(rows: list[list[int]], shape: Sequence[int], left: int, right: int) -> int:
    """Return 1 if `left` moves slower than `right` and should come after it, 0 if undecided."""
    for strides in rows:
        a, b = strides[left], strides[right]
        if in_layout("==", a, 0) or in_layout("==", b, 0):
            continue
        if in_layout("!=", a, b):
            return -1 if in_layout("<", a, b) else 1
        if in_layout(">", shape[left], shape[right]):
            return 1
    return 0


def strides_along(shape: Sequence[int], fastest_first: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of dense memory whose dimensions are given fastest first."""
    strides, step = [0] * len(shape), 1
    for dim in fastest_first:
        strides[dim] = step
        step *= shape[dim] if in_layout(">=", shape[dim], 1) else 1
    return tuple(strides)


def dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether the strides are non-overlapping and without gaps."""
    if any(type(extent) is int and extent == 0 for extent in shape):
        return True
    step = 1
    # By strides alone: the order of equal strides is irrelevant, and comparing extents adds guards.
    for stride, extent in sorted(zip(strides, shape, strict=True), key=_BY_STRIDE):
        if in_layout("==", extent, 1):
            continue
        if in_layout("!=", stride, step):
            return False
        step *= extent
    return True


def _in_order(a: tuple[int, int], b: tuple[int, int]) -> int:
    return -1 if in_layout("<", a[0], b[0]) else 0


_BY_STRIDE = cmp_to_key(_in_order)


def like(
    x: torch.Tensor, *, memory_format: torch.memory_format | None = None, **kwargs: Any
) -> torch.Tensor | None:
    """Infer clone, _to_copy, empty_like: a dense layout is kept, else it is TensorIterator's."""
    dtype = kwargs.get("dtype") or x.dtype
    if memory_format not in (None, torch.preserve_format):
        if memory_format is torch.contiguous_format:
            return fresh_meta(x.shape, dtype)
        return torch.empty(x.shape, dtype=dtype, device=META, memory_format=memory_format)
    if dense(x.shape, x.stride()):
        return fresh_meta(x.shape, dtype, x.stride())
    return fresh_meta(x.shape, dtype, iterator_strides(x.shape, [x]))
