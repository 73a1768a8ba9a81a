"""itertools: items are taken from the arguments in the order in which CPython's C code does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...breaks import GraphBreak, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.iterators import StepIterator
from ...values.containers.sequences import TupleValue
from ...values.objects.operators import binary, drain, equal, index_of, is_none, unpack
from ..registry import calls, handles, methods
from .numbers import fold_call

__all__: list[str] = []


def _stepped(machine: Machine, value: Value) -> Value:
    """Return `iter(value)`."""
    return value.realize(machine).iterate(machine).realize(machine)


def _is_true_of(machine: Machine, function: Value, item: Value) -> bool:
    """Return `bool(function(item))`; without a function, the item's own truth."""
    verdict = item if is_none(function) else function.call(machine, [item], {})
    return verdict.realize(machine).truth(machine)


def _chained(machine: Machine, parts: Iterable[Value]) -> Value:
    # A generator expression, because chain() calls iter() of a part only when its turn comes.
    steps = (item for part in parts for item in drain(machine, _stepped(machine, part)))
    return StepIterator(machine, itertools.chain, steps)


@handles(itertools.count)
def _count(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    start = args[0] if args else machine.constant(0)
    step = args[1] if len(args) > 1 else machine.constant(1)

    def steps() -> Iterator[Value]:
        # By repeated addition, as CPython's count_nextlong: with a float step, start + n * step
        # would differ in the last digit.
        current = start
        while True:
            yield current
            current = binary(machine, "+", current, step)

    return StepIterator(machine, itertools.count, steps())


@handles(itertools.islice)
def _islice(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    iterator = _stepped(machine, args[0])
    limits = [None if is_none(arg) else index_of(machine, arg) for arg in args[1:]]
    bounds = slice(*limits)
    start, stop, step = bounds.start or 0, bounds.stop, 1 if bounds.step is None else bounds.step
    if min(start, stop or 0, step - 1) < 0:
        raise GraphBreak(UnsupportedArguments.of(name="islice", what="negative bounds"))
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
        # islice advances the iterator to `stop` even if `step` passes it.
        while stop is not None and position < stop and iterator.next(machine) is not None:
            position += 1

    return StepIterator(machine, itertools.islice, steps())


@handles(itertools.starmap)
def _starmap(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    rows = _stepped(machine, args[1])

    def steps() -> Iterator[Value]:
        for row in drain(machine, rows):
            yield args[0].call(machine, unpack(machine, row), {})

    return StepIterator(machine, itertools.starmap, steps())


@handles(itertools.accumulate)
def _accumulate(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    function = args[1] if len(args) > 1 else machine.constant(None)
    initial = kwargs.get("initial", machine.constant(None))
    items = _stepped(machine, args[0])

    def steps() -> Iterator[Value]:
        total: Value | None = None if is_none(initial) else initial
        if total is not None:
            yield total
        for item in drain(machine, items):
            value = item.realize(machine)
            if total is None:
                total = value
            elif is_none(function):
                total = binary(machine, "+", total, value).realize(machine)
            else:
                total = function.call(machine, [total, value], {}).realize(machine)
            yield total

    return StepIterator(machine, itertools.accumulate, steps())


@handles(itertools.cycle)
def _cycle(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    iterator = _stepped(machine, args[0])

    def steps() -> Iterator[Value]:
        seen = []
        while (item := iterator.next(machine)) is not None:
            seen.append(item)
            yield item
        while seen:
            yield from seen

    return StepIterator(machine, itertools.cycle, steps())


@handles(itertools.pairwise)
def _pairwise(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    iterator = _stepped(machine, args[0])

    def steps() -> Iterator[Value]:
        before = iterator.next(machine)
        while before is not None and (item := iterator.next(machine)) is not None:
            yield TupleValue([before, item])
            before = item

    return StepIterator(machine, itertools.pairwise, steps())


_BATCHED: Any = getattr(itertools, "batched", None)  # since 3.12; `strict` since 3.13


def _accepts(*args: object, **kwargs: object) -> bool:
    return _BATCHED((), *args, **kwargs) is not None


def _batched(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    fold_call(machine, _accepts, args[1:], kwargs, "batched")  # raises Python's own errors
    items = drain(machine, _stepped(machine, args[0]))
    size = index_of(machine, args[1])
    is_strict = "strict" in kwargs and kwargs["strict"].realize(machine).truth(machine)

    def steps() -> Iterator[Value]:
        while row := list(itertools.islice(items, size)):
            # The items of the short batch are consumed before the error, as in CPython 3.13.
            if is_strict and len(row) < size:
                raise machine.error(ValueError, "batched(): incomplete batch", exact=True)
            yield TupleValue(row)

    return StepIterator(machine, _BATCHED, steps())


if _BATCHED is not None:
    handles(_BATCHED, like=lambda iterable, n, **options: None)(_batched)


@handles(itertools.zip_longest, like=lambda *iterables, fillvalue=None: None)
def _zip_longest(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    fill = kwargs.get("fillvalue", machine.constant(None))
    iterators: list[Value | None] = [_stepped(machine, iterator) for iterator in args]

    def steps() -> Iterator[Value]:
        while iterators:
            row = []
            for index, iterator in enumerate(iterators):
                item = None if iterator is None else iterator.next(machine)
                if item is None:
                    iterators[index] = None
                    if not any(iterators):
                        return
                row.append(fill if item is None else item)
            yield TupleValue(row)

    return StepIterator(machine, itertools.zip_longest, steps())


@handles(itertools.tee)
def _tee(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    iterator = _stepped(machine, args[0])
    kind: type = type(itertools.tee(())[0])
    # tee() of a tee shares its buffer instead of advancing it.
    if iterator.python_type(machine) is kind:
        raise GraphBreak(UnsupportedArguments.of(name="tee", what="an iterator of another tee"))
    seen: list[Value] = []

    def steps() -> Iterator[Value]:
        for index in itertools.count():
            if index == len(seen):
                item = iterator.next(machine)
                if item is None:
                    return
                seen.append(item)
            yield seen[index]

    count = index_of(machine, args[1]) if len(args) > 1 else 2
    return TupleValue([StepIterator(machine, kind, steps()) for _ in range(count)])


class _Groups(StepIterator):
    """An itertools.groupby; `item` was taken from the iterator and is in no group yet."""

    __slots__ = ("group", "item", "iterator", "key", "key_of", "wanted")

    def __init__(self, machine: Machine, iterator: Value, key_of: Value) -> None:
        super().__init__(machine, itertools.groupby, iter(()))
        self.iterator, self.key_of = iterator, key_of
        self.item: Value | None = None
        self.key: Value | None = None  # key of the item taken last
        self.wanted: Value | None = None  # key of the group returned last
        self.group: Value | None = None

    def _take(self, machine: Machine) -> bool:
        self.item = self.iterator.next(machine)
        if self.item is None:
            return False
        plain = is_none(self.key_of)
        self.key = self.item if plain else self.key_of.call(machine, [self.item], {})
        return True

    def _is_key(self, machine: Machine, key: Value | None) -> bool:
        return key is not None and self.key is not None and equal(machine, key, self.key)

    def next(self, machine: Machine) -> Value | None:
        self.group = None
        while self.key is None or self._is_key(machine, self.wanted):
            if not self._take(machine):
                return None
        assert self.key is not None
        self.wanted = self.key
        kind = type(next(itertools.groupby([0]))[1])
        self.group = StepIterator(machine, kind, self._members(machine, self.key))
        return TupleValue([self.key, self.group])

    def _members(self, machine: Machine, key: Value) -> Iterator[Value]:
        # Advancing the groupby ends the groups before, as in CPython.
        me = self.group
        while self.group is me:
            if self.item is None and not self._take(machine):
                return
            if not self._is_key(machine, key):
                return
            assert self.item is not None
            item, self.item = self.item, None
            yield item


def _filtered(function: Any) -> Callable[..., Value]:
    """Return the act of an itertools function that asks a predicate about each item."""

    def act(machine: Machine, predicate: Value, iterable: Value) -> Value:
        items = drain(machine, _stepped(machine, iterable))
        # CPython's iterator runs over Values; its predicate traces the program's.
        steps = function(lambda item: _is_true_of(machine, predicate, item), items)
        return StepIterator(machine, function, steps)

    return act


def _compress(machine: Machine, data: Value, selectors: Value) -> Value:
    items, chosen = (drain(machine, _stepped(machine, one)) for one in (data, selectors))
    flags = (flag.realize(machine).truth(machine) for flag in chosen)
    return StepIterator(machine, itertools.compress, itertools.compress(items, flags))


def _repeat(machine: Machine, item: Value, times: Value | None = None) -> Value:
    count = () if times is None else (max(0, index_of(machine, times)),)
    return StepIterator(machine, itertools.repeat, itertools.repeat(item, *count))


calls({
    itertools.chain: lambda machine, *parts: _chained(machine, parts),
    itertools.takewhile: _filtered(itertools.takewhile),
    itertools.dropwhile: _filtered(itertools.dropwhile),
    itertools.filterfalse: _filtered(itertools.filterfalse),
    itertools.compress: _compress,
    itertools.groupby: lambda machine, iterable, key=None: _Groups(
        machine, _stepped(machine, iterable), key or machine.constant(None)
    ),
})  # fmt: skip
calls({itertools.repeat: _repeat}, like=lambda object, times: None)
methods(itertools.chain, {
    "from_iterable": lambda machine, owner, parts: _chained(
        machine, drain(machine, _stepped(machine, parts))
    ),
})  # fmt: skip


def _register_combinatoric(
    function: Callable[..., Any], iterables: int | None, like: Callable[..., Any] | None = None
) -> None:
    """Register a function that first reads all items of `iterables` arguments (None: of all)."""

    @handles(function, like=like)
    def combine(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        end = len(args) if iterables is None else iterables
        pools = [unpack(machine, arg) for arg in args[:end]]
        rest = [arg.as_constant(machine) for arg in args[end:]]
        named = {name: value.as_constant(machine) for name, value in kwargs.items()}
        try:
            # CPython's own iterators choose items by position and never compare them, so they can
            # run over Values.
            rows = function(*pools, *rest, **named)
        except (TypeError, ValueError) as error:  # a negative length
            raise machine.error(type(error), *error.args, exact=True) from None
        return StepIterator(machine, function, (TupleValue(row) for row in rows))  # type: ignore[arg-type]


_register_combinatoric(itertools.product, None, lambda *iterables, repeat=1: None)
_register_combinatoric(itertools.permutations, 1)
_register_combinatoric(itertools.combinations, 1)
_register_combinatoric(itertools.combinations_with_replacement, 1)
