"""Iteration: iter, next, range, the built-in iterators, itertools, sorted."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..breaks import GraphBreak, UnsupportedArguments
from ..values.base import Args, Kwargs, Machine, Value
from ..values.constants import ConstantValue
from ..values.instances import InstanceValue
from ..values.iterators import (
    EnumerateIterator,
    FilterIterator,
    MapIterator,
    StepIterator,
    ZipIterator,
)
from ..values.operators import binary, compare, drain, index_of, is_none, unpack
from ..values.sequences import ListValue, TupleValue
from .numbers import fold_call, members
from .registry import handles, method

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


@handles(range)
def _range(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
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
    if isinstance(value, InstanceValue):
        return value.backwards(machine)
    if isinstance(value, ListValue | TupleValue):
        items = reversed(list(value.items))
    elif isinstance(value, ConstantValue) and isinstance(value.value, range | str | bytes):
        items = reversed(unpack(machine, value))
    else:
        return value.call_method(machine, "__reversed__", [], {})
    return StepIterator(machine, type(reversed([])), iter(items))


@handles(sorted)
def _sorted(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return ListValue(sorted_values(machine, members(machine, args[0]), kwargs))


def sorted_values(machine: Machine, items: Sequence[Value], kwargs: Kwargs) -> list[Value]:
    """Stable, by `key` and `reverse`, comparing with `<` only, as list.sort does."""
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


# -- itertools -----------------------------------------------------------------------------------


@handles(itertools.chain)
def _chain(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    def steps() -> Iterator[Value]:
        for one in args:
            yield from drain(machine, one.realize(machine).iterate(machine).realize(machine))

    return StepIterator(machine, itertools.chain, steps())


@method(itertools.chain, "from_iterable")
def _from_iterable(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    def steps() -> Iterator[Value]:
        for one in drain(machine, args[0].iterate(machine).realize(machine)):
            yield from drain(machine, one.realize(machine).iterate(machine).realize(machine))

    return StepIterator(machine, itertools.chain, steps())


@handles(itertools.repeat)
def _repeat(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    times = args[1] if len(args) > 1 else kwargs.get("times")
    if times is None:
        return StepIterator(machine, itertools.repeat, itertools.repeat(args[0]))
    count = max(0, index_of(machine, times))
    return StepIterator(machine, itertools.repeat, iter([args[0]] * count))


@handles(itertools.count)
def _count(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    start = args[0] if args else kwargs.get("start", machine.constant(0))
    step = args[1] if len(args) > 1 else kwargs.get("step", machine.constant(1))

    def steps() -> Iterator[Value]:
        current = start
        while True:
            yield current
            current = binary(machine, "+", current, step)

    return StepIterator(machine, itertools.count, steps())


@handles(itertools.islice)
def _islice(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    iterator = args[0].iterate(machine).realize(machine)
    bounds = slice(*(one.as_constant(machine) for one in args[1:]))
    start, stop, step = bounds.start or 0, bounds.stop, bounds.step or 1
    wanted = itertools.count(start, step) if stop is None else iter(range(start, stop, step))

    def steps() -> Iterator[Value]:
        position = 0
        for index in wanted:
            while (item := iterator.next(machine)) is not None:
                position += 1
                if position > index:
                    yield item
                    break
            else:
                return
        while stop is not None and position < stop and iterator.next(machine) is not None:
            position += 1

    return StepIterator(machine, itertools.islice, steps())


@handles(itertools.starmap)
def _starmap(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    rows = args[1].iterate(machine).realize(machine)

    def steps() -> Iterator[Value]:
        for row in drain(machine, rows):
            yield args[0].call(machine, unpack(machine, row), {})

    return StepIterator(machine, itertools.starmap, steps())


@handles(itertools.accumulate)
def _accumulate(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    function = args[1] if len(args) > 1 else kwargs.get("func")
    if "initial" in kwargs:
        raise GraphBreak(UnsupportedArguments.of(name="accumulate", what="initial"))
    items = args[0].iterate(machine).realize(machine)

    def steps() -> Iterator[Value]:
        total: Value | None = None
        for item in drain(machine, items):
            one = item.realize(machine)
            if total is None:
                total = one
            elif function is None:
                total = binary(machine, "+", total, one).realize(machine)
            else:
                total = function.call(machine, [total, one], {}).realize(machine)
            yield total

    return StepIterator(machine, itertools.accumulate, steps())


def _register_combinatoric(function: Callable[..., Any], iterables: int | None) -> None:
    """Those that first take in all items; `iterables` of the arguments are such (None: all)."""

    @handles(function)
    def combine(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        end = len(args) if iterables is None else iterables
        pools = [unpack(machine, one) for one in args[:end]]
        rest = [one.as_constant(machine) for one in args[end:]]
        named = {name: value.as_constant(machine) for name, value in kwargs.items()}
        rows = function(*pools, *rest, **named)
        return StepIterator(machine, function, (TupleValue(row) for row in rows))  # type: ignore[arg-type]


_register_combinatoric(itertools.product, None)
_register_combinatoric(itertools.permutations, 1)
_register_combinatoric(itertools.combinations, 1)
_register_combinatoric(itertools.combinations_with_replacement, 1)
