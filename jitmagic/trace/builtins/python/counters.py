"""collections.Counter: a dictionary whose missing keys count zero.

Models the methods of live and new counters, which the class implements in Python on top of dict.
Counts are any values that can be added and compared.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from ....guards.guard import TypeIs
from ....guards.source import Source
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.getters import GetterValue
from ...values.containers.iterators import StepIterator
from ...values.containers.mappings import DictValue
from ...values.containers.sequences import ListValue, TupleValue
from ...values.containers.table_store import TableStore
from ...values.objects.constants import ConstantValue
from ...values.objects.operators import binary, compare, equal, index_of, is_none, unpack
from ...wrap import wraps
from ..registry import handles, method
from .iteration import sorted_values

__all__: list[str] = []

Counter = collections.Counter
_TRUE = ConstantValue(True)


class CounterValue(DictValue):
    """A Counter."""

    __slots__ = ()

    def missing(self, machine: Machine, key: Value) -> Value:
        return ConstantValue(0)

    def del_item(self, machine: Machine, key: Value) -> None:
        # Counter.__delitem__ ignores missing keys.
        if self.find(machine, key) is not None:
            super().del_item(machine, key)

    def count(self, machine: Machine, key: Value) -> Value:
        return self.get_item(machine, key).realize(machine)

    def counts(self, machine: Machine) -> list[tuple[Value, Value]]:
        return [(key, count.realize(machine)) for key, count in self.pairs.values()]

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if not isinstance(other, CounterValue) or op not in ("==", "!="):
            self.refuse(machine, f"comparison {op}")
        keys = [*self.keys(), *other.keys()]
        same = all(equal(machine, self.count(machine, k), other.count(machine, k)) for k in keys)
        return machine.constant(same == (op == "=="))

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if op not in ("+", "-", "&", "|") or not isinstance(other, CounterValue) or reflected:
            self.refuse(machine, f"operator {op}")
        counter = CounterValue(kind=Counter)
        for key, count in self.counts(machine):
            _keep(machine, counter, key, _combined(machine, op, count, other.count(machine, key)))
        for key, count in other.counts(machine) if op != "&" else ():
            if self.find(machine, key) is None:
                zero = machine.constant(0)
                _keep(
                    machine, counter, key, binary(machine, "-", zero, count) if op == "-" else count
                )
        return counter

    def inplace(self, machine: Machine, op: str, other: Value) -> Value | None:
        self.refuse(machine, f"operator {op}=")

    def unary(self, machine: Machine, op: str) -> Value:
        self.refuse(machine, f"unary {op}")


def _is_less(machine: Machine, left: Value, right: Value) -> bool:
    return compare(machine, "<", left, right).realize(machine).truth(machine)


def _combined(machine: Machine, op: str, left: Value, right: Value) -> Value:
    if op in ("+", "-"):
        return binary(machine, op, left, right).realize(machine)
    return left if _is_less(machine, left, right) == (op == "&") else right


def _keep(machine: Machine, target: CounterValue, key: Value, count: Value) -> None:
    """Store a result if it is positive."""
    count = count.realize(machine)
    if _is_less(machine, machine.constant(0), count):
        target.put(machine, key, count)


def _counter(owner: Value) -> CounterValue:
    assert isinstance(owner, CounterValue)
    return owner


def _add(machine: Machine, target: CounterValue, values: Value, op: str) -> None:
    """Execute Counter.update or subtract for one mapping or iterable."""
    if isinstance(values, DictValue):
        pairs = list(values.pairs.values())
    else:
        one: Value = machine.constant(1)
        pairs = [(item, one) for item in unpack(machine, values)]
    # An empty counter takes the items of a mapping by a plain dict.update.
    plain = isinstance(values, DictValue) and op == "+" and not target.truth(machine)
    for key, count in pairs:
        known = target.count(machine, key)
        total = count if plain else _moved(machine, op, known, count.realize(machine))
        target.put(machine, key, total)
    target.changed(machine)


def _moved(machine: Machine, op: str, known: Value, count: Value) -> Value:
    """Add or subtract in the class's operand order: `count + known`, `known - count`."""
    return binary(machine, op, *((count, known) if op == "+" else (known, count)))


def _add_all(machine: Machine, target: CounterValue, args: Args, kwargs: Kwargs, op: str) -> None:
    for values in args[:1]:
        if not is_none(values):
            _add(machine, target, values, op)
    if kwargs:
        pairs = ((machine.constant(name), value) for name, value in kwargs.items())
        _add(machine, target, DictValue.of(machine, pairs), op)


@handles(Counter)
def _make(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    counter = CounterValue(kind=Counter)
    _add_all(machine, counter, args, kwargs, "+")
    return counter


@method(Counter, "update")
def _update(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    _add_all(machine, _counter(owner), args, kwargs, "+")
    return machine.constant(None)


@method(Counter, "subtract")
def _subtract(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    _add_all(machine, _counter(owner), args, kwargs, "-")
    return machine.constant(None)


@method(Counter, "copy", "__copy__")
def _copy(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    return CounterValue(dict(_counter(owner).pairs), kind=Counter)


@method(Counter, "fromkeys")
def _from_keys(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    raise machine.error(NotImplementedError, "Counter.fromkeys() is undefined.")


@method(Counter, "total")
def _total(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    total: Value = machine.constant(0)
    for _, count in _counter(owner).counts(machine):
        total = binary(machine, "+", total.realize(machine), count)
    return total


@method(Counter, "most_common")
def _most_common(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    """Sort by count: heapq.nlargest() gives the same as sorting, with ties in order."""
    limit = args[0] if args else kwargs.get("n", machine.constant(None))
    rows = [TupleValue(pair) for pair in _counter(owner).counts(machine)]
    options = {"key": GetterValue(itemgetter, [machine.constant(1)], {}), "reverse": _TRUE}
    ranked = sorted_values(machine, rows, options)
    return ListValue(ranked if is_none(limit) else ranked[: max(0, index_of(machine, limit))])


@method(Counter, "elements")
def _elements(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    def steps() -> Iterator[Value]:
        for key, count in _counter(owner).counts(machine):
            for _ in range(index_of(machine, count)):
                yield key

    return StepIterator(machine, itertools.chain, steps())


@wraps(Counter)
def _wrap_counter(machine: Machine, obj: Counter[Any], source: Source) -> Value:
    machine.guard(TypeIs(source, Counter))
    return CounterValue(store=TableStore.of_live(machine, obj, source))
