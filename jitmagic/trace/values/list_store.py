"""ListStore: what a list or deque holds, where that came from, and what the traced code did to it.

Comes in: items of a container made here, or a live container. Goes out: its items, guarded once
somebody asks for them (a length alone guards the length), and the effects that bring the live
container to what the model holds: the calls that changed it, or all items where that is less.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...guards.guard import LengthIs, ValueEquals
from ...guards.source import Contents, Item, SlotAttr, Source
from ..result import BuildList, Effect, Perform, Recipe, ReplaceList
from .base import Builder, Machine, Value

__all__ = ["ListStore", "wrap_items"]

Deque = collections.deque
Change = tuple[str, tuple[Any, ...]]  # a method and its arguments: ints, Values, lists of Values
_GROWTH = ("extend", "extendleft")  # what a container can be told that nobody looked at


class ListStore:
    """The contents of one list or deque."""

    __slots__ = ("_changes", "_items", "_limit", "kind", "live", "machine", "source", "state")

    def __init__(self, items: Iterable[Value] = (), kind: type = list, limit: int | None = None):
        self.kind = kind
        self.live: Any = None
        self.source: Source | None = None
        self.machine: Machine | None = None
        self._limit = limit
        self._items: list[Value] | None = self._grown([], list(items))
        self._changes: list[Change] | None = []  # None: more than calls can tell
        self.state = 0  # counts changes: an iterator over a deque notices them

    @classmethod
    def of_live(cls, machine: Machine, live: Any, source: Source) -> ListStore:
        """The store of a container whose type is guarded; nothing else of it is read."""
        made = cls((), type(live))
        made.machine, made.live, made.source = machine, live, source
        made._items = None
        return made

    # -- reading ---------------------------------------------------------------------------------

    @property
    def items(self) -> list[Value]:
        """All items; their number gets guarded."""
        if self._items is None:
            assert self.machine is not None
            assert self.source is not None
            path = Contents(self.source) if self.kind is Deque else self.source
            self._items = wrap_items(self.machine, tuple(self.live), path)
            for name, (more,) in self._changes or ():
                self._items = self._grown(self._items, more, left=name == "extendleft")
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

    def length(self) -> int:
        """How many items there are; only their number is guarded."""
        if self._items is not None:
            return len(self._items)
        assert self.machine is not None
        assert self.source is not None
        self.machine.guard(LengthIs(self.source, len(self.live)))
        count = len(self.live) + sum(len(more) for _, (more,) in self._changes or ())
        limit = self.limit if self._changes else None
        return count if limit is None else min(count, limit)

    # -- changing --------------------------------------------------------------------------------

    def extend(self, items: Sequence[Value], *, left: bool = False) -> None:
        """At one end; the items that are there need not be known."""
        if self._items is not None and self.kind is list:
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

    # -- exits -----------------------------------------------------------------------------------

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
        return [item for _, (more,) in self._changes or () for item in more]


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
