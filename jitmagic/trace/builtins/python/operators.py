"""The operator module, and the functions of functools that are written in C."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.sequences import SequenceValue
from ...values.objects.constants import BINARY, COMPARE, UNARY, ConstantValue
from ...values.objects.functions import PartialValue
from ...values.objects.operators import binary, compare, equal, index_of, inplace, is_same, unpack
from ..registry import handles

__all__: list[str] = []


def _register_binary(function: Callable[..., Any], op: str) -> None:
    @handles(function)
    def apply(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        left, right = args
        return binary(machine, op, left, right)


def _register_inplace(function: Callable[..., Any], op: str) -> None:
    @handles(function)
    def apply(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        left, right = args
        return inplace(machine, op, left, right)


def _register_compare(function: Callable[..., Any], op: str) -> None:
    @handles(function)
    def apply(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        left, right = args
        return compare(machine, op, left, right)


def _register_unary(function: Callable[..., Any], op: str) -> None:
    @handles(function)
    def apply(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        return args[0].unary(machine, op)


for _op, _function in BINARY.items():
    _register_binary(_function, _op)
    _register_inplace(getattr(operator, f"i{_function.__name__.strip('_')}"), _op)
for _op, _function in COMPARE.items():
    _register_compare(_function, _op)
for _op, _unary in UNARY.items():
    _register_unary(_unary, _op)


@handles(operator.not_)
def _not(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return machine.constant(not args[0].truth(machine))


@handles(operator.truth)
def _truth(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return machine.constant(args[0].truth(machine))


@handles(operator.is_)
def _is(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return machine.constant(is_same(machine, args[0], args[1]))


@handles(operator.is_not)
def _is_not(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return machine.constant(not is_same(machine, args[0], args[1]))


@handles(operator.getitem)
def _getitem(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return args[0].get_item(machine, args[1])


@handles(operator.setitem)
def _setitem(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    args[0].set_item(machine, args[1], args[2])
    return machine.constant(None)


@handles(operator.contains)
def _contains(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return args[0].contains(machine, args[1])


@handles(operator.concat)
def _concat(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if not all(isinstance(one, SequenceValue | ConstantValue) for one in args):
        args[0].refuse(machine, "operator.concat")
    return binary(machine, "+", *args)


@handles(operator.countOf)
def _count_of(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return machine.constant(sum(equal(machine, one, args[1]) for one in unpack(machine, args[0])))


@handles(operator.index)
def _operator_index(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return machine.constant(index_of(machine, args[0]))


@handles(functools.partial)
def _partial(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    function, rest, named = args[0], list(args[1:]), dict(kwargs)
    if isinstance(function, PartialValue):  # partial(partial(f, a), b) is flattened
        rest, named = [*function.args, *rest], {**function.kwargs, **named}
        function = function.function.realize(machine)
    return PartialValue(function, rest, named)


@handles(functools.reduce)
def _reduce(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    items = args[1].iterate(machine).realize(machine)
    total = args[2] if len(args) > 2 else items.next(machine)
    if total is None:
        raise machine.error(TypeError, "reduce() of empty iterable with no initial value")
    while (item := items.next(machine)) is not None:
        total = args[0].call(machine, [total, item], {})
    return total
