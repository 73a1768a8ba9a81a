"""Strides: the row-major ones of a shape, and the order of dimensions in memory of any."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["contiguous_strides", "memory_order"]


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements (an extent of 0 counts as 1, as torch does)."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return tuple(strides)


def memory_order(strides: Sequence[int]) -> tuple[list[int], list[int]]:
    """The dimensions from the widest stride to the narrowest, and the permutation back."""
    order = sorted(range(len(strides)), key=lambda d: (-strides[d], d))
    return order, [order.index(d) for d in range(len(order))]
