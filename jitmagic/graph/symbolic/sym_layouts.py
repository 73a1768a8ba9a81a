"""Decides layouts of tensors with symbolic sizes (c10/core/Contiguity.h, c10/core/MemoryFormat.h).

Input: sizes and strides, `int | Size`. Output: contiguity and density, decided by `size_oblivious`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...symbols.size import Dimension, is_same, size_oblivious

__all__ = ["has_strides_along", "is_dense", "is_dense_along"]


def is_dense_along(order: Sequence[int], sizes: list[Dimension], strides: list[Dimension]) -> bool:
    """Return whether the elements are contiguous, the first dimension of `order` moving fastest."""
    if len(order) != len(sizes):
        return False
    if any(size_oblivious("==", size, 0) for size in sizes):
        return True
    expected: Dimension = 1
    for place in order:
        if size_oblivious("==", sizes[place], 1):
            continue
        if not is_same(strides[place], expected) and size_oblivious("!=", strides[place], expected):
            return False
        expected = expected * sizes[place]
    return True


def has_strides_along(order: Sequence[int], sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Compute TensorImpl::is_strides_like_channels_last for an order of the dimensions, innermost
    first; ambiguous layouts are row-major.
    """
    if len(order) != len(sizes) or size_oblivious("==", strides[1], 0):
        return False
    least: Dimension = 0
    for place in order:
        if size_oblivious("==", sizes[place], 0) or size_oblivious("<", strides[place], least):
            return False
        if place == 0 and size_oblivious("==", least, strides[1]):
            return False
        is_many = size_oblivious(">", sizes[place], 1)
        least = strides[place] * sizes[place] if is_many else strides[place]
    return True


def is_dense(order: object, sizes: list[Dimension], strides: list[Dimension]) -> bool:
    """Return whether some order of the dimensions is dense."""
    moving = [place for place, size in enumerate(sizes) if size_oblivious("!=", size, 1)]
    if any(size_oblivious("==", sizes[place], 0) for place in moving):
        return True
    expected: Dimension = 1
    while moving:
        place = next((p for p in moving if size_oblivious("==", strides[p], expected)), None)
        if place is None:
            return False
        expected = expected * sizes[place]
        moving.remove(place)
    return True
