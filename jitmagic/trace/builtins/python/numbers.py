"""Numbers: conversions, arithmetic builtins, the math module on constants, and sum().

The result of sum() is that of Python's additions, in order. CPython 3.12 and later correct floats
for rounding errors, up to the first item that is not a number; the graph does the same, to the last
bit. Sums, minima and maxima of live containers do not read their items.
"""

from __future__ import annotations

import cmath
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from ....guards.contents import rounded_sum, sum_compensation
from ....guards.source import Reduced, Source
from ....symbols.symbolic_numbers import apply, evaluate
from ...breaks import GraphBreak, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.sequences import StoredItems, TupleValue
from ...values.containers.sets import SetValue
from ...values.numbers.arithmetic import Scalar, extreme, python_node, unary
from ...values.numbers.number import NumberValue, node_scalar, number_value, scalar_of
from ...values.objects.constants import ConstantValue, fold
from ...values.objects.operators import RemainingItems, binary, compare, is_none, unpack
from ..registry import calls, handles

__all__ = ["fold_call", "live_numbers", "members"]


_OF_SCALARS = {
    math.sqrt: "sqrt", math.exp: "exp", math.log: "log", math.tanh: "tanh", math.sin: "sin",
    math.cos: "cos", math.fabs: "abs",
}  # fmt: skip
_BY_METHOD: dict[Callable[..., object], str] = {
    abs: "__abs__",
    round: "__round__",
    float: "__float__",
    torch.sym_float: "__float__",
    int: "__int__",
    math.floor: "__floor__",
    math.ceil: "__ceil__",
    math.trunc: "__trunc__",
}


# Each is a comparison: of |x| with infinity, or (isnan) of x with itself.
_CLASSIFIED: dict[Callable[..., object], str] = {
    math.isfinite: "<",
    math.isinf: "==",
    math.isnan: "!=",
}
_PURE: list[Callable[..., object]] = [bin, oct, hex, complex]
_PURE += [
    one for module in (math, cmath) for one in vars(module).values()
    if callable(one) and not isinstance(one, type)
    and one not in (math.prod, *_CLASSIFIED, *_BY_METHOD)
]  # fmt: skip


def fold_call(
    machine: Machine, function: Callable[..., object], args: Args, kwargs: Kwargs, name: str = ""
) -> Value:
    """Evaluate a pure function of constants; breaks if an argument is not a constant."""
    if not all(one.is_constant(machine) for one in (*args, *kwargs.values())):
        name = name or getattr(function, "__name__", str(function))
        raise GraphBreak(UnsupportedArguments.of(name=name, what="not all are constants"))
    named = {name: value.as_constant(machine) for name, value in kwargs.items()}
    return fold(machine, lambda *given: function(*given, **named), *args)


def _register_pure(function: Callable[..., Any]) -> None:
    op = _OF_SCALARS.get(function)

    @handles(function)
    def pure(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if op is None or len(args) != 1 or kwargs:
            return fold_call(machine, function, args, kwargs)
        number = args[0]
        # math.sqrt(tensor) calls its `__float__`, which reads the data as float(tensor) does.
        if number.holds_data:
            number = number.call_method(machine, "__float__", [], {})
        number = number.operand(machine)
        if isinstance(number, NumberValue) and number.is_plain:
            made = unary(machine, op, number.scalar.as_float(machine))
            return number_value(machine, made)
        return fold_call(machine, function, [number], kwargs)


def _register_protocol(function: Callable[..., object], method: str) -> None:
    """Register a function that calls a method of its argument: `abs(x)` is `x.__abs__()`."""

    # int(base=16) is a TypeError of its own.
    @handles(function, like=(lambda x, /, base: None) if function is int else None)
    def asking(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        number = args[0] if len(args) == 1 else None
        is_scalar = isinstance(number, NumberValue) and number.kind is not bool
        is_array = method in ("__float__", "__int__") and args and args[0].holds_data
        if not args or (args[0].is_constant(machine) and not is_scalar and not is_array):
            return fold_call(machine, function, args, kwargs)
        return args[0].call_method(machine, method, args[1:], kwargs)


def _classified(
    function: Callable[..., object], machine: Machine, args: Args, kwargs: Kwargs
) -> Value:
    op = _CLASSIFIED[function]
    is_number = len(args) == 1 and isinstance(args[0], NumberValue)
    number = node_scalar(args[0]) if is_number else None
    if number is None or number.kind is int:
        return fold_call(machine, function, args, {})
    if function is math.isnan:
        return compare(machine, op, args[0], args[0])
    size = number_value(machine, unary(machine, "abs", number))
    return compare(machine, op, size, machine.constant(math.inf))


for _predicate in _CLASSIFIED:
    handles(_predicate)(partial(_classified, _predicate))
for _function in _PURE:
    _register_pure(_function)
for _function, _method in _BY_METHOD.items():
    _register_protocol(_function, _method)


@handles(pow)
def _pow(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2:
        return binary(machine, "**", *args)
    return fold_call(machine, pow, args, kwargs)


@handles(divmod)
def _divmod(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2 and any(isinstance(one, NumberValue) for one in args):
        # divmod() of floats gives exactly the results of `//` and `%`.
        return TupleValue([binary(machine, op, *args) for op in ("//", "%")])
    return fold_call(machine, divmod, args, kwargs)


@handles(math.prod)
def _prod(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    items = [item.realize(machine) for item in members(machine, args[0])] if args else []
    varying = [one for one in items if isinstance(one, NumberValue)]
    if kwargs or len(args) != 1 or not any(one.scalar.is_size for one in varying):
        return fold_call(machine, math.prod, args, kwargs)
    total: Value = machine.constant(1)
    for item in items:
        total = binary(machine, "*", total, item).realize(machine)
    return total


def live_numbers(args: Args, kwargs: Kwargs) -> tuple[list[float], Source, list[Value]] | None:
    """Return `ListStore.numbers` if a live container is the only argument."""
    if len(args) != 1 or kwargs or not isinstance(args[0], StoredItems):
        return None
    return args[0].store.numbers()


def members(machine: Machine, value: Value) -> list[Value]:
    """Return the items of an iterable whose order does not matter (that of a set is unknown)."""
    return value.store.values if isinstance(value, SetValue) else unpack(machine, value)


def _decide(function: Callable[[Iterable[bool]], bool], machine: Machine, iterable: Value) -> bool:
    """Return any() or all() of the truths; no item after the deciding one is asked."""
    # The order of a set is unknown, but the answer does not depend on it.
    if isinstance(iterable, SetValue):
        items: Iterable[Value] = iterable.store.values
    else:
        items = RemainingItems(machine, iterable.iterate(machine).realize(machine))
    return function(item.realize(machine).truth(machine) for item in items)


calls({
    bool: lambda machine, *value: bool(value) and value[0].truth(machine),
    any: partial(_decide, any),
    all: partial(_decide, all),
})  # fmt: skip


def _extreme(op: str, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Return the first item that no other is `op` of, by `key` if given."""
    if (live := live_numbers(args, kwargs)) is not None:
        function = min if op == "<" else max
        numbers, path, appended = live
        items = [machine.wrap(function(numbers), Reduced(path, function)), *appended]
    else:
        items = members(machine, args[0]) if len(args) == 1 else list(args)
    if "default" in kwargs and len(args) != 1:
        raise GraphBreak(UnsupportedArguments.of(name="min", what="a default and several items"))
    if not items:
        if "default" in kwargs:
            return kwargs["default"]
        raise machine.error(
            ValueError, f"{'min' if op == '<' else 'max'}() arg is an empty sequence"
        )
    key = kwargs.get("key")

    def measure(item: Value) -> Value:
        made = item if key is None or is_none(key) else key.call(machine, [item], {})
        return made.realize(machine)

    best, best_measure = items[0], measure(items[0])
    for item in items[1:]:
        measured = measure(item)
        if key is None and (picked := _extreme_scalar(machine, op, best, item)) is not None:
            best = best_measure = picked
            continue
        # Strictly, since Python keeps the first of equal items.
        if compare(machine, op, measured, best_measure).realize(machine).truth(machine):
            best, best_measure = item, measured
    return best


_like_min = lambda *args, key=None, default=None: None  # noqa: E731
handles(min, like=_like_min)(partial(_extreme, "<"))
handles(max, like=_like_min)(partial(_extreme, ">"))


def _extreme_scalar(machine: Machine, op: str, best: Value, item: Value) -> Value | None:
    """Return the extreme of two numbers if one is symbolic; None for other values."""
    best, item = best.realize(machine), item.realize(machine)
    if not any(isinstance(one, NumberValue) and node_scalar(one) for one in (best, item)):
        return None
    left, right = scalar_of(machine, best), scalar_of(machine, item)
    # min() and max() return one of the objects: a bool has to stay a bool, which a number computed
    # by the graph is not.
    if (
        left is None
        or right is None
        or bool in (best.python_type(machine), item.python_type(machine))
    ):
        return None
    picked = extreme(machine, op, left, right)
    return best if picked is left else item if picked is right else number_value(machine, picked)


# -- sum() -----------------------------------------------------------------------------------------


# CPython adds floats with Neumaier's compensation, whose last digit differs from that of plain
# additions.
_CORRECTS = sum([0.1] * 10) == 1.0  # CPython 3.12 and later
_CORRECTS_ALL = sum([1e16, 1, 1]) > 1e16  # CPython 3.14 and later: also ints, and complex numbers


@handles(sum)
def _sum(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if (known := _live_sum(machine, args, kwargs)) is not None:
        return known
    start = args[1] if len(args) > 1 else machine.constant(0)
    if isinstance(start, ConstantValue) and isinstance(start.value, str | bytes):
        return fold(machine, sum, machine.constant(()), start)  # a TypeError, whatever the items
    items = members(machine, args[0])
    if isinstance(args[0], SetValue) and not all(map(_is_integer, items)):
        items = unpack(machine, args[0])  # the order affects the last digit
    return _added(machine, start, items)


def _is_integer(value: Value) -> bool:
    return isinstance(value, ConstantValue) and type(value.value) is int


def _live_sum(machine: Machine, args: Args, kwargs: Kwargs) -> Value | None:
    """Return the sum of a live container and the items appended to it; None: read the items."""
    # The sum itself is guarded, not the items: a loop that appends its loss and averages the list
    # was compiled for each length, then ran as eager.
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
    if _CORRECTS_ALL and any(
        one.realize(machine).python_type(machine) is complex for one in numbers[count:]
    ):
        return fold(machine, _total, *(one.realize(machine) for one in numbers))
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


def _total(start: Any, *numbers: Any) -> object:
    return sum(numbers, start)


def _count_of_numbers(machine: Machine, items: Sequence[Value]) -> tuple[int, int | None]:
    """Return how many numbers come before another item, and the index of the first float."""
    first = None
    for index, item in enumerate(items):
        kind = item.realize(machine).python_type(machine)
        # From here on CPython adds by `+`, without compensation, even if more floats follow.
        if kind not in (int, float, bool):
            return index, first
        if kind is float and first is None:
            first = index
    return len(items), first


def _corrected(machine: Machine, high: Value, low: Value, numbers: Sequence[Value]) -> Value:
    """Return `sum(numbers)` continued from a sum of `high` with the compensation `low`."""
    for number in (one.realize(machine) for one in numbers):
        if _CORRECTS_ALL or number.python_type(machine) is float:
            low = binary(machine, "+", low, _float_operation(machine, "lost", high, number))
        high = binary(machine, "+", high, number)
    return _float_operation(machine, "corrected", high, low)


def _float_operation(machine: Machine, op: str, left: Value, right: Value) -> Value:
    """Apply a float operation that is not a Python operator."""
    a, b = scalar_of(machine, left), scalar_of(machine, right)
    assert a is not None
    assert b is not None
    b = b.as_float(machine)
    expr = apply(op, float, a.expr, b.expr)
    if not isinstance(left, NumberValue) and not isinstance(right, NumberValue):
        return machine.constant(evaluate(expr, {}))
    operands = (one.argument(machine, full=True) for one in (a, b))
    node = _NODES[op](partial(python_node, machine), *operands)
    return NumberValue(Scalar(float, expr, node))


def _lost(call: Callable[..., Node], a: Node, b: Node) -> Node:
    made = call(operator.add, a, b)
    # The smaller summand loses digits, so what is lost is computed from the larger one.
    of_a = call(operator.add, call(operator.sub, a, made), b)
    of_b = call(operator.add, call(operator.sub, b, made), a)
    return call(torch.where, call(operator.ge, call(torch.abs, a), call(torch.abs, b)), of_a, of_b)


def _with_error(call: Callable[..., Node], a: Node, error: Node) -> Node:
    # As in CPython: the compensation of an infinite sum is nan and must not replace it.
    counts = call(torch.logical_and, call(torch.isfinite, error), call(operator.ne, error, 0))
    return call(torch.where, counts, call(operator.add, a, error), a)


_NODES = {"lost": _lost, "corrected": _with_error}
