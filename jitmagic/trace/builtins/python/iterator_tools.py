"""itertools: CPython's own iterators run over the Values of the items.

They only move items, so a Value can stand for its object, and the functions that they call trace
the program's. Which items they take, in which order, and what they raise is CPython's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ...breaks import GraphBreak, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.iterators import StepIterator
from ...values.containers.sequences import TupleValue
from ...values.objects.constants import evaluate
from ...values.objects.operators import RemainingItems, binary, equal, is_none, unpack
from ..registry import Act, calls, handles, methods

__all__: list[str] = []

Adapter = Callable[[Machine, Value], object]


# -- arguments -------------------------------------------------------------------------------------


def _items(machine: Machine, iterable: Value) -> Iterator[Value]:
    return RemainingItems(machine, iterable.realize(machine).iterate(machine).realize(machine))


def _rows(machine: Machine, iterable: Value) -> Iterator[list[Value]]:
    return map(partial(unpack, machine), _items(machine, iterable))


def _truth(machine: Machine, item: Value) -> bool:
    return item.realize(machine).truth(machine)


def _truths(machine: Machine, iterable: Value) -> Iterator[bool]:
    return map(partial(_truth, machine), _items(machine, iterable))


def _call(machine: Machine, function: Value) -> Callable[..., Value]:
    return lambda *args: function.call(machine, args, {}).realize(machine)


def _test(machine: Machine, function: Value) -> Callable[[Value], bool]:
    return lambda item: _truth(machine, function.call(machine, [item], {}))


def _test_or_truth(machine: Machine, function: Value) -> Callable[[Value], bool]:
    return partial(_truth, machine) if is_none(function) else _test(machine, function)


def _constant(machine: Machine, value: Value) -> object:
    return value.as_constant(machine)


def _itself(machine: Machine, value: Value) -> Value:
    return value


# -- iterators -------------------------------------------------------------------------------------


def _steps(machine: Machine, kind: type, rows: Iterator[object]) -> Value:
    """Return an iterator of type `kind` over the rows, which Python's own objects may be in."""
    # map() survives an error of an item, as CPython's iterators do; a generator would end.
    return StepIterator(machine, kind, map(partial(_as_value, machine), rows))


def _as_value(machine: Machine, row: object) -> Value:
    if isinstance(row, tuple):
        return TupleValue([_as_value(machine, item) for item in row])
    return row if isinstance(row, Value) else machine.constant(row)


def _next_row(machine: Machine, rows: Iterator[object]) -> object:
    try:
        return next(rows, None)
    # Not evaluate(): the items run code of the program, through which the tracer raises its own.
    except ValueError as error:
        raise machine.error(ValueError, *error.args, exact=True) from None


def _runs(
    function: Any,
    *adapters: Adapter,
    rest: Adapter = _constant,
    like: Act | None = None,
    **named_adapters: Adapter,
) -> None:
    """Register an iterator class by the kinds of its arguments; `rest` is for further ones."""

    @handles(function, like=like)
    def run(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        adapt = itertools.chain(adapters, itertools.repeat(rest))
        given = [one(machine, arg) for one, arg in zip(adapt, args, strict=False)]
        named = {
            name: named_adapters.get(name, _constant)(machine, one) for name, one in kwargs.items()
        }
        rows = evaluate(machine, partial(function, *given, **named))
        if named.get("strict"):  # of batched(), the only one that raises at an item
            rows = iter(partial(_next_row, machine, rows), None)
        return _steps(machine, function, rows)


_runs(itertools.islice, _items)
_runs(itertools.cycle, _items)
_runs(itertools.pairwise, _items)
_runs(itertools.starmap, _call, _rows)
_runs(itertools.takewhile, _test, _items)
_runs(itertools.dropwhile, _test, _items)
_runs(itertools.filterfalse, _test_or_truth, _items)
_runs(itertools.compress, _items, _truths)
_runs(itertools.repeat, _itself, like=lambda object, times: None)
_runs(
    itertools.zip_longest, rest=_items, fillvalue=_itself,
    like=lambda *iterables, fillvalue=None: None,
)  # fmt: skip
_runs(itertools.product, rest=unpack, like=lambda *iterables, repeat=1: None)
_runs(itertools.permutations, unpack)
_runs(itertools.combinations, unpack)
_runs(itertools.combinations_with_replacement, unpack)
if hasattr(itertools, "batched"):  # since 3.12; `strict` since 3.13
    _runs(itertools.batched, _items, like=lambda iterable, n, **options: None)


def _chained(machine: Machine, parts: Iterator[Value]) -> Value:
    # Lazily: chain() calls iter() of a part only when its turn comes.
    items = map(partial(_items, machine), parts)
    return _steps(machine, itertools.chain, itertools.chain.from_iterable(items))


def _sum(machine: Machine, left: Value, right: Value) -> Value:
    return binary(machine, "+", left.realize(machine), right.realize(machine)).realize(machine)


def _count(machine: Machine, start: Value | None = None, step: Value | None = None) -> Value:
    start, step = start or machine.constant(0), step or machine.constant(1)
    if start.is_constant(machine) and step.is_constant(machine):
        limits = start.as_constant(machine), step.as_constant(machine)
        return _steps(machine, itertools.count, evaluate(machine, itertools.count, *limits))
    # By repeated addition, as CPython's count_nextlong: with a float step, start + n * step would
    # differ in the last digit.
    add = partial(_sum, machine)
    numbers = itertools.accumulate(itertools.repeat(step), add, initial=start)
    return _steps(machine, itertools.count, numbers)


def _accumulate(
    machine: Machine, iterable: Value, function: Value | None = None, initial: Value | None = None
) -> Value:
    if function is None or is_none(function):
        combine: Callable[..., Value] = partial(_sum, machine)
    else:
        combine = _call(machine, function)
    first = None if initial is None or is_none(initial) else initial
    rows = itertools.accumulate(_items(machine, iterable), combine, initial=first)
    return StepIterator(machine, itertools.accumulate, rows)


def _tee(machine: Machine, iterable: Value, count: Value | None = None) -> Value:
    iterator = iterable.iterate(machine).realize(machine)
    kind: type = type(itertools.tee(())[0])
    # tee() of a tee shares its buffer instead of advancing it.
    if iterator.python_type(machine) is kind:
        raise GraphBreak(UnsupportedArguments.of(name="tee", what="an iterator of another tee"))
    number = 2 if count is None else count.as_constant(machine)
    made = evaluate(machine, itertools.tee, RemainingItems(machine, iterator), number)
    return TupleValue([StepIterator(machine, kind, one) for one in made])


class _Key:
    """Stands for a key that groupby() compares."""

    __slots__ = ("machine", "value")

    def __init__(self, machine: Machine, value: Value) -> None:
        self.machine, self.value = machine, value

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, _Key)
        return equal(self.machine, self.value, other.value)

    __hash__ = None  # type: ignore[assignment]


def _groupby(machine: Machine, iterable: Value, key: Value | None = None) -> Value:
    key_of = _itself if key is None or is_none(key) else lambda _, item: _call(machine, key)(item)
    groups = itertools.groupby(
        _items(machine, iterable), lambda item: _Key(machine, key_of(machine, item))
    )
    return _steps(machine, itertools.groupby, map(partial(_group, machine), groups))


def _group(machine: Machine, pair: tuple[_Key, Iterator[Value]]) -> tuple[Value, Value]:
    key, members = pair
    return key.value, StepIterator(machine, type(members), members)


calls({
    itertools.chain: lambda machine, *parts: _chained(machine, iter(parts)),
    itertools.count: _count,
    itertools.accumulate: _accumulate,
    itertools.tee: _tee,
    itertools.groupby: _groupby,
})  # fmt: skip
methods(itertools.chain, {
    "from_iterable": lambda machine, owner, parts: _chained(machine, _items(machine, parts)),
})  # fmt: skip
