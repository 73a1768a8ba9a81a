"""Lowers pooling with short windows on the CPU: each element of a window is one load.

ATen computes indexes too, which only a backward reads: ReLU and a 3x3 maximum of 8x64x64x64
elements took 17 ms. Elements are combined in ATen's order, so that zeros keep their signs and sums
their bits. On a GPU its own kernels stay.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import prod

import torch

from ...symbols.size import Dimension, Size
from ..builder import Decline, LoopBuilder, Out
from ..expr import Expr, plus, times
from ..ir import Value
from ..registry import lowers
from ..tensor_view import Point, TensorView
from ..values import cast, compute, constant, opmath, where
from .indexing import between, both_of, masked_load

__all__: list[str] = []

_MOST = 25  # elements of a window


class _Windows:
    """Describes windows over the last two dimensions of an image."""

    def __init__(
        self,
        out: Out,
        x: TensorView,
        size: Sequence[int],
        step: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int] = (1,),
    ) -> None:
        self.x, self.counts = x, out.spec.shape[-2:]
        self.size, self.step, self.padding, self.dilation = map(
            _pair, (size, step or size, padding, dilation)
        )
        if x.device.type != "cpu":
            raise Decline("pooling on this device has its own kernels")
        if prod(self.size) > _MOST or x.numel == 0 or not x.dtype.is_floating_point:
            raise Decline("long pooling windows")

    def elements(self, point: Point) -> Iterator[tuple[Point, Value | None]]:
        """Yield the places of a window's elements, in ATen's order, and whether the image has them;
        None: always.
        """
        rows, columns = ([self.place(point, d, n) for n in range(self.size[d])] for d in (0, 1))
        for (row, has_row), (column, has_column) in itertools.product(rows, columns):
            yield (*point[:-2], row, column), both_of(has_row, has_column)

    def count(self, point: Point, dtype: torch.dtype) -> Value:
        """Return how many elements of a window the image has."""
        counts: list[Value] = []
        for d, size in enumerate(self.size):
            total: Value = constant(0, dtype)
            for _, mask in (self.place(point, d, n) for n in range(size)):
                one = constant(1, dtype) if mask is None else where(mask, constant(1, dtype), 0)
                total = compute("add", total, one)
            counts.append(total)
        return compute("mul", *counts)

    def place(self, point: Point, dimension: int, number: int) -> tuple[Expr, Value | None]:
        """Return where an element lies along one dimension, and whether the image has it."""
        extent: Dimension = self.x.shape[dimension - 2]
        first = number * self.dilation[dimension] - self.padding[dimension]
        step, count = self.step[dimension], self.counts[dimension]
        at = plus(times(point[dimension - 2], step), first)
        may_end = isinstance(extent, Size) or (count - 1) * step + first >= extent
        return at, between(at, 0 if first < 0 else None, extent if may_end else None)


def _pair(given: Sequence[int]) -> tuple[int, int]:
    return given[0], given[-1]


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
    part = out.part(0)
    if part is None or out.part(1) is not None:
        raise Decline("the positions of maxima are needed")
    windows, wide = _Windows(part, x, size, step, padding, dilation), opmath(x.dtype)

    def value(point: Point) -> Value:
        most: Value = constant(-float("inf"), wide)
        for at, mask in windows.elements(point):
            one = cast(masked_load(builder, x, at, mask, -float("inf")), wide)
            is_more = compute("logical_or", compute("gt", one, most), compute("isnan", one))
            most = where(is_more, one, most)
        return cast(most, x.dtype)

    return [builder.nest(out.name, [(part, value, ())])[0], None]


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
    if ceil_mode and count_include_pad and divisor_override is None:
        raise Decline("windows that end beyond the padding")
    windows, wide = _Windows(out, x, size, step, padding), opmath(x.dtype)

    def value(point: Point) -> Value:
        total: Value = constant(0, wide)
        for at, mask in windows.elements(point):
            total = compute("add", total, cast(masked_load(builder, x, at, mask), wide))
        count: Value | int = divisor_override or prod(windows.size)
        if divisor_override is None and not count_include_pad:
            count = windows.count(point, wide)
        return cast(compute("truediv", total, count), x.dtype)

    return builder.pointwise(out, value)
