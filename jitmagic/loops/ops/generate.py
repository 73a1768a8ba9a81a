"""Lowers tensor factories: fills, ranges and coordinates, as nests without loads.

The schedule inlines them into their readers, so that they need no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...symbols.size import Dimension, Size, expr_of
from ..builder import Decline, LoopBuilder, Out
from ..expr import Integer, add, mul
from ..ir import IndexValue, Value
from ..registry import lowers, operand_value
from ..tensor_view import NumberView, Point, TensorView
from ..values import FLOATS, Number, cast, compute, constant, number, where

__all__: list[str] = []


def _fill(builder: LoopBuilder, out: Out, value: Number | NumberView) -> TensorView:
    made = operand_value(builder, value, (out.spec.dtype,), ())
    if made is None:
        raise Decline("a fill without a value")
    return builder.pointwise(out, lambda point: made)


@lowers("full.default", numbers=True)
def full(
    builder: LoopBuilder, out: Out, size: Any, value: Number | NumberView, **_: Any
) -> TensorView:
    return _fill(builder, out, value)


@lowers("fill.Scalar")
def fill_scalar(
    builder: LoopBuilder, out: Out, x: TensorView, value: Number, **_: object
) -> TensorView:
    return _fill(builder, out, value)


@lowers("fill.Tensor")
def fill_tensor(builder: LoopBuilder, out: Out, x: TensorView, value: TensorView) -> TensorView:
    if value.device != out.spec.device and not builder.is_cpu_scalar(value):
        raise Decline("a copy between devices")
    return builder.pointwise(out, lambda point: builder.load(value, point))


@lowers("zero.default")
def zero(builder: LoopBuilder, out: Out, *_: object, **__: object) -> TensorView:
    return _fill(builder, out, 0)


@lowers("empty.memory_format", "empty_like.default", "new_empty.default", "empty_strided.default")
@lowers("new_empty_strided.default", "empty_permuted.default")
def empty(builder: LoopBuilder, out: Out, *_: Any, **__: object) -> TensorView:
    """Fill with zeros: uninitialised memory may hold anything."""
    if torch.are_deterministic_algorithms_enabled():
        raise Decline("deterministic algorithms are on: torch may fill it with nan")
    return _fill(builder, out, 0)


# -- ranges ---------------------------------------------------------------------------------------


def _range(start: Number, step: Number, dtype: torch.dtype) -> Callable[[Point], Value]:
    """Return start + i * step."""
    # Floats are computed in float64 and rounded once, as in eager on the CPU.
    if dtype is torch.bool:
        raise Decline("a range of bools, which eager refuses")
    if dtype not in FLOATS:
        if not isinstance(start, int) or not isinstance(step, int):
            raise Decline("an integer range with a float step")
        return lambda point: IndexValue(add(mul(point[0], step), Integer(start)))

    def value(point: Point) -> Value:
        position = cast(IndexValue(point[0]), torch.float64)
        scaled = compute("mul", position, float(step))
        return cast(compute("add", scaled, float(start)), dtype)

    return value


@lowers("arange.start_step")
def arange(
    builder: LoopBuilder, out: Out, start: Number, end: Number, step: Number, **_: object
) -> TensorView:
    return builder.pointwise(out, _range(start, step, out.spec.dtype))


def _number(size: Dimension) -> Any:
    """Return a size as an operand."""
    return size if isinstance(size, int) else IndexValue(expr_of(size))


@lowers("linspace.default")
def linspace(
    builder: LoopBuilder, out: Out, start: Number | Size, end: Number | Size, steps: int, **_: Any
) -> TensorView:
    """Count from both ends, so that both are exact, as RangeFactoriesKernel.cpp does; a single step
    is the start.
    """
    dtype = out.spec.dtype
    if dtype not in (torch.float32, torch.float64):
        raise Decline("a linspace in a dtype other than float32 and float64")
    parts: Dimension = max(steps - 1, 1)
    first, last = number(start, dtype), number(end, dtype)
    if isinstance(parts, Size) or isinstance(start, Size) or isinstance(end, Size):
        step = compute("truediv", compute("sub", last, first), number(parts, dtype))
    else:
        step = constant((end - start) / parts, dtype)
    half = _number(max(steps // 2, 1))

    def value(point: Point) -> Value:
        position = cast(IndexValue(point[0]), dtype)
        left = cast(IndexValue(add(mul(point[0], -1), expr_of(steps - 1))), dtype)
        rising = compute("fma", step, position, first)
        falling = compute("fma", compute("neg", step), left, last)
        return where(compute("lt", IndexValue(point[0]), half), rising, falling)

    return builder.pointwise(out, value)


@lowers("eye.default", "eye.m")
def eye(builder: LoopBuilder, out: Out, *_: object, **__: object) -> TensorView:
    def value(point: Point) -> Value:
        on = compute("eq", IndexValue(point[0]), IndexValue(point[1]))
        return cast(on, out.spec.dtype)

    return builder.pointwise(out, value)
