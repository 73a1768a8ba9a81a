"""Registers lowerings: a table from ATen overload names to functions that write them as loops.

`@lowers("sum.dim_IntList")` registers a function `(builder, out, *args, **kwargs) -> view(s)`.
`@pointwise("add.Tensor", rule="arith")` registers a function of scalar Values, one per operand;
operands are promoted by the named rule (promotion.py), broadcast, and the result is cast to the
result's dtype. The keys are names, not overload objects, so that a torch without one op still
imports the table. A lowering that cannot handle its arguments raises Decline before it adds
anything.

A formula is written once: in autograd/decompose if smaller ATen operations can express it, so that
the partitioner and the scheduler see its parts, else here. Operators in both places are canonical
forms that a decomposition ends in (full, arange.start_step), or cases that one declines
(masked_fill.Tensor by a scalar of another device).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

import torch

from ..late_tables import LateTable
from ..operators.scalar import SCALARS, ScalarOperation
from ..symbols.expr import Expr
from ..symbols.size import Size, SizeFloat
from ..symbols.symbolic_numbers import Apply, kind_of
from ..symbols.symbolic_numbers import Number as Float
from ..torch_types import AnyFunction
from .builder import LOOP_DTYPES, Decline, LoopBuilder, Out
from .ir import IndexValue, Value
from .promotion import RULES, Operand
from .tensor_view import NumberView, Point, TensorView, broadcast_shapes
from .values import FLOATS, Number, cast, compute, constant, round_to
from .vector_tails import tail_at

__all__ = [
    "FALLBACKS",
    "LOWERINGS",
    "check_numbers",
    "fallback",
    "lowering_of",
    "lowers",
    "one_to_one",
    "operand_value",
    "pointwise",
    "pointwise_lowering",
]

Lowering = AnyFunction
Function = TypeVar("Function", bound=Callable[..., Any])
Scalar = Callable[..., Value]
LOWERINGS: LateTable[str, Lowering] = LateTable("lowerings")
# Ops that are always ATen calls, with the reason.
FALLBACKS: LateTable[str, str] = LateTable("fallbacks")


def lowers(*overloads: str, numbers: bool = False) -> Callable[[Function], Function]:
    """Register a lowering for ATen overloads named like "sum.dim_IntList". `numbers`: it accepts
    NumberViews.
    """

    def register(function: Function) -> Function:
        for overload in overloads:
            LOWERINGS[f"aten.{overload}"] = function if numbers else _of_known_numbers(function)
        return function

    return register


def _of_known_numbers(function: Lowering) -> Lowering:
    @wraps(function)
    def declining(builder: LoopBuilder, out: Out, *args: object, **kwargs: object) -> object:
        check_numbers((*args, *kwargs.values()))
        return function(builder, out, *args, **kwargs)

    return declining


def check_numbers(arguments: Iterable[object]) -> None:
    """Decline if an argument is a number that is known only at run time."""
    if any(isinstance(argument, NumberView) for argument in arguments):
        raise Decline("a number that is known only at run time")


def fallback(reason: str, *overloads: str) -> None:
    """Register ops that are always an ATen call, with the reason."""
    FALLBACKS.update((f"aten.{overload}", reason) for overload in overloads)


def pointwise(
    *overloads: str, rule: str = "arith", operands: int | None = None
) -> Callable[[Scalar], Scalar]:
    """Register a scalar function. `operands`: the number of leading arguments that are operands
    (default: all positional parameters); others are passed through. A keyword parameter `result`
    receives the result's dtype, and `tail` whether eager computes the point by scalar code
    (vector_tails.py).
    """

    def register(function: Scalar) -> Scalar:
        count = function.__code__.co_argcount if operands is None else operands
        return_value = pointwise_lowering(function, rule, count)
        for overload in overloads:
            LOWERINGS[f"aten.{overload}"] = return_value
        return function

    return register


def pointwise_lowering(function: Scalar, rule: str, count: int) -> Lowering:
    """Return the lowering that applies a scalar function to `count` promoted, broadcast
    operands.
    """
    code = function.__code__
    operands = code.co_varnames[:count]
    named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    wants_result, wants_tail = "result" in named, "tail" in named

    def lowering(builder: LoopBuilder, out: Out, *args: Any, **kwargs: Any) -> TensorView:
        later = [kwargs.pop(name, None) for name in operands[len(args) :]]
        given: tuple[Operand, ...] = (*args[:count], *later)
        check_numbers((*args[count:], *kwargs.values()))
        casts, dtype = RULES[rule](given)
        _check(given, dtype, out)
        if wants_result:
            kwargs["result"] = dtype

        def value(point: Point) -> Value:
            values = (
                operand_value(builder, operand, through, point)
                for operand, through in zip(given, casts, strict=True)
            )
            if wants_tail:
                kwargs["tail"] = tail_at(builder, out, given, point)
            return cast(function(*values, *args[count:], **kwargs), dtype)

        return builder.pointwise(out, value)

    return lowering


def one_to_one(row: ScalarOperation) -> Lowering:
    """Return the lowering of an ATen operation that is this scalar operation and nothing else."""

    def function(*operands: Value) -> Value:
        dtype = operands[-1].dtype
        folded = row.of_whole is not None or (row.of_bools and dtype is torch.bool)
        if not (folded or row.takes(dtype)):
            raise Decline(f"eager refuses {dtype} here")
        return compute(row.name, *operands)

    return pointwise_lowering(function, row.rule, row.arity)


def lowering_of(overload: str) -> Lowering | None:
    """Return the lowering of an overload, which may be one of a scalar operation that was
    registered after the import.
    """
    if (found := LOWERINGS.get(overload)) is not None:
        return found
    rows = (row for row in tuple(SCALARS.values()) if overload in row.overloads)
    return next(map(one_to_one, rows), None)


def _check(operands: tuple[Operand, ...], dtype: torch.dtype, out: Out) -> None:
    if out.spec.dtype is not dtype:
        raise Decline(f"promotion gives {dtype} where eager gives {out.spec.dtype}")
    if dtype not in LOOP_DTYPES:
        raise Decline(f"{dtype} has no loops")
    shapes = [operand.shape for operand in operands if isinstance(operand, TensorView)]
    if broadcast_shapes(shapes) != out.spec.shape:
        raise Decline("the operands do not broadcast to the result's shape")


def operand_value(
    builder: LoopBuilder, operand: Operand, through: tuple[torch.dtype, ...], point: Point
) -> Value | None:
    """Return the operand at a point, cast through the given dtypes; None stays None."""
    if operand is None:
        return None
    if isinstance(operand, NumberView):
        return _read_number(builder, operand, through)
    if not isinstance(operand, TensorView):
        return _number_value(operand, through)
    value = builder.load(operand, point)
    for dtype in through:
        value = cast(value, dtype)
    return value


_BY_SYMBOL = {row.symbol: row.name for row in SCALARS.values()}


def _float_value(expr: Expr) -> Value:
    """Return a float computed from sizes, in float64 as in Python and C++."""
    if kind_of(expr) is int:
        return cast(IndexValue(expr), torch.float64)
    match expr:
        case Float(value):
            return constant(value, torch.float64)
        case Apply("float", (part,)):
            return _float_value(part)
        case Apply("+" | "-" | "*" | "/" | "neg" | "sqrt" as op, parts):
            return compute(_BY_SYMBOL.get(op, op), *map(_float_value, parts))
    raise Decline(f"{expr!r} is a float computed from sizes")


def _size_value(size: Size, through: tuple[torch.dtype, ...]) -> Value:
    """Return a size as a kernel argument, rounded as eager rounds an int."""
    if isinstance(size, SizeFloat):
        number = _float_value(size.expr)
        for dtype in through:
            number = cast(number, dtype)
        return number
    value: Value = IndexValue(size.expr)
    for dtype in through:
        if dtype not in LOOP_DTYPES:
            raise Decline(f"{dtype} has no loops")
        if dtype is not torch.bool:  # eager refuses overflow, for float16 too
            facts = torch.finfo(dtype) if dtype in FLOATS else torch.iinfo(dtype)
            if not (size >= int(facts.min) and size <= int(facts.max)):
                raise Decline(f"the number {size} does not fit into {dtype}")
        value = cast(value, dtype)
    return value


def _read_number(
    builder: LoopBuilder, number: NumberView, through: tuple[torch.dtype, ...]
) -> Value:
    value = builder.load(number.view, ())
    for dtype in through:
        if dtype not in FLOATS and dtype is not torch.bool:
            raise Decline(f"a float operand of an op on {dtype}")
        value = cast(value, dtype)
    return value


def _number_value(number: Number | Size, through: tuple[torch.dtype, ...]) -> Value:
    if isinstance(number, Size):
        return _size_value(number, through)
    for dtype in through:
        if dtype not in LOOP_DTYPES:
            raise Decline(f"{dtype} has no loops")
        if dtype in FLOATS:
            number = round_to(number, dtype)
        elif dtype is torch.bool:
            number = bool(number)
        elif isinstance(number, float):
            raise Decline(f"a float operand of an op on {dtype}")
        elif not torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max:
            raise Decline(f"the number {number} does not fit into {dtype}")
    return constant(number, through[-1])
