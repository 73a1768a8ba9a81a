"""Lowers rearrangements of whole tensors: copies whose index map is arithmetic.

Pixel and channel shuffles, rotations, diagonals embedded, nearest-neighbour enlargement by whole
factors.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..builder import Decline, LoopBuilder, Out
from ..expr import Expr, add, floordiv, mod, mul, plus, times
from ..ir import Value
from ..registry import lowers
from ..tensor_view import Point, TensorView
from ..values import constant
from .indexing import on_diagonal
from .views import wrap_dim

__all__: list[str] = []


@lowers("pixel_shuffle.default")
def pixel_shuffle(builder: LoopBuilder, out: Out, x: TensorView, factor: int) -> TensorView:
    def value(point: Point) -> Value:
        *lead, channel, row, column = point
        inside = add(mul(mod(row, factor), factor), mod(column, factor))
        source = add(mul(channel, factor * factor), inside)
        at = (*lead, source, floordiv(row, factor), floordiv(column, factor))
        return builder.load(x, at)

    return builder.pointwise(out, value)


@lowers("pixel_unshuffle.default")
def pixel_unshuffle(builder: LoopBuilder, out: Out, x: TensorView, factor: int) -> TensorView:
    def value(point: Point) -> Value:
        *lead, channel, row, column = point
        inside = mod(channel, factor * factor)
        down = add(mul(row, factor), floordiv(inside, factor))
        right = add(mul(column, factor), mod(inside, factor))
        return builder.load(x, (*lead, floordiv(channel, factor * factor), down, right))

    return builder.pointwise(out, value)


@lowers("channel_shuffle.default", "native_channel_shuffle.default")
def channel_shuffle(builder: LoopBuilder, out: Out, x: TensorView, groups: int) -> TensorView:
    each = x.shape[1] // groups

    def value(point: Point) -> Value:
        channel = point[1]
        source = add(times(mod(channel, groups), each), floordiv(channel, groups))
        return builder.load(x, (point[0], source, *point[2:]))

    return builder.pointwise(out, value)


@lowers("rot90.default")
def rot90(
    builder: LoopBuilder, out: Out, x: TensorView, k: int = 1, dims: Sequence[int] = (0, 1)
) -> TensorView:
    first, second = (wrap_dim(d, len(x.shape)) for d in dims)

    def turned(position: Expr, d: int) -> Expr:
        return plus(mul(position, -1), x.shape[d] - 1)

    def value(point: Point) -> Value:
        at = list(point)
        a, b = point[first], point[second]
        match k % 4:
            case 1:
                at[first], at[second] = b, turned(a, second)
            case 2:
                at[first], at[second] = turned(a, first), turned(b, second)
            case 3:
                at[first], at[second] = turned(b, first), a
        return builder.load(x, at)

    return builder.pointwise(out, value)


@lowers("diag_embed.default")
def diag_embed(
    builder: LoopBuilder, out: Out, x: TensorView, offset: int = 0, dim1: int = -2, dim2: int = -1
) -> TensorView:
    return on_diagonal(builder, out, None, x, offset, dim1, dim2)


@lowers("trace.default")
def trace(builder: LoopBuilder, out: Out, x: TensorView) -> TensorView:
    zero = constant(0, out.spec.dtype)
    if x.dtype is not out.spec.dtype or zero.dtype.itemsize < 4:
        raise Decline("a trace that accumulates in another dtype")
    return builder.pointwise(
        out,
        lambda point: builder.reduce(
            "sum", (min(x.shape),), lambda at: builder.load(x, (at[0], at[0])), zero
        ),
    )


@lowers("upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default")
def upsample_nearest(
    builder: LoopBuilder, out: Out, x: TensorView, size: Sequence[int], *scales: float | None
) -> TensorView:
    """Enlarge by whole factors, for which rounding cannot matter; other factors fall back to
    ATen.
    """
    factors = [new // max(old, 1) for new, old in zip(size, x.shape[2:], strict=True)]
    exact = all(f * old == new for f, old, new in zip(factors, x.shape[2:], size, strict=True))
    given = zip(scales, factors, strict=False)
    if not exact or any(scale is not None and scale != factor for scale, factor in given):
        raise Decline("nearest neighbours by a fractional factor")

    def value(point: Point) -> Value:
        moved = (floordiv(position, f) for position, f in zip(point[2:], factors, strict=True))
        return builder.load(x, (*point[:2], *moved))

    return builder.pointwise(out, value)
