"""TensorView represents a tensor of the graph as an index map over a buffer.

In: the view operations' parameters. Out: a TensorView whose `index` maps a point of the viewed
tensor to a point of the buffer. Maps are written over formal axes (one per dimension) and composed
by substitution, so a chain of views is one map and adds no step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from math import prod

import torch

from ..lazy_dataclass import dataclass
from ..symbols.size import Dimension, expr_of
from .expr import (
    Axis,
    AxisVar,
    Expr,
    Integer,
    add,
    coefficients,
    dimension,
    position,
    quotient,
    remainder,
    substitute,
    times,
)

__all__ = [
    "NumberView",
    "Point",
    "TensorView",
    "broadcast_point",
    "broadcast_shapes",
    "formal_point",
    "full_view",
    "reshape_point",
    "strided",
]

Point = tuple[Expr, ...]
ZERO = Integer(0)


@dataclass(frozen=True, slots=True)
class TensorView:
    """Views `buffer` through `index`: one expression per buffer dimension, over the formal axes."""

    buffer: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    index: Point

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def at(self, point: Sequence[Expr]) -> Point:
        """Return the buffer's point for a point of this view."""
        if self.index == formal_point(self.shape):
            return tuple(point)
        formals = formal_axes(self.shape)
        bindings = dict(zip(formals, point, strict=True))
        return tuple(substitute(part, bindings) for part in self.index)

    def remap(self, shape: tuple[int, ...], point: Sequence[Expr]) -> TensorView:
        """Return a view of shape `shape` that reads this one at `point` (over the new formal
        axes).
        """
        return TensorView(self.buffer, shape, self.dtype, self.device, self.at(point))


@lru_cache(maxsize=4096)
def formal_axes(shape: tuple[int, ...]) -> tuple[Axis, ...]:
    """Return the parameters of an index map over `shape`."""
    return tuple(Axis(f"v{d}", extent) for d, extent in enumerate(shape))


@lru_cache(maxsize=4096)
def formal_point(shape: tuple[int, ...]) -> Point:
    """Return the formal axes as expressions; dimensions of size 1 are the constant 0."""
    return tuple(ZERO if axis.extent == 1 else AxisVar(axis) for axis in formal_axes(shape))


@dataclass(frozen=True, slots=True)
class NumberView:
    """Represents a number that is known only at run time, in a 0-dim float64 tensor. It promotes
    like a Python float.
    """

    view: TensorView


def full_view(
    buffer: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> TensorView:
    """Return the view of a whole buffer."""
    return TensorView(buffer, shape, dtype, device, formal_point(shape))


def broadcast_point(shape: Sequence[int], point: Sequence[Expr]) -> Point:
    """Return the point at which a tensor of `shape` is read for a point of the broadcast result."""
    offset = len(point) - len(shape)
    return tuple(ZERO if size == 1 else point[offset + d] for d, size in enumerate(shape))


def broadcast_shapes(shapes: Iterable[Sequence[int]]) -> tuple[int, ...] | None:
    """Return the shape that all of them broadcast to, or None."""
    # torch's own function imports half of torch.
    result: list[int] = []
    for shape in shapes:
        result = [1] * (len(shape) - len(result)) + result
        offset = len(result) - len(shape)
        for d, size in enumerate(shape, offset):
            if result[d] == 1:
                result[d] = size
            elif size not in (1, result[d]):
                return None
    return tuple(result)


def reshape_point(old: Sequence[int], new: Sequence[int], point: Sequence[Expr]) -> Point:
    """Return the point of shape `old` with the row-major position that `point` has in shape
    `new`.
    """
    # Dimensions are matched in groups of equal products, which needs the fewest divisions.
    if prod(old) == 0:
        return (ZERO,) * len(old)
    result: list[Expr] = []
    i = j = 0
    while i < len(old):
        start = i
        flat: Expr = ZERO
        have, want = old[i], 1
        i += 1
        while have != want:
            if want < have:
                flat = add(times(flat, new[j]), point[j])
                want *= new[j]
                j += 1
            else:
                have *= old[i]
                i += 1
        result.extend(_digits(flat, old[start:i]))
    return tuple(result)


def _digits(flat: Expr, sizes: Sequence[int]) -> list[Expr]:
    """Return the row-major coordinates of the position `flat`."""
    found: list[Expr] = []
    for size in reversed(sizes[1:]):
        found.append(remainder(flat, expr_of(size)))
        flat = quotient(flat, expr_of(size))
    return [flat, *reversed(found)] if sizes else []


def strided(
    view: TensorView, stride: Sequence[int], sizes: Callable[[], Iterable[Dimension]]
) -> tuple[int, tuple[int, ...]] | None:
    """Return (offset, strides) of the view in a buffer of such strides; None if it is not strided.
    `sizes`: further sizes of the graph that an index may contain.
    """
    found = coefficients(position(view.index, stride))
    formals = formal_axes(view.shape)
    if found is None or any(axis not in formals for axis in found[1]):
        return None
    offset, steps = found

    def at(expr: Expr) -> int:
        return dimension(expr, chain(view.shape, stride, sizes()))

    return at(offset), tuple(at(steps.get(axis, ZERO)) for axis in formals)
