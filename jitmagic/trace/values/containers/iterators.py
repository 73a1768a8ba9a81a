"""Models iterators that the traced code creates.

Input: containers and other iterators. Output: the next item, or None at the end. An exit in
mid-loop rebuilds the iterator: one over a sequence by `iter(...)` and `__setstate__`, one over an
unchanged dictionary by advancing a new iterator to the position, zip, enumerate and map from their
inputs. Others are CannotRebuild, so the graph break moves to their creation. live_iterators.py
models iterators from before the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from ...residual_calls import walked
from ...result import Recipe
from ..base import Builder, CannotRebuild, Machine, Value
from ..objects.callables import BuiltinMethodValue

__all__ = [
    "CheckedItems",
    "EnumerateIterator",
    "FilterIterator",
    "IteratorValue",
    "MapIterator",
    "RangeIterator",
    "ReversedIterator",
    "SequenceIterator",
    "StepIterator",
    "TableIterator",
    "ZipIterator",
]


MakeTuple = Callable[[list[Value]], Value]  # the TupleValue of some items
_T = TypeVar("_T")


class IteratorValue(Value):
    """An iterator, which is its own `iter()` and always true."""

    __slots__ = ("kind",)
    always_true = True

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind = kind

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def iterate(self, machine: Machine) -> Value:
        return self

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name in ("__next__", "__iter__"):
            return BuiltinMethodValue(self, Iterator, name)
        self.refuse(machine, f"attribute {name!r}")

    def hash_key(self, machine: Machine) -> object:
        machine.guard_distinct_key(self)
        return self

    def items_left(self) -> int | None:
        """Return the number of remaining items, or None if it is unknown."""
        return None


class SequenceIterator(IteratorValue):
    """An iterator over a list or tuple by index, which yields items appended before its end."""

    __slots__ = ("container", "index")

    def __init__(self, container: Any) -> None:
        kind: type = type(iter([])) if container.base_kind is list else type(iter(()))
        super().__init__(kind)
        self.container = container
        self.index = 0

    def next(self, machine: Machine) -> Value | None:
        # listiter_next reads the length in each step: a loop sees items that it appends.
        if self.index >= len(self.container.items):
            # It then drops the list: the iterator remains exhausted if the list grows afterwards.
            self.container, self.index = self.container.like(()), 0
            return None
        self.index += 1
        item: Value = self.container.items[self.index - 1]
        return item

    def items_left(self) -> int:
        return max(len(self.container.items) - self.index, 0)

    def recipe(self, builder: Builder) -> Recipe:
        iterator = builder.invoke(iter, (builder(self.container),))
        # `__setstate__` clips the index to the length that the list has at that time, so it has to
        # run after the effects that fill the list.
        if self.index:
            builder.set_state(iterator, self.index)
        return iterator

    def parts(self) -> Iterable[Value]:
        return (self.container,)


class ReversedIterator(IteratorValue):
    """A reversed iterator over a list or tuple by index, which sees mutations of the list."""

    __slots__ = ("container", "index")

    def __init__(self, container: Any, index: int) -> None:
        super().__init__(type(reversed([])) if container.base_kind is list else reversed)
        self.container = container
        self.index = index  # of the next item; -1 at the end

    def next(self, machine: Machine) -> Value | None:
        if not 0 <= self.index < len(self.container.items):
            # As in listreviter_next, the iterator remains exhausted if the list grows afterwards.
            self.index = -1
            return None
        self.index -= 1
        item: Value = self.container.items[self.index + 1]
        return item

    def items_left(self) -> int:
        return self.index + 1

    def recipe(self, builder: Builder) -> Recipe:
        iterator = builder.invoke(reversed, (builder(self.container),))
        builder.set_state(iterator, self.index)
        return iterator

    def parts(self) -> Iterable[Value]:
        return (self.container,)


class RangeIterator(IteratorValue):
    """An iterator over a range with constant bounds."""

    __slots__ = ("index", "range")

    def __init__(self, steps: range) -> None:
        super().__init__(type(iter(steps)))
        self.range = steps
        self.index = 0

    def next(self, machine: Machine) -> Value | None:
        if self.index >= len(self.range):
            return None
        self.index += 1
        return machine.constant(self.range[self.index - 1])

    def items_left(self) -> int:
        return len(self.range) - self.index

    def recipe(self, builder: Builder) -> Recipe:
        # A slice of a range is a range, so the rest needs no `__setstate__`.
        return builder.invoke(iter, (builder.constant(self.range[self.index :]),))


class StepIterator(IteratorValue):
    """An iterator over the items of a Python generator of the tracer.

    No exit can rebuild it, unless a subclass knows its position.
    """

    __slots__ = ("created_at_step", "steps")

    def __init__(self, machine: Machine, kind: type, steps: Iterator[Value]) -> None:
        super().__init__(kind)
        self.steps = steps
        self.created_at_step = machine.step

    def next(self, machine: Machine) -> Value | None:
        # A finished generator remains finished, as iterators over dicts, sets and strings do.
        return next(self.steps, None)

    def recipe(self, builder: Builder) -> Recipe:
        raise CannotRebuild(self.kind.__name__, self.created_at_step)


class TableIterator(StepIterator):
    """An iterator over a dictionary, one of its views, or a set.

    For an unchanged live container, an exit can rebuild it by advancing a new iterator to the
    position. A changed container may have another order.
    """

    __slots__ = ("count", "machine", "owner", "what")

    def __init__(
        self, machine: Machine, owner: Value, kind: type, steps: Iterator[Value], what: str = ""
    ) -> None:
        super().__init__(machine, kind, steps)
        self.machine = machine
        self.owner = owner
        self.what = what  # the name of the view; "" for the owner itself
        self.count = 0

    def next(self, machine: Machine) -> Value | None:
        item = super().next(machine)
        self.count += item is not None
        return item

    def recipe(self, builder: Builder) -> Recipe:
        owner = self.owner
        plain = owner.python_type(self.machine) in (dict, set, frozenset)
        if owner.source is None or not plain or owner.is_changed(self.machine):
            return super().recipe(builder)
        # Iterators over dicts and sets have no `__setstate__`: a new one is advanced instead.
        view = builder.constant(self.what), builder.constant(self.count)
        return builder.invoke(walked, (builder(owner), *view))

    def parts(self) -> Iterable[Value]:
        return (self.owner,)


class CheckedItems(Iterator[Value]):
    """Runs `check` before each item and before the end, so its error repeats as in CPython."""

    def __init__(
        self, check: Callable[[], None], items: Iterable[Value], *, after_end: bool = False
    ) -> None:
        self._check: Callable[[], None] | None = check
        self._items = iter(items)
        self._after_end = after_end  # an exhausted iterator runs `check`, too

    def __next__(self) -> Value:
        if self._check is not None:
            self._check()
        for item in self._items:
            return item
        if not self._after_end:
            self._check = None
        raise StopIteration


class _Combined(IteratorValue):
    """A base for iterators over other iterators."""

    __slots__ = ("sources",)

    def __init__(self, kind: type, sources: Sequence[Value]) -> None:
        super().__init__(kind)
        self.sources = tuple(sources)

    def items_left(self) -> int | None:
        counts = [_items_left(source) for source in self.sources]
        known = [count for count in counts if count is not None]
        # python_loops/training.py unrolls a training loop only if this number is known.
        return min(known, default=None) if len(known) == len(counts) else None

    def parts(self) -> Iterable[Value]:
        return self.sources


def _items_left(iterator: Value) -> int | None:
    return iterator.items_left() if isinstance(iterator, IteratorValue) else None


class ZipIterator(_Combined):
    __slots__ = ("make", "strict")

    def __init__(self, sources: Sequence[Value], make: MakeTuple, strict: bool = False) -> None:
        super().__init__(zip, sources)
        self.make = make
        self.strict = strict

    def next(self, machine: Machine) -> Value | None:
        items = []
        # As in zip_next, each input is advanced before the next one is asked: in `zip(a, b)` with a
        # shorter `b`, the iterator `a` loses one item more than zip() yields.
        for position, source in enumerate(self.sources):
            item = source.next(machine)
            if item is None:
                self._end(machine, position)
                return None
            items.append(item)
        result = self.make(items)
        # zip() without inputs is empty.
        return result if items else None

    def _end(self, machine: Machine, position: int) -> None:
        if not self.strict:
            return
        if position:
            many = f"arguments 1-{position}" if position > 1 else "argument 1"
            message = f"zip() argument {position + 1} is shorter than {many}"
            raise machine.error(ValueError, message, exact=True)
        # The first input has ended. PEP 618: all others must have ended as well, and the test takes
        # an item from one that has not.
        for other, source in enumerate(self.sources[1:], 2):
            if source.next(machine) is not None:
                many = f"arguments 1-{other - 1}" if other > 2 else "argument 1"
                message = f"zip() argument {other} is longer than {many}"
                raise machine.error(ValueError, message, exact=True)

    def recipe(self, builder: Builder) -> Recipe:
        options = {"strict": builder.constant(True)} if self.strict else {}
        return builder.invoke(zip, tuple(builder(source) for source in self.sources), **options)


class EnumerateIterator(_Combined):
    __slots__ = ("count", "make")

    def __init__(self, source: Value, start: int, make: MakeTuple) -> None:
        super().__init__(enumerate, (source,))
        self.count = start
        self.make = make

    def next(self, machine: Machine) -> Value | None:
        item = self.sources[0].next(machine)
        if item is None:
            return None
        self.count += 1
        return self.make([machine.constant(self.count - 1), item])

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(enumerate, (builder(self.sources[0]), builder.constant(self.count)))


class MapIterator(_Combined):
    __slots__ = ("function",)

    def __init__(self, function: Value, sources: Sequence[Value]) -> None:
        super().__init__(map, sources)
        self.function = function

    def next(self, machine: Machine) -> Value | None:
        items = []
        for source in self.sources:
            item = source.next(machine)
            if item is None:
                return None
            items.append(item)
        return self.function.call(machine, items, {})

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(
            map, tuple(builder(source) for source in (self.function, *self.sources))
        )

    def parts(self) -> Iterable[Value]:
        return (self.function, *self.sources)


class FilterIterator(_Combined):
    __slots__ = ("function",)

    def __init__(self, function: Value | None, source: Value) -> None:
        super().__init__(filter, (source,))
        self.function = function  # None tests the truth of the item

    def items_left(self) -> None:
        return None

    def next(self, machine: Machine) -> Value | None:
        while (item := self.sources[0].next(machine)) is not None:
            verdict = item if self.function is None else self.function.call(machine, [item], {})
            if verdict.realize(machine).truth(machine):
                return item
        return None

    def recipe(self, builder: Builder) -> Recipe:
        function = builder.constant(None) if self.function is None else builder(self.function)
        return builder.invoke(filter, (function, builder(self.sources[0])))

    def parts(self) -> Iterable[Value]:
        return self.sources if self.function is None else (self.function, *self.sources)
