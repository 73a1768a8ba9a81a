"""Computes the order of dimensions in memory."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["memory_order"]


def memory_order(strides: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the dimensions from the widest stride to the narrowest, and the inverse
    permutation.
    """
    # Equal strides keep the order of the dimensions: dimensions of size 1 often share a stride.
    order = sorted(range(len(strides)), key=lambda d: (-strides[d], d))
    return order, [order.index(d) for d in range(len(order))]
