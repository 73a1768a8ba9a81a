"""Numbers: conversions, arithmetic builtins, and the math module on constants."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any

import torch

from ....guards.source import Reduced, Source
from ...breaks import GraphBreak, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.sequences import StoredItems, TupleValue
from ...values.containers.sets import SetValue
from ...values.numbers.arithmetic import extreme, unary
from ...values.numbers.number import NumberValue, node_scalar, number_value, scalar_of
from ...values.objects.constants import fold
from ...values.objects.operators import binary, compare, drain, is_none, unpack
from ..registry import handles

__all__ = ["fold_call", "live_numbers", "members"]

_MATH = [
    one for module in (math, cmath) for one in vars(module).values()
    if callable(one) and not isinstance(one, type)
    and one not in (math.prod, math.isfinite, math.isinf, math.isnan)
]  # fmt: skip
_PURE = [*_MATH, bin, oct, hex, complex]
_OF_SCALARS = {
    math.sqrt: "sqrt", math.exp: "exp", math.log: "log", math.tanh: "tanh", math.sin: "sin",
    math.cos: "cos", math.fabs: "abs",
}  # fmt: skip
_BY_METHOD: dict[Callable[..., Any], str] = {
    abs: "__abs__",
    round: "__round__",
    float: "__float__",
    torch.sym_float: "__float__",
    int: "__int__",
    math.floor: "__floor__",
    math.ceil: "__ceil__",
    math.trunc: "__trunc__",
}


def fold_call(
    machine: Machine, function: Callable[..., Any], args: Args, kwargs: Kwargs, name: str = ""
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
        if number.holds_data:
            number = number.call_method(machine, "__float__", [], {})
        number = number.operand(machine)
        if isinstance(number, NumberValue) and number.is_plain:
            made = unary(machine, op, number.scalar.as_float(machine))
            return number_value(machine, made)
        return fold_call(machine, function, [number], kwargs)


def _register_protocol(function: Callable[..., Any], method: str) -> None:
    """Register a function that calls a method of its argument: `abs(x)` is `x.__abs__()`."""

    @handles(function)
    def asking(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        number = args[0] if len(args) == 1 else None
        is_scalar = isinstance(number, NumberValue) and number.kind is not bool
        is_array = method in ("__float__", "__int__") and args and args[0].holds_data
        if not args or (args[0].is_constant(machine) and not is_scalar and not is_array):
            return fold_call(machine, function, args, kwargs)
        return args[0].call_method(machine, method, args[1:], kwargs)


@handles(math.isfinite)
def _isfinite(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return _classified(machine, math.isfinite, args, "<", of_abs=True)


@handles(math.isinf)
def _isinf(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return _classified(machine, math.isinf, args, "==", of_abs=True)


@handles(math.isnan)
def _isnan(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return _classified(machine, math.isnan, args, "!=", of_abs=False)


def _classified(
    machine: Machine, function: Callable[..., Any], args: Args, op: str, *, of_abs: bool
) -> Value:
    """Express the predicate as a comparison: of |x| with infinity, or of x with itself."""
    number = node_scalar(args[0]) if len(args) == 1 else None
    if number is None or number.kind is int:
        return fold_call(machine, function, args, {})
    if not of_abs:
        return compare(machine, op, args[0], args[0])
    size = number_value(machine, unary(machine, "abs", number))
    return compare(machine, op, size, machine.constant(math.inf))


for _function in _PURE:
    _register_pure(_function)
for _function, _method in _BY_METHOD.items():
    _register_protocol(_function, _method)


@handles(bool)
def _bool(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return machine.constant(args[0].truth(machine) if args else False)


@handles(pow)
def _pow(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2 and not kwargs:
        return binary(machine, "**", *args)
    return fold_call(machine, pow, args, kwargs)


@handles(divmod)
def _divmod(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2 and not kwargs and any(isinstance(one, NumberValue) for one in args):
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


@handles(any)
def _any(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return _first_that_is(machine, args[0], True)


@handles(all)
def _all(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return _first_that_is(machine, args[0], False)


def _first_that_is(machine: Machine, iterable: Value, wanted: bool) -> Value:
    """Return `wanted` if some item has that truth, else the opposite; stops at the first."""
    if isinstance(iterable, SetValue):
        found = any(
            one.realize(machine).truth(machine) == wanted for one in members(machine, iterable)
        )
        return machine.constant(wanted if found else not wanted)
    for item in drain(machine, iterable.iterate(machine).realize(machine)):
        if item.realize(machine).truth(machine) == wanted:
            return machine.constant(wanted)
    return machine.constant(not wanted)


@handles(min)
def _min(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return _extreme(machine, "<", args, kwargs)


@handles(max)
def _max(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return _extreme(machine, ">", args, kwargs)


def _extreme(machine: Machine, op: str, args: Args, kwargs: Kwargs) -> Value:
    """Return the first item that no other is `op` of, by `key` if given."""
    if (live := live_numbers(args, kwargs)) is not None:
        function = min if op == "<" else max
        numbers, path, appended = live
        items = [machine.wrap(function(numbers), Reduced(path, function)), *appended]
    else:
        items = members(machine, args[0]) if len(args) == 1 else list(args)
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
        if compare(machine, op, measured, best_measure).realize(machine).truth(machine):
            best, best_measure = item, measured
    return best


def _extreme_scalar(machine: Machine, op: str, best: Value, item: Value) -> Value | None:
    """Return the extreme of two numbers if one is symbolic; None for other values."""
    best, item = best.realize(machine), item.realize(machine)
    if node_scalar(best) is None and node_scalar(item) is None:
        return None
    left, right = scalar_of(machine, best), scalar_of(machine, item)
    if (
        left is None
        or right is None
        or bool in (best.python_type(machine), item.python_type(machine))
    ):
        return None
    picked = extreme(machine, op, left, right)
    return best if picked is left else item if picked is right else number_value(machine, picked)
