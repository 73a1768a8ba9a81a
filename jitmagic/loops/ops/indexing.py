"""Lowers indexing: run-time indexes, joins, pads and permutations of elements, as one nest each.

A run-time index is checked as in eager: out of range raises. Ops that refuse negative indexes
(gather, embedding, index_select, scatter) map them to an index that is out of range. Eager writes
duplicate run-time indexes in order (index_put, scatter): these ops fall back to ATen, except sums
(accumulating.py) and a scatter of one element per row, which is a `where` per element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch

from ...symbols.size import Dimension, Size, expr_of, hint_of
from ..builder import Decline, LoopBuilder, Out
from ..expr import (
    Expr,
    Integer,
    ValueIndex,
    add,
    mul,
    plus,
    quotient,
    remainder,
    times,
)
from ..ir import IndexValue, Load, Value
from ..registry import lowers, operand_value
from ..tensor_view import (
    Point,
    TensorView,
    broadcast_point,
    broadcast_shapes,
    formal_point,
    reshape_point,
)
from ..values import INTEGERS, Number, cast, compute, constant, where
from .views import clamp_index, wrap_dim

__all__ = [
    "at_index",
    "at_indices",
    "between",
    "both_of",
    "masked_load",
    "on_diagonal",
    "require_extent",
    "require_index",
    "run_time_index",
    "window_element",
]

_MOST_JOINED = 8  # a cat of more is left to ATen, which copies each tensor at once


def run_time_index(value: Value, extent: int, negative: bool) -> Expr:
    """Return a checked index; unless `negative`, values below 0 are out of range."""
    value = cast(value, torch.int64)
    if not negative:
        value = where(compute("lt", value, 0), extent, value)
    return ValueIndex(value, extent)


def require_index(index: TensorView) -> None:
    if index.dtype not in INTEGERS - {torch.uint8}:
        raise Decline("an index tensor of another dtype than integers")


def at_indices(
    builder: LoopBuilder, x: TensorView, indices: Sequence[TensorView | None]
) -> tuple[tuple[int, ...], Callable[[Point], Sequence[Expr]]]:
    """Return the shape of x[indices], and a function from its points to points of x."""
    used = {d: part for d, part in enumerate(indices) if part is not None}
    for part in used.values():
        require_index(part)
    shape = broadcast_shapes(part.shape for part in used.values())
    if shape is None:
        raise Decline("the index tensors do not broadcast")
    dims = list(used)
    together = dims == list(range(dims[0], dims[0] + len(dims)))
    start = dims[0] if together else 0
    others = [size for d, size in enumerate(x.shape) if d not in used]
    sizes = (*others[:start], *shape, *others[start:])
    if 0 not in sizes:
        require_extent(x, *used)

    def index_of(point: Point) -> Sequence[Expr]:
        along = point[start : start + len(shape)]
        rest = iter((*point[:start], *point[start + len(shape) :]))
        return [
            run_time_index(builder.load(used[d], along), size, negative=True)
            if d in used
            else next(rest)
            for d, size in enumerate(x.shape)
        ]

    return sizes, index_of


@lowers("index.Tensor", "_unsafe_index.Tensor")
def index(
    builder: LoopBuilder, out: Out, x: TensorView, indices: Sequence[TensorView | None]
) -> TensorView:
    _, index_of = at_indices(builder, x, indices)
    if 0 in out.spec.shape:
        return builder.pointwise(out, lambda point: constant(0, x.dtype))
    return builder.pointwise(out, lambda point: builder.load(x, index_of(point)))


def require_extent(x: TensorView, *dims: int) -> None:
    """Decline size-1 dimensions: views drop them from their maps, and the index check with them."""
    if any(x.shape[d] < 2 for d in dims):
        raise Decline("a run-time index into a dimension of fewer than two elements")


def at_index(
    builder: LoopBuilder, x: TensorView, dim: int, index: TensorView
) -> tuple[int, Callable[[Point, Point], Point]]:
    """Return `dim` counted from the front, and a function that puts the index read at its second
    point into the first. Negative indexes are out of range.
    """
    require_index(index)
    if not x.shape:
        raise Decline("a run-time index into a scalar")
    dim = wrap_dim(dim, len(x.shape))
    require_extent(x, dim)

    def moved(point: Point, where: Point) -> Point:
        at = run_time_index(builder.load(index, where), x.shape[dim], negative=False)
        return (*point[:dim], at, *point[dim + 1 :])

    return dim, moved


@lowers("index_select.default")
def index_select(
    builder: LoopBuilder, out: Out, x: TensorView, dim: int, index: TensorView
) -> TensorView:
    at, moved = at_index(builder, x, dim, index)
    return builder.pointwise(out, lambda point: builder.load(x, moved(point, point[at : at + 1])))


@lowers("embedding.default")
def embedding(
    builder: LoopBuilder, out: Out, weight: TensorView, index: TensorView, *_: object, **__: object
) -> TensorView:
    require_index(index)
    require_extent(weight, 0)

    def value(point: Point) -> Value:
        row = run_time_index(builder.load(index, point[:-1]), weight.shape[0], negative=False)
        return builder.load(weight, (row, point[-1]))

    return builder.pointwise(out, value)


@lowers("gather.default")
def gather(
    builder: LoopBuilder, out: Out, x: TensorView, dim: int, index: TensorView, **_: object
) -> TensorView:
    if not index.shape:
        raise Decline("a gather by a scalar")
    moved = at_index(builder, x, dim, index)[1]
    return builder.pointwise(out, lambda point: builder.load(x, moved(point, point)))


@lowers("scatter.value", "scatter.src")
def scatter(
    builder: LoopBuilder,
    out: Out,
    x: TensorView,
    dim: int,
    index: TensorView,
    source: TensorView | Number,
    **options: object,
) -> TensorView:
    """Lower a scatter of one index per row: test at every element whether it is the one written."""
    require_index(index)
    if options or not x.shape:
        raise Decline("a scatter that reduces, or into a scalar")
    dim = wrap_dim(dim, len(x.shape))
    expected = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    if index.shape != expected or (isinstance(source, TensorView) and source.shape != expected):
        raise Decline("a scatter of several elements per row, whose order matters")

    def value(point: Point) -> Value:
        target = IndexValue(
            run_time_index(builder.load(index, point), x.shape[dim], negative=False)
        )
        hit = compute("eq", IndexValue(point[dim]), target)
        written = operand_value(builder, source, (x.dtype,), point)
        if written is None:
            raise Decline("a scatter without a source")
        return where(hit, written, builder.load(x, point))

    return builder.pointwise(out, value)


# -- joins and pads -------------------------------------------------------------------------------


def between(index: Expr, low: Dimension | None, high: Dimension | None) -> Value | None:
    """Return low <= index < high as a condition; None if both bounds are open."""
    position = IndexValue(index)
    above = None if low is None else compute("ge", position, low)
    below = None if high is None else compute("lt", position, high)
    if above is None or below is None:
        return below if above is None else above
    return compute("logical_and", above, below)


def window_element(
    at: Expr, step: int, first: int, count: Dimension, extent: Dimension
) -> tuple[Expr, Value | None]:
    """Return the position at * step + first of a window's element, for at < count, and whether the
    image has one there: a condition, or None for always.
    """
    place = plus(times(at, step), first)
    may_end = isinstance(extent, Size) or (count - 1) * step + first >= extent
    return place, between(place, 0 if first < 0 else None, extent if may_end else None)


def masked_load(
    builder: LoopBuilder, x: TensorView, point: Point, mask: Value | None, fill: Number = 0
) -> Value:
    """Return an element of x, or `fill` where the mask is false."""
    if mask is None:
        return builder.load(x, point)
    load = builder.load(x, point)
    if not isinstance(load, Load):
        raise Decline("not a load")
    return Load(load.buffer, load.index, load.dtype, mask, constant(fill, load.dtype).value)


@lowers("cat.default", "concat.default")
def cat(builder: LoopBuilder, out: Out, tensors: Sequence[TensorView], dim: int = 0) -> TensorView:
    dim = wrap_dim(dim, len(out.spec.shape))
    parts = [x for x in tensors if x.shape != (0,) and x.shape[dim]]
    if len(parts) > _MOST_JOINED:
        raise Decline(f"a cat of more than {_MOST_JOINED} tensors")
    starts = [sum(x.shape[dim] for x in parts[:n]) for n in range(len(parts))]

    def value(point: Point) -> Value:
        joined: Value | None = None
        for n in reversed(range(len(parts))):
            x, start = parts[n], starts[n]
            first, last = n == 0, n == len(parts) - 1
            end = start + x.shape[dim]
            mask = between(point[dim], None if first else start, None if last else end)
            at = list(point)
            at[dim] = plus(point[dim], -start)
            element = cast(masked_load(builder, x, _masked_point(x, at), mask), out.spec.dtype)
            before_end = between(point[dim], None, end)
            joined = (
                element
                if joined is None or before_end is None
                else where(before_end, element, joined)
            )
        return constant(0, out.spec.dtype) if joined is None else joined

    return builder.pointwise(out, value)


def _masked_point(x: TensorView, at: Sequence[Expr]) -> Point:
    """Return the point of a masked load; dimensions of size 1 are read at 0."""
    return broadcast_point(x.shape, at)


@lowers("constant_pad_nd.default")
def constant_pad_nd(
    builder: LoopBuilder, out: Out, x: TensorView, pad: Sequence[int], fill: Number = 0
) -> TensorView:
    rank = len(x.shape)
    before = {rank - 1 - n: pad[2 * n] for n in range(len(pad) // 2)}

    def value(point: Point) -> Value:
        at, mask = list(point), None
        for d, first in before.items():
            at[d] = plus(point[d], -first)
            low = first if first > 0 else None
            high = first + x.shape[d] if first + x.shape[d] < out.spec.shape[d] else None
            mask = both_of(mask, between(point[d], low, high))
        if x.numel == 0:
            return constant(fill, x.dtype)
        return masked_load(builder, x, tuple(at), mask, fill)

    return builder.pointwise(out, value)


def both_of(a: Value | None, b: Value | None) -> Value | None:
    """Return the conjunction of two conditions; None is a condition that always holds."""
    if a is None or b is None:
        return b if a is None else a
    return compute("logical_and", a, b)


# -- pieces of a tensor replaced ------------------------------------------------------------------


def _inside(index: Expr, first: int, size: int, step: int, extent: int) -> Value | None:
    """Return whether `index` is in slice(first, ..., step) of `size` elements; None: always."""
    last = first + (size - 1) * step + 1
    in_range = between(index, first or None, last if last < extent else None)
    if step == 1:
        return in_range
    on = compute("eq", IndexValue(remainder(plus(index, -first), expr_of(step))), 0)
    return both_of(in_range, on)


@lowers("slice_scatter.default")
def slice_scatter(
    builder: LoopBuilder,
    out: Out,
    x: TensorView,
    source: TensorView,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> TensorView:
    dim = wrap_dim(dim, len(x.shape))
    first = clamp_index(start, x.shape[dim], 0)
    return _replace(builder, out, x, source, dim, first, step)


def _replace(
    builder: LoopBuilder,
    out: Out,
    x: TensorView,
    source: TensorView,
    dim: int,
    first: int,
    step: int,
) -> TensorView:
    """Return x with a slice of dimension `dim` taken from source."""

    def value(point: Point) -> Value:
        rest = cast(builder.load(x, point), out.spec.dtype)
        if not source.numel:
            return rest
        extent = out.spec.shape[dim]
        mask = _inside(point[dim], first, source.shape[dim], step, extent)
        at = list(point)
        at[dim] = quotient(plus(point[dim], -first), expr_of(step))
        element = cast(
            masked_load(builder, source, _masked_point(source, at), mask), out.spec.dtype
        )
        return element if mask is None else where(mask, element, rest)

    return builder.pointwise(out, value)


@lowers("select_scatter.default")
def select_scatter(
    builder: LoopBuilder, out: Out, x: TensorView, source: TensorView, dim: int, index: int
) -> TensorView:
    dim = wrap_dim(dim, len(x.shape))
    extent, *rest = map(hint_of, (x.shape[dim], *x.shape[:dim], *x.shape[dim + 1 :]))
    if not -extent <= hint_of(index) < extent or [*map(hint_of, source.shape)] != rest:
        raise Decline("the source does not fit: the ATen kernel raises")
    return _replace(builder, out, x, _unsqueezed(source, dim), dim, index % x.shape[dim], 1)


@lowers("diagonal_scatter.default")
def diagonal_scatter(
    builder: LoopBuilder,
    out: Out,
    x: TensorView,
    source: TensorView,
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
) -> TensorView:
    rank = len(x.shape)
    rows, columns = (x.shape[wrap_dim(dim, rank)] for dim in (dim1, dim2))
    above = hint_of(offset)
    length = max(0, min(hint_of(rows) + min(above, 0), hint_of(columns) - max(above, 0)))
    if hint_of(source.shape[-1]) != length or len(source.shape) != rank - 1:
        raise Decline("the source does not fit the diagonal: the ATen kernel raises")
    return on_diagonal(builder, out, x, source, offset, dim1, dim2)


def on_diagonal(
    builder: LoopBuilder,
    out: Out,
    x: TensorView | None,
    source: TensorView,
    offset: int,
    dim1: int,
    dim2: int,
) -> TensorView:
    """Return x (None: zeros) with a diagonal taken from source, whose last dimension runs
    along it.
    """
    rank = len(out.spec.shape)
    dim1, dim2 = wrap_dim(dim1, rank), wrap_dim(dim2, rank)

    dtype = out.spec.dtype

    def value(point: Point) -> Value:
        rest = constant(0, dtype) if x is None else cast(builder.load(x, point), dtype)
        if not source.numel:
            return rest
        on = compute("eq", IndexValue(point[dim2]), IndexValue(plus(point[dim1], offset)))
        along = plus(point[dim1], min(offset, 0))
        others = [part for d, part in enumerate(point) if d not in (dim1, dim2)]
        element = cast(
            masked_load(builder, source, _masked_point(source, (*others, along)), on), dtype
        )
        return where(on, element, rest) if x is not None else element

    return builder.pointwise(out, value)


def _unsqueezed(x: TensorView, dim: int) -> TensorView:
    shape = (*x.shape[:dim], 1, *x.shape[dim:])
    return _reshaped(x, shape)


def _reshaped(x: TensorView, shape: tuple[int, ...]) -> TensorView:
    return x.remap(shape, reshape_point(x.shape, shape, formal_point(shape)))


# -- elements in another order --------------------------------------------------------------------


def _permuted(
    builder: LoopBuilder, out: Out, x: TensorView, source_point: Callable[[Point], Sequence[Expr]]
) -> TensorView:
    return builder.pointwise(out, lambda point: builder.load(x, tuple(source_point(point))))


@lowers("flip.default")
def flip(builder: LoopBuilder, out: Out, x: TensorView, dims: Sequence[int]) -> TensorView:
    turned = {wrap_dim(d, len(x.shape)) for d in dims}
    return _permuted(
        builder,
        out,
        x,
        lambda point: [
            plus(mul(part, -1), x.shape[d] - 1) if d in turned else part
            for d, part in enumerate(point)
        ],
    )


@lowers("roll.default")
def roll(
    builder: LoopBuilder, out: Out, x: TensorView, shifts: Sequence[int], dims: Sequence[int] = ()
) -> TensorView:
    if not dims:
        flat = _reshaped(x, (prod(x.shape),))
        return _permuted(builder, out, flat, lambda point: [_rolled(out, point, shifts[0])])
    moves: dict[int, int] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        moves[wrap_dim(dim, len(x.shape))] = moves.get(wrap_dim(dim, len(x.shape)), 0) + shift
    return _permuted(
        builder,
        out,
        x,
        lambda point: [
            remainder(plus(part, -moves.get(d, 0)), expr_of(max(x.shape[d], 1)))
            for d, part in enumerate(point)
        ],
    )


def _rolled(out: Out, point: Point, shift: int) -> Expr:
    flat: Expr = Integer(0)
    for size, part in zip(out.spec.shape, point, strict=True):
        flat = add(times(flat, size), part)
    return remainder(plus(flat, -shift), expr_of(max(prod(out.spec.shape), 1)))
