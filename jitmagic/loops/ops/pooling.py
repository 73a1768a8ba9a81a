"""Lowers pooling with short windows on the CPU: each element of a window is one load.

Backwards read, for each element of the image, the windows that have it. ATen's kernels are not
fused with what is around them: ReLU and a 3x3 maximum of 8x64x64x64 elements took 17 ms. Elements
are combined in ATen's order, so that zeros keep their signs and sums their bits. On a GPU its own
kernels stay.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from math import prod

import torch

from ...symbols.size import Dimension, Size
from ..builder import Decline, LoopBuilder, Out
from ..expr import Expr, add, floordiv, mod, plus, times
from ..ir import IndexValue, Value
from ..registry import lowers
from ..tensor_view import Point, TensorView
from ..values import HALVES, cast, compute, constant, opmath, where
from .indexing import between, both_of, masked_load, window_element

__all__: list[str] = []

_MOST = 25  # elements of a window
_Place = tuple[Point, Value | None]  # and whether there is such an element; None: always


class _Windows:
    """Describes windows over the last two dimensions of an image: sizes of the image and of the
    pooled one, and of the windows.
    """

    def __init__(
        self,
        image: Sequence[Dimension],
        pooled: Sequence[Dimension],
        size: Sequence[int],
        step: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int] = (1,),
    ) -> None:
        self.image, self.pooled = image[-2:], pooled[-2:]
        self.size, self.step, self.padding, self.dilation = map(
            _pair, (size, step or size, padding, dilation)
        )
        if prod(self.size) > _MOST:
            raise Decline("long pooling windows")

    @property
    def overlap_in_steps(self) -> bool:
        """Return whether windows overlap, and neighbours do not begin at neighbouring elements."""
        return any(1 < step < size for size, step in zip(self.size, self.step, strict=True))

    def elements(self, point: Point) -> Iterator[_Place]:
        """Yield the places of a window's elements, in ATen's order."""
        rows, columns = ([self._element(point, d, n) for n in range(self.size[d])] for d in (0, 1))
        return _pairs(point, rows, columns)

    def covering(self, point: Point) -> Iterator[_Place]:
        """Yield the windows without dilation that have an element, in ATen's order."""
        most = [-(-size // step) for size, step in zip(self.size, self.step, strict=True)]
        rows, columns = (
            [self._window(point, d, back) for back in reversed(range(most[d]))] for d in (0, 1)
        )
        return _pairs(point, rows, columns)

    def count(self, point: Point, dtype: torch.dtype) -> Value:
        """Return how many elements of a window the image has, without a dilation."""
        counts: list[Value] = []
        for d, size in enumerate(self.size):
            begin = plus(times(point[d - 2], self.step[d]), -self.padding[d])
            end = compute("minimum", IndexValue(plus(begin, size)), self.image[d])
            counts.append(compute("sub", end, compute("maximum", IndexValue(begin), 0)))
        return cast(compute("mul", *counts), dtype)

    def first(self, point: Point) -> Value:
        """Return the position in the image of a window's first element, without a dilation."""
        row, column = (
            compute("maximum", IndexValue(self._element(point, d, 0)[0]), 0) for d in (0, 1)
        )
        return compute("add", compute("mul", row, self.image[1]), column)

    def position(self, place: Point) -> Value:
        """Return the position in the image of an element."""
        return IndexValue(add(times(place[-2], self.image[1]), place[-1]))

    def _element(self, point: Point, d: int, number: int) -> tuple[Expr, Value | None]:
        first = number * self.dilation[d] - self.padding[d]
        return window_element(point[d - 2], self.step[d], first, self.pooled[d], self.image[d])

    def _window(self, point: Point, d: int, back: int) -> tuple[Expr, Value | None]:
        """Return a window along one dimension, counted back from the last one that has a point."""
        step, count = self.step[d], self.pooled[d]
        position = plus(point[d - 2], self.padding[d])
        at = plus(floordiv(position, step), -back)
        last = (self.image[d] - 1 + self.padding[d]) // step - back
        may_end = isinstance(count, Size) or isinstance(last, Size) or last >= count
        exists = between(at, 0 if back else None, count if may_end else None)
        left = self.size[d] - back * step
        has_point = None if left >= step else between(mod(position, step), None, left)
        return at, both_of(exists, has_point)


def _pairs(
    point: Point,
    rows: Sequence[tuple[Expr, Value | None]],
    columns: Sequence[tuple[Expr, Value | None]],
) -> Iterator[_Place]:
    for (row, has_row), (column, has_column) in itertools.product(rows, columns):
        yield (*point[:-2], row, column), both_of(has_row, has_column)


def _pair(given: Sequence[int]) -> tuple[int, int]:
    return given[0], given[-1]


def _require_cpu(x: TensorView) -> None:
    if x.device.type != "cpu":
        raise Decline("pooling on this device has its own kernels")
    if x.numel == 0 or not x.dtype.is_floating_point:
        raise Decline("pooling of nothing, or of integers")


def _gradient(
    builder: LoopBuilder,
    out: Out,
    x: TensorView,
    windows: _Windows,
    part: Callable[[Point, Point, Value | None], Value],
) -> TensorView:
    """Return the gradient of an image. `part(point, place, mask)`: what an element at `point` gets
    from the window at `place`.
    """
    _require_cpu(x)
    if x.dtype in HALVES:
        raise Decline("ATen rounds each term of a sum of halves")
    if windows.dilation != (1, 1):
        raise Decline("dilated pooling windows")
    # 3x3 windows with step 2 of a row-major 8x64x64x64 image took 40 ms, ATen's kernel 10.
    if windows.overlap_in_steps and builder.stride(x)[-3:-2] != (1,):
        raise Decline("windows of row-major images overlap")

    def value(point: Point) -> Value:
        total: Value = constant(0, x.dtype)
        for place, mask in windows.covering(point):
            total = compute("add", total, part(point, place, mask))
        return total

    return builder.pointwise(out, value)


@lowers("max_pool2d_with_indices.default")
def max_pool2d_with_indices(
    builder: LoopBuilder,
    out: Out,
    x: TensorView,
    size: Sequence[int],
    step: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> list[TensorView | None]:
    _require_cpu(x)
    pooled = next(spec.shape for spec in out.specs if spec is not None)
    windows = _Windows(x.shape, pooled, size, step, padding, dilation)
    wide, has_positions = opmath(x.dtype), out.part(1) is not None
    if has_positions and windows.dilation != (1, 1):
        raise Decline("positions in dilated pooling windows")

    def best(point: Point) -> tuple[Value, Value]:
        most: Value = constant(-float("inf"), wide)
        position: Value = windows.first(point) if has_positions else constant(0, torch.int64)
        for place, mask in windows.elements(point):
            one = cast(masked_load(builder, x, place, mask, -float("inf")), wide)
            is_more = compute("logical_or", compute("gt", one, most), compute("isnan", one))
            most = where(is_more, one, most)
            if has_positions:
                position = where(is_more, windows.position(place), position)
        return cast(most, x.dtype), position

    return builder.used(out, [lambda point: best(point)[0], lambda point: best(point)[1]])


@lowers("max_pool2d_with_indices_backward.default")
def max_pool2d_with_indices_backward(
    builder: LoopBuilder,
    out: Out,
    grad: TensorView,
    x: TensorView,
    size: Sequence[int],
    step: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: TensorView,
) -> TensorView:
    windows = _Windows(x.shape, grad.shape, size, step, padding, dilation)

    def part(point: Point, place: Point, mask: Value | None) -> Value:
        position = masked_load(builder, indices, place, mask, -1)
        is_chosen = compute("eq", position, windows.position(point))
        return where(is_chosen, masked_load(builder, grad, place, mask), 0)

    return _gradient(builder, out, x, windows, part)


def _divides_equally(
    ceil_mode: bool, padding: Sequence[int], count_include_pad: bool, override: int | None
) -> bool:
    """Return whether all windows are divided by the same number."""
    return override is not None or (not ceil_mode and (count_include_pad or not any(padding)))


@lowers("avg_pool2d.default")
def avg_pool2d(
    builder: LoopBuilder,
    out: Out,
    x: TensorView,
    size: Sequence[int],
    step: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> TensorView:
    _require_cpu(x)
    is_equal = _divides_equally(ceil_mode, padding, count_include_pad, divisor_override)
    if not is_equal and count_include_pad:
        raise Decline("windows that end beyond the padding")
    windows, wide = _Windows(x.shape, out.spec.shape, size, step, padding), opmath(x.dtype)

    def value(point: Point) -> Value:
        total: Value = constant(0, wide)
        for place, mask in windows.elements(point):
            total = compute("add", total, cast(masked_load(builder, x, place, mask), wide))
        count = divisor_override or prod(windows.size) if is_equal else windows.count(point, wide)
        return cast(compute("truediv", total, count), x.dtype)

    return builder.pointwise(out, value)


@lowers("avg_pool2d_backward.default")
def avg_pool2d_backward(
    builder: LoopBuilder,
    out: Out,
    grad: TensorView,
    x: TensorView,
    size: Sequence[int],
    step: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> TensorView:
    if not _divides_equally(ceil_mode, padding, count_include_pad, divisor_override):
        raise Decline("windows of different numbers of elements")
    windows = _Windows(x.shape, grad.shape, size, step, padding)
    count = divisor_override or prod(windows.size)

    def part(point: Point, place: Point, mask: Value | None) -> Value:
        return compute("truediv", masked_load(builder, grad, place, mask), count)

    return _gradient(builder, out, x, windows, part)
