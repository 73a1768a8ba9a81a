"""ListStore: what a list or deque holds, where that came from, and what the traced code did to it.

Comes in: items of a container made here, or a live container. Goes out: its items, guarded once
somebody asks for all of them (who asks for some guards that these are there), and the effects that
bring the live container to what the model holds: the calls that changed it, or all items where that
is less.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ....guards.guard import LengthIs, ValueEquals
from ....guards.source import Contents, Item, ItemAt, Part, SlotAttr, Source
from ...python_loops.rolled import check_filled
from ...result import BuildList, Effect, FromSource, Perform, Recipe, ReplaceList
from ..base import Builder, Machine, Value
from .lengths import guard_length, is_filled, live_length

__all__ = ["ListStore", "wrap_items"]

Deque = collections.deque
Change = tuple[str, tuple[Any, ...]]  # a method and its arguments: ints, Values, lists of Values
_GROWTH = ("extend", "extendleft")  # what a container can be told that nobody looked at


class ListStore:
    """The contents of one list or deque."""

    __slots__ = ("_changes", "_front", "_items", "_limit", "kind", "live", "machine", "path",
                 "source", "state")  # fmt: skip

    def __init__(self, items: Iterable[Value] = (), kind: type = list, limit: int | None = None):
        self.kind = kind
        self.live: Any = None
        self.source: Source | None = None
        self.path: Source | None = None  # of its items, as a list or tuple
        self.machine: Machine | None = None
        self._limit = limit
        self._items: list[Value] | None = self._grown([], list(items))
        self._changes: list[Change] | None = []  # None: more than calls can tell
        self._front = 0  # how many were taken from the front of a live one nobody looked at
        self.state = 0  # counts changes: an iterator over a deque notices them

    @classmethod
    def of_live(cls, machine: Machine, live: Any, source: Source) -> ListStore:
        """The store of a container whose type is guarded; nothing else of it is read."""
        made = cls((), type(live))
        made.machine, made.live, made.source = machine, live, source
        made.path = Contents(source) if made.kind is Deque else source
        made._items = None
        return made

    @classmethod
    def of_part(cls, machine: Machine, whole: Iterable[Any], path: Part) -> ListStore:
        """The store of a new list of a part of what is there: nobody is told of its changes."""
        made = cls()
        made.machine, made.path, made._items = machine, path, None
        made.live = list(whole)[path.start : path.stop]
        return made

    # -- reading ---------------------------------------------------------------------------------

    @property
    def items(self) -> list[Value]:
        """All items; their number gets guarded."""
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
        """`maxlen` of a deque."""
        if self.source is None or self.kind is not Deque:
            return self._limit
        assert self.machine is not None
        limit: int | None = self.live.maxlen
        self.machine.guard(ValueEquals(SlotAttr(self.source, "maxlen"), limit))
        return limit

    @property
    def _where(self) -> tuple[Machine, Source]:
        """Of a container that was there: who guards it, and the path of its items."""
        assert self.machine is not None
        assert self.path is not None
        return self.machine, self.path

    @property
    def _added(self) -> int:
        """How many items more a live container has than at the start."""
        put = (len(more) for name, (more,) in self._changes or () if name in _GROWTH)
        return sum(put) - self._front

    def length(self) -> int:
        """How many items there are; only their number is guarded."""
        if self._items is not None:
            return len(self._items)
        machine, path = self._where
        machine.guard(LengthIs(self.source or path, len(self.live)))
        count = len(self.live) + self._added
        limit = self.limit if self._changes else None
        return count if limit is None else min(count, limit)

    def counted(self, machine: Machine) -> Value:
        """The same as a number that may vary."""
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
        """Whether there are any items."""
        if self._items is not None:
            return bool(self._items)
        if self._front:
            return self.length() > 0
        if self._added:
            return self.limit != 0
        return is_filled(machine, self.live, self.source or self._where[1])

    def _put_behind(self) -> list[Value] | None:
        """What was put to the end of a live container nobody looked at, of which no more than items
        at the front were taken away; None: it was changed otherwise, or all items are known anyway.
        """
        if self._items is not None or self._changes is None:
            return None
        if any(name == "extendleft" for name, _ in self._changes):
            return None
        return [item for name, (more,) in self._changes if name in _GROWTH for item in more]

    def at(self, index: int) -> Value | None:
        """An item of a live container, where only it is guarded; None: all are to be looked at."""
        behind = self._put_behind()
        if behind is None:
            return None
        limit = self.limit if behind else None
        if index < 0 and -index <= min(len(behind), limit or len(behind)):
            return behind[index]
        index += self._front if index >= 0 else len(behind)
        needed = index + 1 if index >= 0 else self._front - index
        out_of_reach = index >= 0 or len(behind) - index > limit if limit is not None else False
        if out_of_reach or needed > len(self.live):
            return None
        machine, path = self._where
        guard_length(machine, self.source or path, needed)
        return machine.lazy(self.live[index], Item(path, index))

    def at_place(self, index: int, place: Source) -> Value | None:
        """The same, of an index that is read where `place` leads, as it is in this call."""
        if self._front or self._put_behind() != [] or not -len(self.live) <= index < len(self.live):
            return None
        machine, path = self._where
        return machine.lazy(self.live[index], ItemAt(path, place))

    def part(self, key: slice) -> ListStore | None:
        """`self[key]` as the store of a new list, of which no more is guarded; None as above."""
        behind = self._put_behind()
        if behind is None or key.step not in (None, 1):
            return None
        start, stop, more = key.start or None, key.stop, len(behind)
        if (kept := self._kept(more)) is None:
            return None
        (machine, _), (live, path) = self._where, kept
        if not more:
            return self.of_part(machine, live, Part(path, start, stop))
        # An end that is counted from the front may lie in either half.
        if (start or 0) > 0 or (stop or -1) > 0 or stop == 0:
            return None
        if start is not None and -start <= more:
            return ListStore(behind[start:stop])
        begin = None if start is None else start + more
        end = None if stop is None or -stop <= more else stop + more
        made = self.of_part(machine, live, Part(path, begin, end))
        if end is None:
            made.extend(behind[:stop])
        return made

    # -- changing --------------------------------------------------------------------------------

    def extend(self, items: Sequence[Value], *, left: bool = False) -> None:
        """At one end; the items that are there need not be known."""
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
        """`self[index] = item`."""
        self.items[index] = item
        self._note("__setitem__", index, item)

    def take(self, index: int) -> Value:
        """`self[index]`, removed."""
        item = self.items.pop(index)
        self._note("__delitem__", index)
        return item

    def take_first(self) -> Value | None:
        """`self[0]`, removed; None: all items are to be looked at."""
        first = self.at(0) if self._items is None and self.limit is None else None
        if first is not None:
            self._front += 1
            self._note("__delitem__", 0)
        return first

    def rewrite(self, items: Sequence[Value]) -> None:
        """These are the items from now on."""
        self._items, self._changes = self._grown([], items), None
        self.state += 1

    def _note(self, name: str, *args: Any) -> None:
        if self._changes is not None:
            self._changes.append((name, args))
        self.state += 1

    def _grown(self, items: list[Value], more: Sequence[Value], left: bool = False) -> list[Value]:
        """With `more` at one end, and what `maxlen` pushes out at the other gone."""
        limit = self.limit
        made = [*reversed(more), *items] if left else [*items, *more]
        if limit is None or len(made) <= limit:
            return made
        return made[:limit] if left else made[len(made) - limit :]

    def numbers(self) -> tuple[list[float], Source, list[Value]] | None:
        """The floats and ints that a live container held, where they are read, and what came behind
        them; None: it is more than that, or not known to be what it was.
        """
        behind = self._put_behind()
        kept = None if behind is None else self._kept(len(behind))
        if behind is None or kept is None:
            return None
        numbers, path = kept
        if not numbers or not all(type(number) in (float, int) for number in numbers):
            return None
        return numbers, path, behind

    def _kept(self, added: int) -> tuple[list[Any], Source] | None:
        """What is left of a live container to whose end so many were added; None: all of them are
        to be looked at.
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
        """A new list of these items; what nobody looked at is read as it is in the call."""
        if self._items is None and self.path is not None and not self._changes:
            return builder.invoke(list, (FromSource(self.path),))
        return BuildList(tuple(builder(item) for item in self.items))

    def tell(self, builder: Builder, owner: Value) -> tuple[Effect, ...]:
        """The effects that bring the live container to these contents."""
        me, changes = builder(owner), self._changes
        whole = changes is None or (self._items is not None and len(changes) > len(self._items) + 1)
        if changes is not None and not whole and self.source is not None:
            return tuple(self._call(builder, me, *change) for change in changes)
        items = tuple(builder(item) for item in self.items)
        if self.kind is list:
            return (ReplaceList(me, items),)
        return (Perform(builder.constant(refill), (me, BuildList(items))),)

    def _call(self, builder: Builder, me: Recipe, name: str, args: tuple[Any, ...]) -> Effect:
        method: Callable[..., Any] = getattr(self.kind, name)
        return Perform(builder.constant(method), (me, *(_told(builder, arg) for arg in args)))

    def parts(self) -> list[Value]:
        """The values it holds, as far as anybody knows."""
        if self._items is not None:
            return list(self._items)
        return [item for name, (more,) in self._changes or () if name in _GROWTH for item in more]


def _told(builder: Builder, argument: Any) -> Recipe:
    if isinstance(argument, list):
        return BuildList(tuple(builder(item) for item in argument))
    return builder(argument) if isinstance(argument, Value) else builder.constant(argument)


def refill(target: Deque[Any], items: list[Any]) -> None:
    """Give a deque these contents."""
    target.clear()
    target.extend(items)


def wrap_items(machine: Machine, obj: Sequence[object], source: Source) -> list[Value]:
    """The items of a live sequence, unlooked-at; its length gets guarded."""
    machine.guard(LengthIs(source, len(obj)))
    return [machine.lazy(item, Item(source, index)) for index, item in enumerate(obj)]
