"""Models collections.deque.

Input: a deque that the traced code creates, or a live one, guarded by type. Output: items and new
deques. The contents are in a ListStore: a live deque that the program only appends to is not read,
and the exit appends the new items.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from functools import partial

from ....guards.guard import TypeIs
from ....guards.source import Source
from ...builtins.registry import handles, methods
from ...result import BuildList, Constant, Invoke, Recipe
from ...wrap import wraps
from ..base import Builder, Machine, Value
from ..objects.callables import bind_builtin
from ..objects.operators import index_of, is_none, unpack
from .iterators import CheckedItems, StepIterator
from .list_store import ListStore
from .sequences import StoredItems

__all__ = ["DequeValue"]

Deque = collections.deque


class DequeValue(StoredItems):
    """A deque, with an optional `maxlen`."""

    __slots__ = ()
    kind = Deque
    # The IndexError of `d[9] = x` has the text of a read, without list's "assignment".
    assigning = "index"

    def like(self, items: list[Value]) -> DequeValue:
        """Create a deque with the same `maxlen`."""
        return DequeValue(ListStore(items, Deque, self.store.limit))

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name == "maxlen":
            return machine.constant(self.store.limit)
        return bind_builtin(machine, self, Deque, name)

    def walk(self, machine: Machine, *, backwards: bool = False) -> Iterator[Value]:
        """Return an iterator; it raises RuntimeError if the deque changes, even at the end."""
        # dequeiter_next compares a counter of changes before it looks for an item, so even a step
        # past the last item raises. A list iterator would yield items that were appended meanwhile.
        items, state = tuple(self.items), self.store.state

        def check() -> None:
            if self.store.state != state:
                raise machine.error(RuntimeError, "deque mutated during iteration", exact=True)

        return CheckedItems(check, reversed(items) if backwards else items, after_end=True)

    def iterate(self, machine: Machine) -> Value:
        return StepIterator(machine, type(iter(Deque())), self.walk(machine))

    def backwards(self, machine: Machine) -> Value:
        """Return `reversed(self)`."""
        steps = self.walk(machine, backwards=True)
        return StepIterator(machine, type(reversed(Deque())), steps)

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if op == "*" and not reflected:
            return self.like(self.repeated(machine, other))
        if op == "+" and isinstance(other, DequeValue):
            left, right = (other, self) if reflected else (self, other)
            # deque_concat copies its left operand, so the result has the left `maxlen`.
            return left.like([*left.items, *right.items])
        self.refuse(machine, f"operator {op}")

    def recipe(self, builder: Builder) -> Recipe:
        items = BuildList(tuple(builder(item) for item in self.items))
        return builder.invoke(Deque, (items, builder.constant(self.store.limit)))

    def empty_recipe(self) -> Recipe | None:
        limit = () if self.store.limit is None else (Constant(self.store.limit),)
        return Invoke(Constant(Deque), (BuildList(()), *limit))


def _deque(owner: Value) -> DequeValue:
    assert isinstance(owner, DequeValue)
    return owner


@handles(Deque, like=lambda iterable=(), maxlen=None: None)
def _make(
    machine: Machine, iterable: Value | None = None, maxlen: Value | None = None
) -> DequeValue:
    limit = None if maxlen is None or is_none(maxlen) else index_of(machine, maxlen)
    if limit is not None and limit < 0:
        raise machine.error(ValueError, "maxlen must be non-negative")
    items = [] if iterable is None else unpack(machine, iterable)
    return DequeValue(ListStore(items, Deque, limit))


def _take(index: int, machine: Machine, owner: Value) -> Value:
    target = _deque(owner)
    # A queue without a `maxlen` (`q.append(x); q.popleft()`) is not read as a whole: its length is
    # guarded only from below, so one variant serves all longer ones.
    if index == 0 and (first := target.take_first(machine)) is not None:
        return first
    if not target.items:
        raise machine.error(IndexError, "pop from an empty deque", exact=True)
    return target.take(machine, index)


def _insert(machine: Machine, owner: Value, index: Value, item: Value) -> None:
    target = _deque(owner)
    # Other methods drop an item at the opposite end; only insert() refuses a full deque.
    if target.store.limit is not None and len(target.items) >= target.store.limit:
        raise machine.error(IndexError, "deque already at its maximum size", exact=True)
    target.insert(machine, index_of(machine, index), item)


def _rotate(machine: Machine, owner: Value, count: Value | None = None) -> None:
    items = Deque(_deque(owner).items)
    items.rotate(1 if count is None else index_of(machine, count))
    _deque(owner).change(machine, list(items))


def _copy(machine: Machine, owner: Value) -> Value:
    return _deque(owner).like(_deque(owner).items)


methods(Deque, {
    "append": lambda machine, owner, item: _deque(owner).append(machine, item),
    "appendleft": lambda machine, owner, item: _deque(owner).append(machine, item, left=True),
}, lazy=True)  # fmt: skip
methods(Deque, {
    "extend": lambda machine, owner, items: _deque(owner).extend(machine, items),
    "extendleft": lambda machine, owner, items: _deque(owner).extend(machine, items, left=True),
    "pop": partial(_take, -1),
    "popleft": partial(_take, 0),
    "insert": _insert,
    "rotate": _rotate,
    "copy": _copy,
    "__copy__": _copy,
    "clear": lambda machine, owner: _deque(owner).change(machine, ()),
    "reverse": lambda machine, owner: owner.change(machine, _deque(owner).items[::-1]),
    "__reversed__": lambda machine, owner: _deque(owner).backwards(machine),
})  # fmt: skip


@wraps(Deque)
def _wrap_deque(machine: Machine, obj: Deque[object], source: Source) -> Value:
    machine.guard(TypeIs(source, Deque))
    return DequeValue(ListStore.of_live(machine, obj, source))
