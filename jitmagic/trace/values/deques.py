"""collections.deque.

Comes in: a deque that the traced code makes, modelled in full, or a live one. A live one gives no
path to its items, so it can only grow: what is added waits for the exit. Goes out: items, and
deques made of a list.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...guards.guard import TypeIs
from ...guards.source import Source
from ..builtins.registry import handles, method
from ..result import BuildList, Effect, Perform, Recipe
from ..wrap import wraps
from .base import Args, Builder, Kwargs, Machine, Value
from .callables import bind_builtin
from .iterators import StepIterator
from .opaque import WithoutOperators
from .operators import drain, equal, index_of, is_none

__all__ = ["DequeValue"]

Deque = collections.deque


class DequeValue(Value):
    """A deque. Every change goes through `change`, which keeps to `maxlen`."""

    __slots__ = ("items", "maxlen", "state")

    def __init__(
        self, items: Iterable[Value] = (), maxlen: int | None = None, source: Source | None = None
    ) -> None:
        super().__init__(source)
        self.items: Deque[Value] = Deque(items, maxlen)
        self.maxlen = maxlen
        self.state = 0  # counts changes: an iterator notices them

    def python_type(self, machine: Machine) -> type:
        return Deque

    def change(self, machine: Machine, items: Iterable[Value]) -> None:
        self.items = Deque(items, self.maxlen)
        self.state += 1

    def add(self, machine: Machine, items: Sequence[Value], *, left: bool = False) -> None:
        """append, extend and their kin."""
        (self.items.extendleft if left else self.items.extend)(items)
        self.state += 1

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name == "maxlen":
            return machine.constant(self.maxlen)
        return bind_builtin(machine, self, Deque, name)

    def position(self, machine: Machine, key: Value) -> int:
        index = index_of(machine, key)
        if not -len(self.items) <= index < len(self.items):
            raise machine.error(IndexError, "deque index out of range")
        return index

    def get_item(self, machine: Machine, key: Value) -> Value:
        return self.items[self.position(machine, key)]

    def set_item(self, machine: Machine, key: Value, value: Value) -> None:
        self.items[self.position(machine, key)] = value

    def del_item(self, machine: Machine, key: Value) -> None:
        items = list(self.items)
        del items[self.position(machine, key)]
        self.change(machine, items)

    def contains(self, machine: Machine, item: Value) -> Value:
        return machine.constant(any(equal(machine, one, item) for one in self.walk(machine)))

    def walk(self, machine: Machine, *, backwards: bool = False) -> Iterator[Value]:
        """The items in order; the deque must not change meanwhile, not even at the end."""
        state, items = self.state, tuple(self.items)
        for item in (*(reversed(items) if backwards else items), None):
            if self.state != state:
                raise machine.error(RuntimeError, "deque mutated during iteration", exact=True)
            if item is not None:
                yield item

    def length(self, machine: Machine) -> int:
        return len(self.items)

    def truth(self, machine: Machine) -> bool:
        return bool(self.items)

    def iterate(self, machine: Machine) -> Value:
        return StepIterator(machine, type(iter(Deque())), self.walk(machine))

    def backwards(self, machine: Machine) -> Value:
        """What `reversed` makes of it."""
        steps = self.walk(machine, backwards=True)
        return StepIterator(machine, type(reversed(Deque())), steps)

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if not isinstance(other, DequeValue):
            return None
        if op not in ("==", "!="):
            self.refuse(machine, f"comparison {op}")
        pairs = zip(tuple(self.items), tuple(other.items), strict=False)
        same = len(self.items) == len(other.items) and all(
            equal(machine, one, two) for one, two in pairs
        )
        return machine.constant(same == (op == "=="))

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        self.refuse(machine, f"operator {op}")

    def inplace(self, machine: Machine, op: str, other: Value) -> Value | None:
        if op != "+":
            self.refuse(machine, f"operator {op}=")
        self.add(machine, _each(machine, other))
        return self

    def recipe(self, builder: Builder) -> Recipe:
        items = BuildList(tuple(builder(item) for item in self.items))
        return builder.invoke(Deque, (items, builder.constant(self.maxlen)))

    def parts(self) -> Iterable[Value]:
        return tuple(self.items)


class LiveDeque(WithoutOperators):
    """A deque that existed before: it grows at one end, unread."""

    __slots__ = ("added", "left")

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.added: list[Value] = []
        self.left = False

    def python_type(self, machine: Machine) -> type:
        return Deque

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name in ("append", "appendleft", "extend", "extendleft"):
            return bind_builtin(machine, self, Deque, name)
        self.refuse(machine, f"attribute {name!r}")

    def add(self, machine: Machine, items: Sequence[Value], *, left: bool = False) -> None:
        if self.added and left != self.left:
            self.refuse(machine, "growth at both ends")
        self.left = left
        self.added.extend(items)
        machine.effects.contents(self)

    def replace(self, builder: Builder) -> Effect:
        """The effect that lets the live deque grow."""
        grow = builder.constant(Deque.extendleft if self.left else Deque.extend)
        added = BuildList(tuple(builder(item) for item in self.added))
        return Perform(grow, (builder(self), added))

    def parts(self) -> Iterable[Value]:
        return self.added

    def describe(self) -> str:
        return "a deque made before this graph"


def _each(machine: Machine, value: Value) -> list[Value]:
    value = value.realize(machine)
    if isinstance(value, DequeValue):
        return list(value.items)
    return list(drain(machine, value.iterate(machine).realize(machine)))


def _grown(owner: Value) -> Any:
    assert isinstance(owner, DequeValue | LiveDeque)
    return owner


def _known(machine: Machine, owner: Value) -> DequeValue:
    if not isinstance(owner, DequeValue):
        owner.refuse(machine, "reading")
    return owner


@handles(Deque)
def _make(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    named = {**dict(zip(("iterable", "maxlen"), args, strict=False)), **kwargs}
    limit = named.get("maxlen", machine.constant(None))
    maxlen = None if is_none(limit) else index_of(machine, limit)
    if maxlen is not None and maxlen < 0:
        raise machine.error(ValueError, "maxlen must be non-negative")
    return DequeValue(_each(machine, named["iterable"]) if "iterable" in named else (), maxlen)


@method(Deque, "append", lazy=True)
def _append(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    _grown(owner).add(machine, [args[0]])
    return machine.constant(None)


@method(Deque, "appendleft", lazy=True)
def _append_left(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    _grown(owner).add(machine, [args[0]], left=True)
    return machine.constant(None)


@method(Deque, "extend")
def _extend(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    _grown(owner).add(machine, _each(machine, args[0]))
    return machine.constant(None)


@method(Deque, "extendleft")
def _extend_left(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    _grown(owner).add(machine, _each(machine, args[0]), left=True)
    return machine.constant(None)


def _taken(machine: Machine, owner: Value, place: int) -> Value:
    target = _known(machine, owner)
    if not target.items:
        raise machine.error(IndexError, "pop from an empty deque", exact=True)
    items = list(target.items)
    item = items.pop(place)
    target.change(machine, items)
    return item


@method(Deque, "pop")
def _pop(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    return _taken(machine, owner, -1)


@method(Deque, "popleft")
def _pop_left(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    return _taken(machine, owner, 0)


@method(Deque, "clear")
def _clear(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    _known(machine, owner).change(machine, ())
    return machine.constant(None)


@method(Deque, "copy", "__copy__")
def _copy(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    target = _known(machine, owner)
    return DequeValue(target.items, target.maxlen)


@method(Deque, "reverse")
def _reverse(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    target = _known(machine, owner)
    target.change(machine, reversed(target.items))
    return machine.constant(None)


@method(Deque, "rotate")
def _rotate(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    target = _known(machine, owner)
    items = Deque(target.items)
    items.rotate(index_of(machine, args[0]) if args else 1)
    target.change(machine, items)
    return machine.constant(None)


@method(Deque, "count")
def _count(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    target = _known(machine, owner)
    same = (equal(machine, item, args[0]) for item in target.walk(machine))
    return machine.constant(sum(same))


@method(Deque, "__reversed__")
def _reversed(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    return _known(machine, owner).backwards(machine)


@wraps(Deque)
def _wrap_deque(machine: Machine, obj: Deque[Any], source: Source) -> Value:
    machine.guard(TypeIs(source, Deque))
    return LiveDeque(source)
