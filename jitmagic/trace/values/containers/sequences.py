"""Models tuples, lists, torch.Size, struct sequences and slices.

Input: live sequences, guarded by type with lazy items, or new ones. Output: items and new
sequences. The contents of a list, and of a deque (deques.py), are in a ListStore (list_store.py).
A list that the program only appends to (`losses.append(loss)`) is not read and may have any length.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch

from ....guards.guard import TypeIs, ValueEquals
from ....guards.source import Source
from ...result import BuildList, BuildSlice, BuildTuple, Effect, Recipe
from ...wrap import wraps
from ..base import Builder, Machine, Value
from ..objects.callables import bind_builtin
from ..objects.constants import ConstantValue, evaluate, fold
from ..objects.operators import RemainingItems, compare, equal, index_of
from .iterators import SequenceIterator
from .list_store import ListStore, wrap_items

__all__ = [
    "ItemsValue",
    "ListValue",
    "SequenceValue",
    "SizeValue",
    "SliceValue",
    "StoredItems",
    "StructuredTuple",
    "TupleValue",
    "each_item",
]


class ItemsValue(Value):
    """A base for values with ordered items, which may be Lazy."""

    __slots__ = ()
    kind: ClassVar[type]  # the Python class
    items: list[Value]

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def get_attr(self, machine: Machine, name: str) -> Value:
        return bind_builtin(machine, self, self.kind, name)

    def get_item(self, machine: Machine, key: Value) -> Value:
        return self.items[self.position(machine, key, "index")]

    def position(self, machine: Machine, key: Value, what: str) -> int:
        """Return a constant index, or raise IndexError if it is out of range."""
        index = index_of(machine, key)
        if not -len(self.items) <= index < len(self.items):
            name = self.kind.__name__
            raise machine.error(IndexError, f"{name} {what} out of range")
        return index

    def walk(self, machine: Machine) -> Iterable[Value]:
        """Return a copy of the items to loop over, since user code (`__eq__`) may change them."""
        return list(self.items)

    def contains(self, machine: Machine, item: Value) -> Value:
        return machine.constant(
            any(equal(machine, element, item) for element in self.walk(machine))
        )

    def length(self, machine: Machine) -> int:
        return len(self.items)

    def truth(self, machine: Machine) -> bool:
        return self.length(machine) > 0

    def repeated(self, machine: Machine, count: Value) -> list[Value]:
        """Return the items repeated `count` times; break if there are over `unroll_limit`."""
        times = index_of(machine, count)
        if len(self.items) * times > machine.options.unroll_limit:
            self.refuse(machine, "a very long repetition")
        return self.items * times

    @property
    def base_kind(self) -> type:
        """The builtin base (tuple, list or deque), with which it compares."""
        bases = (list, collections.deque, tuple)
        return next(base for base in bases if issubclass(self.kind, base))

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if not isinstance(other, ItemsValue) or other.base_kind is not self.base_kind:
            return None
        if op in ("==", "!="):
            pairs = zip(self.walk(machine), other.walk(machine), strict=False)
            same = self.length(machine) == other.length(machine) and all(
                equal(machine, left, right) for left, right in pairs
            )
            return machine.constant(same == (op == "=="))
        return self._ordered(machine, op, other)

    def _ordered(self, machine: Machine, op: str, other: ItemsValue) -> Value:
        for left, right in zip(self.walk(machine), other.walk(machine), strict=False):
            # list_richcompare applies the operator only to the first two items that are unequal.
            if not equal(machine, left, right):
                return compare(machine, op, left.realize(machine), right.realize(machine))
        lengths = machine.constant(len(self.items)), machine.constant(len(other.items))
        return compare(machine, op, *lengths)

    def parts(self) -> Iterable[Value]:
        return self.items


class SequenceValue(ItemsValue):
    """A base for tuples and lists."""

    __slots__ = ()

    def like(self, items: Iterable[Value]) -> Value:
        """Create a plain sequence of this kind."""
        raise NotImplementedError

    def realized(self, machine: Machine) -> list[Value]:
        """Return the realized items."""
        return [item.realize(machine) for item in self.items]

    def is_constant(self, machine: Machine) -> bool:
        return all(item.is_constant(machine) for item in self.realized(machine))

    def as_constant(self, machine: Machine) -> object:
        return self.kind(item.as_constant(machine) for item in self.realized(machine))

    def get_item(self, machine: Machine, key: Value) -> Value:
        if isinstance(key, SliceValue):
            return self.like(self.items[key.bounds(machine)])
        return super().get_item(machine, key)

    def iterate(self, machine: Machine) -> Value:
        return SequenceIterator(self)

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if op == "*" and isinstance(other, ConstantValue) and isinstance(other.value, int):
            return self.like(self.repeated(machine, other))
        if op == "+" and isinstance(other, SequenceValue) and other.base_kind is self.base_kind:
            left, right = (other, self) if reflected else (self, other)
            return self.like(left.items + right.items)
        return None


class TupleValue(SequenceValue):
    """An exact tuple."""

    __slots__ = ("items",)
    kind: ClassVar[type] = tuple

    def __init__(self, items: Iterable[Value], source: Source | None = None) -> None:
        super().__init__(source)
        self.items = list(items)

    def like(self, items: Iterable[Value]) -> Value:
        return TupleValue(items)

    def identity(self) -> object:
        # CPython has one empty tuple.
        return self if self.items or self.kind is not tuple else ()

    def get_item(self, machine: Machine, key: Value) -> Value:
        if isinstance(key, SliceValue) and self.kind is tuple:
            size = len(self.items)
            if key.bounds(machine).indices(size) == (0, size, 1):
                return self  # CPython returns the tuple itself for t[:], t + () and t * 1
        return super().get_item(machine, key)

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        result = super().binary(machine, op, other, reflected=reflected)
        if not isinstance(result, TupleValue):
            return result
        # CPython returns an exact tuple itself for `t + ()` and `t * 1`.
        operands = (value for value in (self, other) if isinstance(value, TupleValue))
        whole = (value for value in operands if len(value.items) == len(result.items))
        return next((value for value in whole if value.kind is result.kind is tuple), result)

    def hash_key(self, machine: Machine) -> object:
        return tuple(item.hash_key(machine) for item in self.realized(machine))

    def recipe(self, builder: Builder) -> Recipe:
        return BuildTuple(tuple(builder(item) for item in self.items))


class SizeValue(TupleValue):
    """A torch.Size, a tuple of ints that prints differently."""

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
        is_sum = op == "+" and isinstance(other, SequenceValue) and not self._varies(machine, other)
        if is_sum and self.is_constant(machine) and other.is_constant(machine):
            # torch.Size has an `__add__` of its own: it refuses lists, and items that are not ints.
            return fold(machine, operator.add, *((other, self) if reflected else (self, other)))
        return super().binary(machine, op, other, reflected=reflected)

    def _varies(self, machine: Machine, other: SequenceValue) -> bool:
        """Return whether both contain only ints, and one of them a symbolic int."""
        items = [*self.realized(machine), *other.realized(machine)]
        ints = all(item.python_type(machine) is int for item in items)
        return ints and any(item.varies for item in items)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(torch.Size, (super().recipe(builder),))


class StoredItems(ItemsValue):
    """A base for lists and deques, which are mutable; their items are in a ListStore."""

    __slots__ = ("store",)
    assigning: ClassVar[str]  # the word for a written index in CPython's IndexError

    def __init__(self, store: ListStore) -> None:
        super().__init__(store.source)
        self.store = store

    @property
    def items(self) -> list[Value]:  # type: ignore[override]
        return self.store.items

    def length(self, machine: Machine) -> int:
        return self.store.length()

    def length_value(self, machine: Machine) -> Value:
        return self.store.length_value(machine)

    def truth(self, machine: Machine) -> bool:
        return self.store.is_filled(machine)

    def get_item(self, machine: Machine, key: Value) -> Value:
        found = None
        if (sourced := key.as_sourced_int(machine)) is not None:
            found = self.store.at_source(*sourced)
        elif not isinstance(key, SliceValue):
            found = self.store.at(index_of(machine, key))
        return super().get_item(machine, key) if found is None else found

    def as_list(self) -> ListValue:
        """Create a list of the items."""
        part = self.store.part(slice(None))
        return ListValue(self.items) if part is None else ListValue(store=part)

    def change(self, machine: Machine, items: Sequence[Value]) -> None:
        """Replace all items."""
        self.store.rewrite(items)
        machine.effects.contents(self)

    def append(self, machine: Machine, item: Value, *, left: bool = False) -> None:
        """Append an item; neither it nor the others are read, so no guard is installed."""
        self.store.extend([item], left=left)
        machine.effects.contents(self)

    def extend(self, machine: Machine, value: Value, *, left: bool = False) -> None:
        """Add the items; one by one for an iterator, which may raise or read the container."""
        real = value.realize(machine)
        if isinstance(real, ItemsValue):
            # list_extend copies the items first, so `items.extend(items)` ends.
            if items := list(real.items):
                self.store.extend(items, left=left)
                machine.effects.contents(self)
            return
        for item in each_item(machine, real):
            self.append(machine, item, left=left)

    def insert(self, machine: Machine, index: int, item: Value) -> None:
        self.store.insert(index, item)
        machine.effects.contents(self)

    def take(self, machine: Machine, index: int) -> Value:
        """Remove and return the item at an index."""
        item = self.store.take(index)
        machine.effects.contents(self)
        return item

    def take_first(self, machine: Machine) -> Value | None:
        """Remove and return the first item; None if the caller must read all items."""
        item = self.store.take_first()
        if item is not None:
            machine.effects.contents(self)
        return item

    def set_item(self, machine: Machine, key: Value, value: Value) -> None:
        self.store.put(self.position(machine, key, self.assigning), value)
        machine.effects.contents(self)

    def del_item(self, machine: Machine, key: Value) -> None:
        self.take(machine, self.position(machine, key, self.assigning))

    def inplace(self, machine: Machine, op: str, other: Value) -> Value | None:
        if op == "+":
            self.extend(machine, other)
            return self
        if op == "*":
            self.change(machine, self.repeated(machine, other))
            return self
        return None

    def replace(self, builder: Builder) -> tuple[Effect, ...]:
        """Return the effects that update the live container to these contents."""
        return self.store.effects(builder, self)

    def parts(self) -> Iterable[Value]:
        return self.store.parts()


class ListValue(StoredItems, SequenceValue):
    """An exact list."""

    __slots__ = ()
    kind = list
    assigning = "assignment index"

    def __init__(self, items: Iterable[Value] = (), store: ListStore | None = None) -> None:
        super().__init__(store or ListStore(items))

    def like(self, items: Iterable[Value]) -> Value:
        return ListValue(items)

    def get_item(self, machine: Machine, key: Value) -> Value:
        part = self.store.part(key.bounds(machine)) if isinstance(key, SliceValue) else None
        return super().get_item(machine, key) if part is None else ListValue(store=part)

    def set_item(self, machine: Machine, key: Value, value: Value) -> None:
        if not isinstance(key, SliceValue):
            super().set_item(machine, key, value)
            return
        bounds, new = key.bounds(machine), list(each_item(machine, value))
        items = list(self.items)
        evaluate(machine, operator.setitem, items, bounds, new)
        self.change(machine, items)

    def del_item(self, machine: Machine, key: Value) -> None:
        if not isinstance(key, SliceValue):
            super().del_item(machine, key)
            return
        items = list(self.items)
        del items[key.bounds(machine)]
        self.change(machine, items)

    def recipe(self, builder: Builder) -> Recipe:
        return self.store.copied(builder)

    def empty_recipe(self) -> Recipe | None:
        return BuildList(())


def each_item(machine: Machine, value: Value) -> Iterable[Value]:
    """Iterate over a snapshot of a sequence's items, or lazily over any other iterable."""
    value = value.realize(machine)
    if isinstance(value, ItemsValue):
        return list(value.items)
    return RemainingItems(machine, value.iterate(machine).realize(machine))


class SliceValue(Value):
    """A slice object."""

    __slots__ = ("items",)
    always_true = True

    def __init__(self, items: Sequence[Value], source: Source | None = None) -> None:
        super().__init__(source)
        self.items = tuple(items)

    def python_type(self, machine: Machine) -> type:
        return slice

    def is_constant(self, machine: Machine) -> bool:
        return all(item.realize(machine).is_constant(machine) for item in self.items)

    def as_constant(self, machine: Machine) -> Any:
        return slice(*(item.realize(machine).as_constant(machine) for item in self.items))

    def bounds(self, machine: Machine) -> slice:
        """Return the constant slice, or raise the program's error if no sequence accepts it."""
        bounds: slice = self.as_constant(machine)
        evaluate(machine, bounds.indices, 0)
        return bounds

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

    def recipe(self, builder: Builder) -> Recipe:
        start, stop, step = (builder(item) for item in self.items)
        return BuildSlice((start, stop, step))

    def parts(self) -> Iterable[Value]:
        return self.items


class _SliceIndices(Value):
    """The bound method `slice.indices`."""

    __slots__ = ("owner",)

    def __init__(self, owner: SliceValue) -> None:
        super().__init__()
        self.owner = owner

    def call(self, machine: Machine, args: Sequence[Value], kwargs: object) -> Value:
        length = machine.constant(index_of(machine, args[0]))
        return fold(machine, slice.indices, self.owner, length)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(getattr, (builder(self.owner), builder.constant("indices")))


@wraps(tuple)
def _wrap_tuple(machine: Machine, obj: tuple[object, ...], source: Source) -> Value:
    machine.guard(TypeIs(source, tuple))
    return TupleValue(wrap_items(machine, obj, source), source)


@wraps(list)
def _wrap_list(machine: Machine, obj: list[object], source: Source) -> Value:
    machine.guard(TypeIs(source, list))
    return ListValue(store=ListStore.of_live(machine, obj, source))


@wraps(torch.Size)
def _wrap_size(machine: Machine, obj: torch.Size, source: Source) -> Value:
    machine.guard(ValueEquals(source, obj))
    # All items of a torch.Size are ints, and the one guard fixes them.
    return SizeValue([machine.constant(size) for size in obj], source)


@wraps(slice)
def _wrap_slice(machine: Machine, obj: slice, source: Source) -> Value:
    machine.guard(ValueEquals(source, obj))
    parts = [machine.constant(part) for part in (obj.start, obj.stop, obj.step)]
    return SliceValue(parts, source)


class StructuredTuple(TupleValue):
    """A struct sequence of torch.return_types, a tuple whose items have names."""

    __slots__ = ("_kind",)

    def __init__(self, kind: type, items: Sequence[Value], source: Source | None = None) -> None:
        super().__init__(items, source)
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
    """Return the field names of a struct sequence in order, read from an instance of indices."""
    # torch.return_types have no `_fields`, and the attributes of the class are not in order.
    probe = kind(range(kind.n_sequence_fields))
    fields = {name: getattr(probe, name) for name in names if not name.startswith("n_")}
    return sorted((n for n, at in fields.items() if type(at) is int), key=lambda n: fields[n])
