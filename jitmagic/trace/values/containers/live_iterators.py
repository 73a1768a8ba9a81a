"""Models iterators that existed before the trace, as that of a loop which a graph break interrupts.

Input: a live iterator. Output: its items, whose sources lead through the iterated container
(guards/iterator_parts.py). An exit advances the live iterator by the number of items taken.

The position is guarded, so a trace that left the iterator in mid-loop would be valid for one
iteration alone. Unless the loop is traced to its end, the trace breaks before the first step
(LoopIterator), and only Python advances the iterator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ....guards.guard import LengthIs, TypeIs, ValueEquals
from ....guards.iterator_parts import DICT_ITERATORS, SET_ITERATOR, iterator_parts
from ....guards.source import Argument, Item, IteratorParts, Source
from ...breaks import GraphBreak, LoopIterator
from ...residual.resume import carries_stack
from ...residual_calls import advance
from ...result import Effect, Perform
from ...wrap import wraps
from ..base import Builder, CannotRebuild, Machine, Value
from ..objects.operators import is_none
from .iterators import (
    EnumerateIterator,
    FilterIterator,
    IteratorValue,
    MapIterator,
    RangeIterator,
    ReversedIterator,
    SequenceIterator,
    ZipIterator,
)
from .mappings import DictValue, ViewValue
from .sequences import ListValue, TupleValue
from .sets import SetValue

__all__ = ["LiveIterator"]

Parts = tuple[Any, ...]
_CALLING = (map, filter)  # stateless; advancing them calls a user function
_LONGEST = 1000  # iterations; longer loops rarely unroll to the end (options.unroll_limit)
_STATELESS = (zip, *_CALLING)  # advancing their input iterators advances them


class LiveIterator(IteratorValue):
    """A live iterator; `model` yields its remaining items.

    The first `next` creates the model and guards the position.
    """

    __slots__ = ("_driven", "began", "ended", "live", "machine", "model", "over", "taken")

    def __init__(self, machine: Machine, live: object, source: Source) -> None:
        super().__init__(type(live))
        self.source = source
        self.machine = machine
        self.live = live
        self.model: IteratorValue | None = None
        self.over: tuple[Value, ...] = ()  # the containers or iterators that the model iterates
        self.taken = 0
        self.ended = False
        self.began = 0  # Machine.step of the first `next`
        self._driven = False  # an outer iterator (zip, enumerate) advances it

    def next(self, machine: Machine) -> Value | None:
        if self._driven:
            raise GraphBreak(LoopIterator.of(type=self.kind.__name__))
        if self.model is None:
            self._follow(machine, driving=False)
        assert self.model is not None
        item = self.model.next(machine)
        self.taken += item is not None
        self.ended = item is None
        return item

    def items_left(self) -> int | None:
        return None if self.model is None else self.model.items_left()

    def drive(self, machine: Machine) -> IteratorValue:
        """Return the model for an outer iterator, which advances this one from now on."""
        # An iterator that was advanced by itself has an effect of its own and would be advanced
        # twice. Advancing a map() or filter() at the exit would call the user's function again.
        if self.model is not None or self.kind in _CALLING:
            raise GraphBreak(LoopIterator.of(type=self.kind.__name__))
        self._driven = True
        return self._follow(machine, driving=True)

    def _follow(self, machine: Machine, driving: bool) -> IteratorValue:
        assert self.source is not None
        parts = iterator_parts(self.live)
        if parts is None:
            raise GraphBreak(LoopIterator.of(type=self.kind.__name__))
        self.began = machine.step
        self.model, self.over = _model(machine, self.kind, parts, self.source, driving)
        machine.effects.contents(self)
        return self.model

    def replace(self, builder: Builder) -> tuple[Effect, ...]:
        """Return the effect that advances the live iterator."""
        # The outer iterator is advanced at the exit, which advances this one.
        if self._driven:
            return ()
        # Guards on the position would compile the rest of the loop anew in each iteration.
        if self.model is not None and not self.ended and not self._can_stop_here(builder):
            reason = LoopIterator.of(type=self.kind.__name__)
            raise CannotRebuild(self.kind.__name__, self.began, reason)
        if self.kind in _STATELESS:
            return ()
        count = builder.constant(self.taken + self.ended)
        return (Perform(builder.constant(advance), (builder(self), count)),)

    def _can_stop_here(self, builder: Builder) -> bool:
        """Return whether a resume function has left the loop without changing the container."""
        assert self.source is not None
        changed = any(one.is_changed(self.machine) for one in self.containers())
        return _is_on_stack(self.source) and not builder.is_live(self) and not changed

    def containers(self) -> Iterator[Value]:
        """Yield the containers that it iterates, through nested iterators."""
        for one in self.over:
            yield from one.containers() if isinstance(one, LiveIterator) else (one,)

    def parts(self) -> Iterable[Value]:
        return self.over


def _is_on_stack(source: Source) -> bool:
    """Return whether only an operand stack of the program holds the iterator."""
    root = source.root
    return isinstance(root, Argument) and carries_stack(root.name)


# ----------------------------------------------------------------------------------------- models


def _model(
    machine: Machine, kind: type, parts: Parts, source: Source, driving: bool
) -> tuple[IteratorValue, tuple[Value, ...]]:
    """Return an iterator that continues a live one, and the values that it iterates."""
    read = IteratorParts(source)
    if kind is enumerate:
        inner = machine.wrap(parts[0], Item(read, 0))
        _guard_position(machine, parts, read, 1)
        return EnumerateIterator(_driven(machine, inner), parts[1], TupleValue), (inner,)
    if kind in _STATELESS:
        return _over_iterators(machine, kind, parts, read, driving)
    if kind in DICT_ITERATORS or kind is SET_ITERATOR:
        return _over_table(machine, kind, parts, read)
    if kind is type(iter(range(0))):
        steps = RangeIterator(range(*parts[:3]))
        steps.index = parts[3]
        _refuse_long(kind, len(steps.range) - steps.index)
        _guard_position(machine, parts, read, 0, 1, 2, 3)
        return steps, ()
    return _over_sequence(machine, kind, parts, read)


def _guard_position(machine: Machine, parts: Parts, read: Source, *indices: int) -> None:
    """Guard the numbers that give the position of an iterator."""
    machine.guard(*(ValueEquals(Item(read, index), parts[index]) for index in indices))


def _driven(machine: Machine, inner: Value) -> Value:
    if not isinstance(inner, LiveIterator):
        raise GraphBreak(LoopIterator.of(type=inner.python_type(machine).__name__))
    return inner.drive(machine)


def _refuse_long(kind: type, left: int) -> None:
    if left > _LONGEST:
        raise GraphBreak(LoopIterator.of(type=kind.__name__))


def _over_iterators(
    machine: Machine, kind: type, parts: Parts, read: Source, driving: bool
) -> tuple[IteratorValue, tuple[Value, ...]]:
    machine.guard(LengthIs(read, len(parts)))
    inner = tuple(machine.wrap(parts[i], Item(read, i)) for i in range(1, len(parts)))
    if kind is zip:
        _guard_position(machine, parts, read, 0)
        models = tuple(_driven(machine, one) for one in inner) if driving else inner
        return ZipIterator(models, TupleValue, parts[0]), inner
    function = machine.wrap(parts[0], Item(read, 0))
    if kind is map:
        return MapIterator(function, inner), inner
    return FilterIterator(None if is_none(function) else function, inner[0]), inner


def _over_table(
    machine: Machine, kind: type, parts: Parts, read: Source
) -> tuple[IteratorValue, tuple[Value, ...]]:
    _refuse_long(kind, parts[1])
    owner = machine.wrap(parts[0], Item(read, 0))
    # The number of entries left counts from the end of the live table, to which the trace may have
    # added entries.
    if not isinstance(owner, DictValue | SetValue) or owner.is_changed(machine):
        raise GraphBreak(LoopIterator.of(type=kind.__name__))
    _guard_position(machine, parts, read, 1)
    walked = ViewValue(owner, DICT_ITERATORS[kind]) if isinstance(owner, DictValue) else owner
    model = walked.iterate(machine)
    assert isinstance(model, IteratorValue)
    # CPython exposes the number of entries left, but no index of an iterator over a hash table.
    for _ in range(owner.length(machine) - parts[1]):
        model.next(machine)
    return model, (owner,)


def _over_sequence(
    machine: Machine, kind: type, parts: Parts, read: Source
) -> tuple[IteratorValue, tuple[Value, ...]]:
    going_down = kind in (reversed, type(reversed([])))
    _refuse_long(kind, parts[1] if going_down else len(parts[0]) - parts[1])
    owner = machine.wrap(parts[0], Item(read, 0))
    if not isinstance(owner, ListValue | TupleValue):
        raise GraphBreak(LoopIterator.of(type=kind.__name__))
    _guard_position(machine, parts, read, 1)
    if going_down:
        return ReversedIterator(owner, parts[1]), (owner,)
    model = SequenceIterator(owner)
    model.index = parts[1]
    return model, (owner,)


_EMPTY: tuple[Iterable[object], ...] = (
    [], (), {}, {}.values(), {}.items(), set(), range(0), "", b"",
)  # fmt: skip


@wraps(
    *(type(iter(empty)) for empty in _EMPTY),
    # A range beyond C long has an iterator class of its own. Python can read the position neither
    # of that one nor of callable iterators and generators: their first `next` breaks the graph.
    type(iter(range(1 << 70))),
    type(reversed([])),
    type(reversed({})),
    type(iter(int, 0)),
    type(_ for _ in ()),
    enumerate,
    zip,
    map,
    filter,
    reversed,
)
def _wrap_iterator(machine: Machine, obj: object, source: Source) -> Value:
    machine.guard(TypeIs(source, type(obj)))
    return LiveIterator(machine, obj, source)
