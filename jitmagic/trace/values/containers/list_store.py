"""ListStore models the contents of a list or deque and the changes that the traced code made.

Input: the items of a new container, or a live container. Output: its items, and the effects that
update the live container at an exit. A read of all items guards their number; a read of one guards
only that it exists. Appends read nothing, so one variant serves a list of any length. The effects
are the calls that changed it, or one that replaces all items if that is shorter.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ....guards.guard import LengthIs, ValueEquals
from ....guards.source import Contents, Item, ItemAt, Part, SlotAttr, Source
from ...python_loops.rolled import check_filled
from ...residual_calls import refill
from ...result import BuildList, Effect, FromSource, Perform, Recipe, ReplaceList
from ..base import Builder, Machine, Value
from .lengths import guard_length, is_filled, live_length

__all__ = ["ListStore", "wrap_items"]

Deque = collections.deque
Change = tuple[str, tuple[Any, ...]]  # a method and its arguments: ints, Values, lists of Values
_GROWTH = ("extend", "extendleft")  # calls that add items without reading any


class ListStore:
    """The contents of one list or deque."""

    __slots__ = ("_changes", "_front", "_items", "_limit", "kind", "live", "machine", "path",
                 "source", "state")  # fmt: skip

    def __init__(self, items: Iterable[Value] = (), kind: type = list, limit: int | None = None):
        self.kind = kind
        self.live: Any = None
        self.source: Source | None = None
        self.path: Source | None = None  # reads a list or tuple of its items
        self.machine: Machine | None = None
        self._limit = limit
        self._items: list[Value] | None = self._grown([], list(items))
        self._changes: list[Change] | None = []  # None: the items were replaced as a whole
        self._front = 0  # number of items removed from the front of an unread live container
        self.state = 0  # counts changes, which an iterator over a deque detects

    @classmethod
    def of_live(cls, machine: Machine, live: object, source: Source) -> ListStore:
        """Create the store of a live container whose type is guarded, without reading it."""
        store = cls((), type(live))
        store.machine, store.live, store.source = machine, live, source
        store.path = Contents(source) if store.kind is Deque else source
        store._items = None
        return store

    @classmethod
    def of_part(cls, machine: Machine, whole: Iterable[object], path: Part) -> ListStore:
        """Create the store of a new list that is a slice of a live one.

        Its items are read from the live one, but changes of the new list are no effects on it.
        """
        store = cls()
        store.machine, store.path, store._items = machine, path, None
        store.live = list(whole)[path.start : path.stop]
        return store

    # -- reading ---------------------------------------------------------------------------------

    @property
    def items(self) -> list[Value]:
        """All items; reading it guards their number."""
        if self._items is None:
            machine, path = self._where
            check_filled(machine, self.source)
            self._items = wrap_items(machine, tuple(self.live), path)
            for name, (more,) in self._changes or ():
                if name in _GROWTH:
                    self._items = self._grown(self._items, more, left=name == "extendleft")
                else:
                    del self._items[more]
        return self._items

    @property
    def limit(self) -> int | None:
        """The `maxlen` of a deque, guarded for a live one; None for a list."""
        if self.source is None or self.kind is not Deque:
            return self._limit
        assert self.machine is not None
        limit: int | None = self.live.maxlen
        self.machine.guard(ValueEquals(SlotAttr(self.source, "maxlen"), limit))
        return limit

    @property
    def _where(self) -> tuple[Machine, Source]:
        """The machine and the path of the items of a live container."""
        assert self.machine is not None
        assert self.path is not None
        return self.machine, self.path

    @property
    def _added(self) -> int:
        """The number of items that an unread live container has gained since the start."""
        appended = (len(more) for name, (more,) in self._changes or () if name in _GROWTH)
        return sum(appended) - self._front

    def length(self) -> int:
        """Return the number of items and guard that number, but no item."""
        if self._items is not None:
            return len(self._items)
        machine, path = self._where
        machine.guard(LengthIs(self.source or path, len(self.live)))
        count = len(self.live) + self._added
        # Reading `limit` guards it, which matters only if an append may have dropped an item.
        limit = self.limit if self._changes else None
        return count if limit is None else min(count, limit)

    def length_value(self, machine: Machine) -> Value:
        """Return the number of items as a Value that may be symbolic."""
        if self._items is not None:
            return machine.constant(len(self._items))
        source, added = self.source or self._where[1], self._added
        limit = self.limit if added else None
        if limit is not None and len(self.live) + added >= limit:
            guard_length(machine, source, limit - added)
            return machine.constant(limit)
        if limit is not None:
            guard_length(machine, source, 0, limit - added - 1)
        return live_length(machine, self.live, source, added)

    def is_filled(self, machine: Machine) -> bool:
        """Return whether there are any items, and guard only that."""
        if self._items is not None:
            return bool(self._items)
        if self._front:
            return self.length() > 0
        if self._added:
            return self.limit != 0
        return is_filled(machine, self.live, self.source or self._where[1])

    def _appended(self) -> list[Value] | None:
        """Return the values appended to an unread live container.

        None if it was read or changed otherwise; removals at the front are allowed.
        """
        if self._items is not None or self._changes is None:
            return None
        # An item added at the left moves all others to another index.
        if any(name == "extendleft" for name, _ in self._changes):
            return None
        return [item for name, (more,) in self._changes if name in _GROWTH for item in more]

    def at(self, index: int) -> Value | None:
        """Return one item and guard only that it exists; None if the caller must read them all."""
        appended = self._appended()
        if appended is None:
            return None
        limit = self.limit if appended else None
        if index < 0 and -index <= min(len(appended), limit or len(appended)):
            return appended[index]
        index += self._front if index >= 0 else len(appended)
        needed = index + 1 if index >= 0 else self._front - index
        out_of_reach = index >= 0 or len(appended) - index > limit if limit is not None else False
        if out_of_reach or needed > len(self.live):
            return None
        machine, path = self._where
        guard_length(machine, self.source or path, needed)
        return machine.lazy(self.live[index], Item(path, index))

    def at_source(self, index: int, source: Source) -> Value | None:
        """Return the item at a symbolic index, which is `index` in this call and read at `source`.

        None if the caller must read all items.
        """
        if self._front or self._appended() != [] or not -len(self.live) <= index < len(self.live):
            return None
        machine, path = self._where
        return machine.lazy(self.live[index], ItemAt(path, source))

    def part(self, key: slice) -> ListStore | None:
        """Return the store of the new list `self[key]`, which stays unread.

        None if the caller must read all items.
        """
        appended = self._appended()
        if appended is None or key.step not in (None, 1):
            return None
        start, stop, more = key.start or None, key.stop, len(appended)
        if (remaining := self._remaining(more)) is None:
            return None
        (machine, _), (live, path) = self._where, remaining
        if not more:
            return self.of_part(machine, live, Part(path, start, stop))
        # A positive bound may fall among the live or the appended items, depending on the length.
        if (start or 0) > 0 or (stop or -1) > 0 or stop == 0:
            return None
        if start is not None and -start <= more:
            return ListStore(appended[start:stop])
        begin = None if start is None else start + more
        end = None if stop is None or -stop <= more else stop + more
        store = self.of_part(machine, live, Part(path, begin, end))
        if end is None:
            store.extend(appended[:stop])
        return store

    # -- changing --------------------------------------------------------------------------------

    def extend(self, items: Sequence[Value], *, left: bool = False) -> None:
        """Add items at one end without reading the others."""
        # In place: rebuilding the list in each append makes a loop of appends quadratic.
        if self._items is not None and not left and self.limit is None:
            self._items.extend(items)
        elif self._items is not None:
            self._items[:] = self._grown(self._items, items, left=left)
        name = _GROWTH[left]
        if self._changes and self._changes[-1][0] == name:
            self._changes[-1][1][0].extend(items)
            self.state += 1
        else:
            self._note(name, list(items))

    def insert(self, index: int, item: Value) -> None:
        self.items.insert(index, item)
        self._note("insert", index, item)

    def put(self, index: int, item: Value) -> None:
        """Do `self[index] = item`."""
        self.items[index] = item
        self._note("__setitem__", index, item)

    def take(self, index: int) -> Value:
        """Remove and return `self[index]`."""
        item = self.items.pop(index)
        self._note("__delitem__", index)
        return item

    def take_first(self) -> Value | None:
        """Remove and return `self[0]`; None if the caller must read all items."""
        first = self.at(0) if self._items is None and self.limit is None else None
        if first is not None:
            self._front += 1
            self._note("__delitem__", 0)
        return first

    def rewrite(self, items: Sequence[Value]) -> None:
        """Replace all items."""
        self._items, self._changes = self._grown([], items), None
        self.state += 1

    def _note(self, name: str, *args: object) -> None:
        if self._changes is not None:
            self._changes.append((name, args))
        self.state += 1

    def _grown(self, items: list[Value], more: Sequence[Value], left: bool = False) -> list[Value]:
        """Return `items` with `more` added at one end, cut at the other end to `maxlen`."""
        limit = self.limit
        grown = [*reversed(more), *items] if left else [*items, *more]
        if limit is None or len(grown) <= limit:
            return grown
        return grown[:limit] if left else grown[len(grown) - limit :]

    def numbers(self) -> tuple[list[float], Source, list[Value]] | None:
        """Return (floats and ints of the live container, their path, the values appended to them).

        None if it holds other items or was read or changed otherwise.
        """
        appended = self._appended()
        remaining = None if appended is None else self._remaining(len(appended))
        if appended is None or remaining is None:
            return None
        numbers, path = remaining
        if not numbers or not all(type(number) in (float, int) for number in numbers):
            return None
        return numbers, path, appended

    def _remaining(self, added: int) -> tuple[list[Any], Source] | None:
        """Return the live items that remain after appending `added` items, and their path.

        None if the caller must read all items.
        """
        machine, path = self._where
        limit, live = self.limit if added else None, list(self.live)
        if self._front:
            return live[self._front :], Part(path, self._front, None)
        if limit is None:
            return live, path
        if len(live) + added <= limit:
            guard_length(machine, self.source or path, 0, limit - added)
            return live, path
        if added > limit or len(live) < limit:
            return None
        guard_length(machine, self.source or path, limit)
        return live[added:], Part(path, added, None)

    # -- exits -----------------------------------------------------------------------------------

    def copied(self, builder: Builder) -> Recipe:
        """Return the recipe of a new list of these items, copied from the source if unread."""
        # A recipe for each item would cost 8 us per item to describe the exit.
        if self._items is None and self.path is not None and not self._changes:
            return builder.invoke(list, (FromSource(self.path),))
        return BuildList(tuple(builder(item) for item in self.items))

    def effects(self, builder: Builder, owner: Value) -> tuple[Effect, ...]:
        """Return the effects that update the live container to these contents."""
        target, changes = builder(owner), self._changes
        # If there are more changes than items, one effect that replaces all items is shorter.
        whole = changes is None or (self._items is not None and len(changes) > len(self._items) + 1)
        if changes is not None and not whole and self.source is not None:
            return tuple(self._call(builder, target, *change) for change in changes)
        items = tuple(builder(item) for item in self.items)
        if self.kind is list:
            return (ReplaceList(target, items),)
        return (Perform(builder.constant(refill), (target, BuildList(items))),)

    def _call(
        self, builder: Builder, target: Recipe, name: str, args: tuple[object, ...]
    ) -> Effect:
        method: Callable[..., object] = getattr(self.kind, name)
        arguments = (_argument(builder, arg) for arg in args)
        return Perform(builder.constant(method), (target, *arguments))

    def parts(self) -> list[Value]:
        """Return the values that the trace has read from the container or added to it."""
        if self._items is not None:
            return list(self._items)
        return [item for name, (more,) in self._changes or () if name in _GROWTH for item in more]


def _argument(builder: Builder, argument: object) -> Recipe:
    if isinstance(argument, list):
        return BuildList(tuple(builder(item) for item in argument))
    return builder(argument) if isinstance(argument, Value) else builder.constant(argument)


def wrap_items(machine: Machine, obj: Sequence[object], source: Source) -> list[Value]:
    """Return the items of a live sequence as Lazy values, and guard its length."""
    machine.guard(LengthIs(source, len(obj)))
    return [machine.lazy(item, Item(source, index)) for index, item in enumerate(obj)]
