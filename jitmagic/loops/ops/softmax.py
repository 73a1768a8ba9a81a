"""Softmax and its kin, when they come undecomposed: one nest over the rows, nested reductions
inside.

The arithmetic is in the opmath dtype from end to end and rounds once, as eager's own kernels do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..builder import Builder, Out
from ..ir import Value
from ..registry import lowers
from ..tensor_view import Point, TensorView
from ..values import cast, compute, opmath
from .views import wrap_dim

__all__: list[str] = []

Row = Callable[[Point], Value]


def _rowwise(
    builder: Builder,
    out: Out,
    x: TensorView,
    dim: int,
    value: Callable[[Point, Row, _Line], Value],
) -> TensorView:
    wide = opmath(torch.promote_types(x.dtype, out.spec.dtype))
    dim = wrap_dim(dim, len(x.shape))

    def read(point: Point) -> Value:
        return cast(builder.load(x, point), wide)

    line = _Line(builder, x.shape[dim] if x.shape else 1, dim)
    inner = (dim,) if x.shape else ()
    return builder.pointwise(out, lambda point: value(point, read, line), inner)


class _Line:
    """Reductions along the one dimension, at a point of the full tensor."""

    def __init__(self, builder: Builder, size: int, dim: int) -> None:
        self.builder, self.size, self.dim = builder, size, dim

    def combine(self, op: str, point: Point, value: Row) -> Value:
        if not point:
            return value(point)
        before, after = point[: self.dim], point[self.dim + 1 :]
        return self.builder.reduce(
            op, (self.size,), lambda inside: value((*before, *inside, *after))
        )


@lowers("_softmax.default")
def softmax(builder: Builder, out: Out, x: TensorView, dim: int, half_to_float: bool) -> TensorView:
    def value(point: Point, read: Row, line: _Line) -> Value:
        top = line.combine("max", point, read)

        def weight(at: Point) -> Value:
            return compute("exp", compute("sub", read(at), top))

        return compute("truediv", weight(point), line.combine("sum", point, weight))

    return _rowwise(builder, out, x, dim, value)


@lowers("_log_softmax.default")
def log_softmax(
    builder: Builder, out: Out, x: TensorView, dim: int, half_to_float: bool
) -> TensorView:
    def value(point: Point, read: Row, line: _Line) -> Value:
        top = line.combine("max", point, read)

        def weight(at: Point) -> Value:
            return compute("exp", compute("sub", read(at), top))

        total = compute("log", line.combine("sum", point, weight))
        return compute("sub", compute("sub", read(point), top), total)

    return _rowwise(builder, out, x, dim, value)


def _backward(
    builder: Builder,
    out: Out,
    grad: TensorView,
    y: TensorView,
    dim: int,
    value: Callable[[Point, Row, Row, _Line], Value],
) -> TensorView:
    wide = opmath(grad.dtype)

    def read_y(point: Point) -> Value:
        return cast(builder.load(y, point), wide)

    return _rowwise(
        builder, out, grad, dim, lambda point, read, line: value(point, read, read_y, line)
    )


@lowers("_softmax_backward_data.default")
def softmax_backward(
    builder: Builder, out: Out, grad: TensorView, y: TensorView, dim: int, dtype: torch.dtype
) -> TensorView:
    def value(point: Point, g: Row, y: Row, line: _Line) -> Value:
        total = line.combine("sum", point, lambda at: compute("mul", g(at), y(at)))
        return compute("mul", compute("sub", g(point), total), y(point))

    return _backward(builder, out, grad, y, dim, value)


@lowers("_log_softmax_backward_data.default")
def log_softmax_backward(
    builder: Builder, out: Out, grad: TensorView, y: TensorView, dim: int, dtype: torch.dtype
) -> TensorView:
    def value(point: Point, g: Row, y: Row, line: _Line) -> Value:
        total = line.combine("sum", point, g)
        return compute("sub", g(point), compute("mul", compute("exp", y(point)), total))

    return _backward(builder, out, grad, y, dim, value)
