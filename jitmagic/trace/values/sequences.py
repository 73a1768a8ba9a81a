"""Tuples and lists (named tuples and torch.Size included) and slices.

Comes in: live sequences (guarded by type and length, items looked at lazily) or new ones.
Goes out: items, new sequences; a list that existed before and is changed becomes a ReplaceList
effect. A list that only grows (`losses.append(loss)`) is not looked at, whatever its length.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch

from ...guards.guard import LengthIs, TypeIs, ValueEquals
from ...guards.source import Item, Source
from ..result import BuildList, BuildSlice, BuildTuple, Effect, Perform, Recipe, ReplaceList
from ..wrap import wraps
from .base import Builder, Machine, Value
from .callables import bind_builtin
from .constants import ConstantValue
from .iterators import SequenceIterator
from .operators import compare, drain, equal, index_of

__all__ = [
    "ListValue",
    "SequenceValue",
    "SizeValue",
    "SliceValue",
    "StructuredTuple",
    "TupleValue",
    "wrap_items",
]


class SequenceValue(Value):
    """What tuples and lists share. `items` may hold values nobody looked at."""

    __slots__ = ("items",)
    kind: ClassVar[Any]  # the Python class

    def __init__(self, items: Iterable[Value], source: Source | None = None) -> None:
        super().__init__(source)
        self.items = list(items)

    def like(self, items: Iterable[Value]) -> Value:
        """A new plain sequence of this kind."""
        raise NotImplementedError

    def python_type(self, machine: Machine) -> type:
        kind: type = self.kind
        return kind

    def realized(self, machine: Machine) -> list[Value]:
        """The items, looked at."""
        return [item.realize(machine) for item in self.items]

    def is_constant(self, machine: Machine) -> bool:
        return all(item.is_constant(machine) for item in self.realized(machine))

    def as_constant(self, machine: Machine) -> Any:
        return self.kind(item.as_constant(machine) for item in self.realized(machine))

    def get_attr(self, machine: Machine, name: str) -> Value:
        return bind_builtin(machine, self, self.kind, name)

    def get_item(self, machine: Machine, key: Value) -> Value:
        if isinstance(key, SliceValue):
            return self.like(self.items[key.as_constant(machine)])
        try:
            return self.items[index_of(machine, key)]
        except IndexError:
            message = f"{self.kind.__name__} index out of range"
            raise machine.error(IndexError, message) from None

    def contains(self, machine: Machine, item: Value) -> Value:
        return machine.constant(any(equal(machine, one, item) for one in list(self.items)))

    def length(self, machine: Machine) -> int:
        return len(self.items)

    def iterate(self, machine: Machine) -> Value:
        return SequenceIterator(self)

    def truth(self, machine: Machine) -> bool:
        return bool(self.items)

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if op == "*" and isinstance(other, ConstantValue) and isinstance(other.value, int):
            return self.like(self.repeated(machine, other))
        if op == "+" and isinstance(other, SequenceValue) and other.base_kind is self.base_kind:
            left, right = (other, self) if reflected else (self, other)
            return self.like(left.items + right.items)
        return None

    def repeated(self, machine: Machine, count: Value) -> list[Value]:
        """The items `count` times over, unless that would fill the memory."""
        times = index_of(machine, count)
        if len(self.items) * times > machine.options.unroll_limit:
            self.refuse(machine, "a very long repetition")
        return self.items * times

    @property
    def base_kind(self) -> type:
        """tuple or list."""
        return list if issubclass(self.kind, list) else tuple

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if not isinstance(other, SequenceValue) or other.base_kind is not self.base_kind:
            return None
        if op in ("==", "!="):
            same = len(self.items) == len(other.items) and all(
                equal(machine, one, two) for one, two in zip(self.items, other.items, strict=True)
            )
            return machine.constant(same == (op == "=="))
        return self._ordered(machine, op, other)

    def _ordered(self, machine: Machine, op: str, other: SequenceValue) -> Value:
        for one, two in zip(self.items, other.items, strict=False):
            if not equal(machine, one, two):
                return compare(machine, op, one.realize(machine), two.realize(machine))
        lengths = machine.constant(len(self.items)), machine.constant(len(other.items))
        return compare(machine, op, *lengths)

    def parts(self) -> Iterable[Value]:
        return self.items


class TupleValue(SequenceValue):
    """An exact tuple."""

    __slots__ = ()
    kind: ClassVar[Any] = tuple

    def like(self, items: Iterable[Value]) -> Value:
        return TupleValue(items)

    def hash_key(self, machine: Machine) -> object:
        return tuple(item.hash_key(machine) for item in self.realized(machine))

    def recipe(self, builder: Builder) -> Recipe:
        return BuildTuple(tuple(builder(item) for item in self.items))


class SizeValue(TupleValue):
    """A torch.Size: a tuple of ints that prints differently; all constant."""

    __slots__ = ()
    kind = torch.Size

    def like(self, items: Iterable[Value]) -> Value:
        return SizeValue(items)

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name == "numel":
            return ConstantValue(self.as_constant(machine)).get_attr(machine, name)
        return super().get_attr(machine, name)

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        both = isinstance(other, SequenceValue) and self.is_constant(machine)
        if op == "+" and both and other.is_constant(machine):
            pair = [one.as_constant(machine) for one in (self, other)]
            return machine.constant(operator.add(*(reversed(pair) if reflected else pair)))
        return super().binary(machine, op, other, reflected=reflected)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(torch.Size, (super().recipe(builder),))


class ListValue(SequenceValue):
    """An exact list. Every change goes through `change`, which logs the effect."""

    __slots__ = ()
    kind = list

    def like(self, items: Iterable[Value]) -> Value:
        return ListValue(items)

    def change(self, machine: Machine, items: Sequence[Value]) -> None:
        """The list has these items from now on."""
        self.items[:] = items
        machine.effects.contents(self)

    def extend(self, machine: Machine, value: Value) -> None:
        """`list.extend`: item by item, as what gives them may look at the list, or raise."""
        for item in _each(machine, value):
            self.append(machine, item)

    def append(self, machine: Machine, item: Value) -> None:
        """`list.append`; the item need not be looked at."""
        self.items.append(item)
        machine.effects.contents(self)

    def set_item(self, machine: Machine, key: Value, value: Value) -> None:
        items = list(self.items)
        if isinstance(key, SliceValue):
            items[key.as_constant(machine)] = list(_each(machine, value))
        else:
            items[self._position(machine, key, "assignment index")] = value
        self.change(machine, items)

    def del_item(self, machine: Machine, key: Value) -> None:
        items = list(self.items)
        if isinstance(key, SliceValue):
            del items[key.as_constant(machine)]
        else:
            del items[self._position(machine, key, "assignment index")]
        self.change(machine, items)

    def _position(self, machine: Machine, key: Value, what: str) -> int:
        index = index_of(machine, key)
        if not -len(self.items) <= index < len(self.items):
            raise machine.error(IndexError, f"list {what} out of range")
        return index

    def inplace(self, machine: Machine, op: str, other: Value) -> Value | None:
        if op == "+":
            self.extend(machine, other)
            return self
        if op == "*":
            self.change(machine, self.repeated(machine, other))
            return self
        return None

    def recipe(self, builder: Builder) -> Recipe:
        return BuildList(tuple(builder(item) for item in self.items))

    def empty_recipe(self) -> Recipe | None:
        return BuildList(())

    def replace(self, builder: Builder) -> Effect:
        """The effect that brings the live list to these contents."""
        return ReplaceList(builder(self), tuple(builder(item) for item in self.items))


class LiveList(ListValue):
    """A list that existed before. Until somebody asks for its items it has none in the model, no
    guard of its length, and what is added waits in `added`.
    """

    __slots__ = ("_items", "added", "live", "machine")

    def __init__(self, machine: Machine, live: Sequence[object], source: Source) -> None:
        Value.__init__(self, source)
        self.machine, self.live = machine, live
        self.added: list[Value] = []
        self._items: list[Value] | None = None

    @property
    def items(self) -> list[Value]:  # type: ignore[override]
        if self._items is None:
            assert self.source is not None
            self._items = [*wrap_items(self.machine, self.live, self.source), *self.added]
        return self._items

    def append(self, machine: Machine, item: Value) -> None:
        (self.added if self._items is None else self._items).append(item)
        machine.effects.contents(self)

    def replace(self, builder: Builder) -> Effect:
        if self._items is not None:
            return super().replace(builder)
        added = BuildList(tuple(builder(item) for item in self.added))
        return Perform(builder.constant(list.extend), (builder(self), added))

    def parts(self) -> Iterable[Value]:
        return self.added if self._items is None else self._items


def _each(machine: Machine, value: Value) -> Iterable[Value]:
    """The items of a sequence as they are now; those of anything else as it comes to them."""
    value = value.realize(machine)
    if isinstance(value, SequenceValue):
        return list(value.items)
    return drain(machine, value.iterate(machine).realize(machine))


class SliceValue(Value):
    """A slice object; immutable."""

    __slots__ = ("items",)

    def __init__(self, items: Sequence[Value], source: Source | None = None) -> None:
        super().__init__(source)
        self.items = tuple(items)

    def python_type(self, machine: Machine) -> type:
        return slice

    def is_constant(self, machine: Machine) -> bool:
        return all(item.realize(machine).is_constant(machine) for item in self.items)

    def as_constant(self, machine: Machine) -> Any:
        return slice(*(item.realize(machine).as_constant(machine) for item in self.items))

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return self.items[("start", "stop", "step").index(name)]
        if name == "indices" and self.is_constant(machine):
            return _SliceIndices(self)
        self.refuse(machine, f"attribute {name!r}")

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if not isinstance(other, SliceValue) or op not in ("==", "!="):
            self.refuse(machine, f"comparison {op}")
        same = all(equal(machine, a, b) for a, b in zip(self.items, other.items, strict=True))
        return machine.constant(same == (op == "=="))

    def truth(self, machine: Machine) -> bool:
        return True

    def recipe(self, builder: Builder) -> Recipe:
        start, stop, step = (builder(item) for item in self.items)
        return BuildSlice((start, stop, step))

    def parts(self) -> Iterable[Value]:
        return self.items


class _SliceIndices(Value):
    """`slice.indices`, bound."""

    __slots__ = ("owner",)

    def __init__(self, owner: SliceValue) -> None:
        super().__init__()
        self.owner = owner

    def call(self, machine: Machine, args: Sequence[Value], kwargs: Any) -> Value:
        length = index_of(machine, args[0])
        return machine.constant(self.owner.as_constant(machine).indices(length))

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(getattr, (builder(self.owner), builder.constant("indices")))


def wrap_items(machine: Machine, obj: Sequence[object], source: Source) -> list[Value]:
    """The items of a live sequence, unlooked-at; its length gets guarded."""
    machine.guard(LengthIs(source, len(obj)))
    return [machine.lazy(item, Item(source, index)) for index, item in enumerate(obj)]


@wraps(tuple)
def _wrap_tuple(machine: Machine, obj: tuple[object, ...], source: Source) -> Value:
    machine.guard(TypeIs(source, tuple))
    return TupleValue(wrap_items(machine, obj, source), source)


@wraps(list)
def _wrap_list(machine: Machine, obj: list[object], source: Source) -> Value:
    machine.guard(TypeIs(source, list))
    return LiveList(machine, obj, source)


@wraps(torch.Size)
def _wrap_size(machine: Machine, obj: torch.Size, source: Source) -> Value:
    machine.guard(ValueEquals(source, obj))
    return SizeValue([machine.constant(size) for size in obj], source)


@wraps(slice)
def _wrap_slice(machine: Machine, obj: slice, source: Source) -> Value:
    machine.guard(ValueEquals(source, obj))
    parts = [machine.constant(part) for part in (obj.start, obj.stop, obj.step)]
    return SliceValue(parts, source)


class StructuredTuple(TupleValue):
    """A result of class torch.return_types.*: a tuple whose items have names."""

    __slots__ = ("_kind",)

    def __init__(self, kind: type, items: Sequence[Value]) -> None:
        super().__init__(items)
        self._kind = kind

    def python_type(self, machine: Machine) -> type:
        return self._kind

    def get_attr(self, machine: Machine, name: str) -> Value:
        names = [key for key in vars(self._kind) if not key.startswith("_")]
        fields = getattr(self._kind, "_fields", None) or _structure_fields(self._kind, names)
        return self.items[fields.index(name)] if name in fields else super().get_attr(machine, name)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(self._kind, (super().recipe(builder),))


def _structure_fields(kind: Any, names: Sequence[str]) -> list[str]:
    """Names of a structseq's fields in order, read off an instance that holds its own indices."""
    probe = kind(range(kind.n_sequence_fields))
    found = {name: getattr(probe, name) for name in names if not name.startswith("n_")}
    return sorted((n for n, at in found.items() if type(at) is int), key=lambda n: found[n])
