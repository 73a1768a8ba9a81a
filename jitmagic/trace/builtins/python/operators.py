"""The operator module, and the functions of functools that are written in C."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from functools import partial

from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.sequences import SequenceValue
from ...values.objects.constants import BINARY, COMPARE, INPLACE, UNARY, ConstantValue
from ...values.objects.operators import binary, compare, equal, index_of, inplace, is_same, unpack
from ...values.objects.partials import PartialValue, refuse_placeholders
from ..registry import AS_GIVEN, calls, handles

__all__: list[str] = []


def _register(function: Callable[..., object], apply: Callable[..., Value], op: str) -> None:
    """Register an operator: a call of it is `apply(machine, op, left, right)`."""

    @handles(function)
    def applied(machine: Machine, left: Value, right: Value) -> Value:
        return apply(machine, op, left, right)


def _unary(op: str, machine: Machine, value: Value) -> Value:
    return value.unary(machine, op)


for _op, _function in BINARY.items():
    _register(_function, binary, _op)
    _register(INPLACE[_op], inplace, _op)
for _op, _function in COMPARE.items():
    _register(_function, compare, _op)
for _op, _sign in UNARY.items():
    handles(_sign)(partial(_unary, _op))


@handles(operator.concat)
def _concat(machine: Machine, left: Value, right: Value) -> Value:
    # operator.concat raises a TypeError for numbers, which `+` would add.
    if not all(isinstance(one, SequenceValue | ConstantValue) for one in (left, right)):
        left.refuse(machine, "operator.concat")
    return binary(machine, "+", left, right)


calls({
    operator.not_: lambda machine, value: not value.truth(machine),
    operator.truth: lambda machine, value: value.truth(machine),
    operator.is_: is_same,
    operator.is_not: lambda machine, one, two: not is_same(machine, one, two),
    operator.getitem: lambda machine, owner, key: owner.get_item(machine, key),
    operator.setitem: lambda machine, owner, key, value: owner.set_item(machine, key, value),
    operator.contains: lambda machine, owner, item: owner.contains(machine, item),
    operator.countOf: lambda machine, owner, item: sum(
        equal(machine, one, item) for one in unpack(machine, owner)
    ),
    operator.index: index_of,
})  # fmt: skip


@handles(functools.partial, like=AS_GIVEN)
def _partial(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    function, rest, named = args[0], list(args[1:]), dict(kwargs)
    refuse_placeholders(machine, rest)
    if isinstance(function, PartialValue):  # partial(partial(f, a), b) is flattened
        refuse_placeholders(machine, function.args)
        rest, named = [*function.args, *rest], {**function.kwargs, **named}
        function = function.function.realize(machine)
    return PartialValue(function, rest, named)


@handles(functools.reduce)
def _reduce(
    machine: Machine, function: Value, iterable: Value, initial: Value | None = None
) -> Value:
    # reduce() takes items one by one, so a function that raises leaves the rest in the iterator.
    items = iterable.iterate(machine).realize(machine)
    total = initial or items.next(machine)
    if total is None:
        raise machine.error(TypeError, "reduce() of empty iterable with no initial value")
    while (item := items.next(machine)) is not None:
        total = function.call(machine, [total, item], {})
    return total
