"""Iteration: iter, next, range and the built-in iterators."""

from __future__ import annotations

from collections.abc import Iterator

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
from ...values.objects.operators import index_of, is_none, unpack
from ..registry import calls, handles, methods
from .numbers import fold_call

__all__: list[str] = []


def _iterators(machine: Machine, iterables: Args) -> list[Value]:
    return [one.iterate(machine).realize(machine) for one in iterables]


@handles(iter)
def _iter(machine: Machine, iterable: Value) -> Value:
    return iterable.iterate(machine)


@handles(next)
def _next(machine: Machine, iterator: Value, default: Value | None = None) -> Value:
    if (item := iterator.next(machine) or default) is None:
        raise machine.error(StopIteration)
    return item


@handles(range)
def _range(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    # A range over symbols keeps them, so that a loop over it can be rolled
    # (python_loops/rolled.py). Folded, each trip count would be a variant.
    if symbols := symbols_in(machine, args):
        return VaryingRange(args, symbols)
    return fold_call(machine, range, args, kwargs)


# The iterators of all arguments are made at once, in order, as CPython's constructors do: for an
# argument that is not iterable the call itself raises, not the first item.
calls({
    enumerate: lambda machine, iterable, start=None: EnumerateIterator(
        _iterators(machine, [iterable])[0], index_of(machine, start) if start else 0, TupleValue
    ),
    map: lambda machine, function, *iterables: MapIterator(
        function, _iterators(machine, iterables)
    ),
    filter: lambda machine, function, iterable: FilterIterator(
        None if is_none(function) else function, _iterators(machine, [iterable])[0]
    ),
})  # fmt: skip
methods(Iterator, {
    "__next__": _next,
    "__iter__": lambda machine, iterator: iterator.iterate(machine),
})  # fmt: skip

calls({
    zip: lambda machine, *iterables, strict=None: ZipIterator(
        _iterators(machine, iterables), TupleValue, bool(strict and strict.truth(machine))
    ),
}, like=lambda *iterables, strict=False: None)  # fmt: skip


@handles(reversed)
def _reversed(machine: Machine, value: Value) -> Value:
    if isinstance(value, InstanceValue | VaryingRange):
        return value.backwards(machine)
    if isinstance(value, ListValue | TupleValue):
        return ReversedIterator(value, len(value.items) - 1)
    if isinstance(value, ConstantValue) and isinstance(value.value, range):
        return RangeIterator(value.as_constant(machine)[::-1])
    # These classes have no `__reversed__`. reversed() then indexes from the end, and the iterator's
    # class is `reversed` itself.
    if isinstance(value, ConstantValue) and isinstance(value.value, str | bytes):
        items = unpack(machine, value)
        return StepIterator(machine, reversed, reversed(items))
    kind = value.python_type(machine)
    if not hasattr(kind, "__reversed__"):
        raise machine.error(TypeError, f"'{kind.__name__}' object is not reversible", exact=True)
    return value.call_method(machine, "__reversed__", [], {})
