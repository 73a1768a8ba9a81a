"""sum() of constants, of symbolic numbers, and of live containers without reading their items.

The result is that of Python's additions, in order. CPython 3.12 and later correct floats for
rounding errors, up to the first item that is not a number; the graph does the same, to the last
bit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from ....guards.contents import rounded_sum, sum_compensation
from ....guards.source import Reduced, Source
from ....symbols.scalar import apply, evaluate
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.sets import SetValue
from ...values.numbers.arithmetic import Scalar, python_node
from ...values.numbers.number import NumberValue, scalar_of
from ...values.objects.constants import ConstantValue, fold
from ...values.objects.operators import binary, unpack
from ..registry import handles
from .numbers import live_numbers, members

__all__: list[str] = []

_CORRECTS = sum([0.1] * 10) == 1.0  # CPython 3.12 and later


@handles(sum)
def _sum(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if (known := _live_sum(machine, args, kwargs)) is not None:
        return known
    start = args[1] if len(args) > 1 else kwargs.get("start", machine.constant(0))
    items = members(machine, args[0])
    if isinstance(args[0], SetValue) and not all(map(_is_integer, items)):
        items = unpack(machine, args[0])  # the order affects the last digit
    return _added(machine, start, items)


def _is_integer(value: Value) -> bool:
    return isinstance(value, ConstantValue) and type(value.value) is int


def _live_sum(machine: Machine, args: Args, kwargs: Kwargs) -> Value | None:
    """Return the sum of a live container and the items appended to it; None: read the items."""
    if (live := live_numbers(args, kwargs)) is None:
        return None
    numbers, path, appended = live
    has_floats = any(type(number) is float for number in numbers)
    if _CORRECTS and appended and (has_floats or _count_of_numbers(machine, appended)[1]):
        return _continued_sum(machine, numbers, path, appended)
    return _added(machine, machine.wrap(sum(numbers), Reduced(path, sum)), appended)


def _continued_sum(
    machine: Machine, numbers: list[float], path: Source, appended: Sequence[Value]
) -> Value | None:
    """Add items to the sum of a live container's floats.

    Two numbers represent that sum: the rounded value and the compensation.
    """
    if any(type(number) is not float for number in numbers):
        return None
    high, low = (
        machine.wrap(function(numbers), Reduced(path, function))
        for function in (rounded_sum, sum_compensation)
    )
    count, _ = _count_of_numbers(machine, appended)
    if any(scalar_of(machine, item.realize(machine)) is None for item in appended[:count]):
        return None
    return _plainly(machine, _corrected(machine, high, low, appended[:count]), appended[count:])


def _plainly(machine: Machine, start: Value, items: Sequence[Value]) -> Value:
    result = start
    for item in items:
        result = binary(machine, "+", result.realize(machine), item.realize(machine))
    return result


def _added(machine: Machine, start: Value, items: Sequence[Value]) -> Value:
    """Return the sum of all from left to right."""
    numbers = [start, *items]
    count, first = _count_of_numbers(machine, numbers) if _CORRECTS else (0, None)
    if first is None:
        return _plainly(machine, start, items)
    numbers, rest = [one.realize(machine) for one in numbers[:count]], numbers[count:]
    if all(isinstance(one, NumberValue | ConstantValue) for one in numbers) and any(
        isinstance(one, NumberValue) for one in numbers
    ):
        begun = _plainly(machine, numbers[0], numbers[1 : first + 1])
        made = _corrected(machine, begun, machine.constant(0.0), numbers[first + 1 :])
    else:
        made = fold(machine, _total, *numbers)
    return _plainly(machine, made, rest)


def _total(start: Any, *numbers: Any) -> Any:
    return sum(numbers, start)


def _count_of_numbers(machine: Machine, items: Sequence[Value]) -> tuple[int, int | None]:
    """Return how many numbers come before another item, and the index of the first float."""
    first = None
    for place, item in enumerate(items):
        kind = item.realize(machine).python_type(machine)
        if kind not in (int, float, bool):
            return place, first
        if kind is float and first is None:
            first = place
    return len(items), first


def _corrected(machine: Machine, high: Value, low: Value, numbers: Sequence[Value]) -> Value:
    """Return `sum(numbers)` continued from a sum of `high` with the compensation `low`."""
    for number in (one.realize(machine) for one in numbers):
        if number.python_type(machine) is float:
            low = binary(machine, "+", low, _float_operation(machine, "lost", high, number))
        high = binary(machine, "+", high, number)
    return _float_operation(machine, "corrected", high, low)


def _float_operation(machine: Machine, op: str, left: Value, right: Value) -> Value:
    """Apply a float operation that is not a Python operator."""
    a, b = scalar_of(machine, left), scalar_of(machine, right)
    assert a is not None
    assert b is not None
    expr = apply(op, float, a.expr, b.expr)
    if not isinstance(left, NumberValue) and not isinstance(right, NumberValue):
        return machine.constant(evaluate(expr, {}))
    operands = (one.argument(machine, full=True) for one in (a, b))
    node = _NODES[op](partial(python_node, machine), *operands)
    return NumberValue(Scalar(float, expr, node))


def _lost(call: Callable[..., Node], a: Node, b: Node) -> Node:
    made = call(operator.add, a, b)
    of_a = call(operator.add, call(operator.sub, a, made), b)
    of_b = call(operator.add, call(operator.sub, b, made), a)
    return call(torch.where, call(operator.ge, call(torch.abs, a), call(torch.abs, b)), of_a, of_b)


def _with_error(call: Callable[..., Node], a: Node, error: Node) -> Node:
    counts = call(torch.logical_and, call(torch.isfinite, error), call(operator.ne, error, 0))
    return call(torch.where, counts, call(operator.add, a, error), a)


_NODES = {"lost": _lost, "corrected": _with_error}
