"""Iteration: iter, next, range, the built-in iterators, sorted."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from ...breaks import GraphBreak, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.iterators import (
    EnumerateIterator,
    FilterIterator,
    MapIterator,
    RangeIterator,
    ReversedIterator,
    StepIterator,
    ZipIterator,
)
from ...values.containers.sequences import ListValue, TupleValue
from ...values.numbers.varying_counts import VaryingRange, symbols_in
from ...values.objects.constants import ConstantValue
from ...values.objects.instances import InstanceValue
from ...values.objects.operators import compare, index_of, is_none, unpack
from ..registry import handles, method
from .numbers import fold_call, members

__all__ = ["sorted_values"]


def _iterators(machine: Machine, iterables: Args) -> list[Value]:
    return [one.iterate(machine).realize(machine) for one in iterables]


@handles(iter)
def _iter(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1:
        raise GraphBreak(UnsupportedArguments.of(name="iter", what="a sentinel"))
    return args[0].iterate(machine)


@handles(next)
def _next(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    item = args[0].next(machine)
    if item is not None:
        return item
    if len(args) > 1:
        return args[1]
    raise machine.error(StopIteration)


@method(Iterator, "__next__")
def _step(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    return _next(machine, [owner], {})


@method(Iterator, "__iter__")
def _iterate(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    return owner.iterate(machine)


@handles(range)
def _range(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if not kwargs and (symbols := symbols_in(machine, args)):
        return VaryingRange(args, symbols)
    return fold_call(machine, range, args, kwargs)


@handles(enumerate)
def _enumerate(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    start = args[1] if len(args) > 1 else kwargs.get("start", machine.constant(0))
    return EnumerateIterator(_iterators(machine, args[:1])[0], index_of(machine, start), TupleValue)


@handles(zip)
def _zip(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    strict = "strict" in kwargs and kwargs["strict"].truth(machine)
    return ZipIterator(_iterators(machine, args), TupleValue, strict)


@handles(map)
def _map(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return MapIterator(args[0], _iterators(machine, args[1:]))


@handles(filter)
def _filter(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    function = None if is_none(args[0]) else args[0]
    return FilterIterator(function, _iterators(machine, args[1:])[0])


@handles(reversed)
def _reversed(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    if isinstance(value, InstanceValue | VaryingRange):
        return value.backwards(machine)
    if isinstance(value, ListValue | TupleValue):
        return ReversedIterator(value, len(value.items) - 1)
    if isinstance(value, ConstantValue) and isinstance(value.value, range):
        return RangeIterator(value.as_constant(machine)[::-1])
    if isinstance(value, ConstantValue) and isinstance(value.value, str | bytes):
        items = unpack(machine, value)
        return StepIterator(machine, reversed, reversed(items))
    return value.call_method(machine, "__reversed__", [], {})


@handles(sorted)
def _sorted(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    # Keys of equal rank keep the order of the items, which is unknown for a set.
    items = unpack(machine, args[0]) if "key" in kwargs else members(machine, args[0])
    return ListValue(sorted_values(machine, items, kwargs))


def sorted_values(machine: Machine, items: Sequence[Value], kwargs: Kwargs) -> list[Value]:
    """Sort stably by `key` and `reverse`, comparing with `<` only, as list.sort does."""
    key = kwargs.get("key")
    plain = key is None or is_none(key.realize(machine))
    keyed = [
        ((item if plain or key is None else key.call(machine, [item], {})).realize(machine), item)
        for item in items
    ]

    def order(one: tuple[Value, Value], two: tuple[Value, Value]) -> int:
        if compare(machine, "<", one[0], two[0]).realize(machine).truth(machine):
            return -1
        return int(compare(machine, "<", two[0], one[0]).realize(machine).truth(machine))

    backwards = "reverse" in kwargs and kwargs["reverse"].realize(machine).truth(machine)
    ordered = sorted(keyed, key=functools.cmp_to_key(order), reverse=backwards)
    return [item for _, item in ordered]
