"""SetStore models the contents of a set or frozenset and the changes that the traced code made.

Input: items, a live set, or a call that computes a set from others. Output: the members, their
iteration order if it is known, and the calls by which an exit builds the set or updates the live
one. `len()` of a live set guards its length, a lookup one membership, a read of all members all.

`mirror` is a Python set of Members to which the program's calls are applied too. So CPython itself
decides equality, order and which of two equal objects is retained.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from ....guards.guard import LengthIs, SetHas, ValueEquals
from ....guards.source import Contents, Item, Source
from ...breaks import GraphBreak, UnknownObject
from ...residual_calls import changed
from ...result import BuildDict, BuildSet, BuildTuple, Effect, Perform, Recipe
from ..base import Builder, CannotRebuild, Machine, Value
from .keys import hashes_unchanged
from .lengths import is_filled, live_length

__all__ = ["Operand", "SetStore", "operand_of_item", "operand_of_keys", "operand_of_values"]

Version = Callable[[Builder], Recipe]

# A lookup of these runs no user code.
_PLAIN_ITEMS = (int, str, bytes, bool, float, type(None), type, torch.dtype)
_ITEMWISE = ("update", "discard", "difference_update")  # decide membership of their items only
_CONSTANTS = (int, str, bytes, bool, float, complex, type(None))  # a ValueEquals guard suffices


class Member:
    """One item, hashed and compared by its token (keys.py)."""

    __slots__ = ("token", "value")

    def __init__(self, machine: Machine, value: Value) -> None:
        self.token = value.realize(machine).hash_key(machine)
        self.value = value

    def __hash__(self) -> int:
        return hash(self.token)

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Member)
        return self.token is other.token or self.token == other.token


class Operand(NamedTuple):
    """An argument of a set method."""

    mirror: Any  # a set, dict or tuple of Members, or one Member
    certain: bool  # the mirror iterates in the order of the program's object
    version: Version | None  # makes the recipe of its state at this call; None if impossible


def _is_plain(members: Iterable[Member]) -> bool:
    """Return whether all hashes are the same in every call: none derives from an address."""
    return all(type(member.token) in _PLAIN_ITEMS for member in members)


def operand_of_values(machine: Machine, values: Sequence[Value]) -> Operand:
    """Return the operand of an iterable of items."""
    items = tuple(values)
    members = tuple(Member(machine, item) for item in items)
    make = lambda builder: BuildTuple(tuple(builder(item) for item in items))  # noqa: E731
    return Operand(members, _is_plain(members), make)


def operand_of_item(machine: Machine, item: Value) -> Operand:
    """Return the operand of a single item."""
    member = Member(machine, item)
    return Operand(member, _is_plain((member,)), lambda builder: builder(item))


def operand_of_keys(machine: Machine, keys: Sequence[Value]) -> Operand:
    """Return the operand of a dictionary, whose hash table CPython merges as a whole."""
    items = tuple(keys)
    members = dict.fromkeys(Member(machine, item) for item in items)

    def make(builder: Builder) -> Recipe:
        return BuildDict(tuple(map(builder, items)), (builder.constant(None),) * len(items))

    return Operand(members, _is_plain(members), make)


class SetStore:
    """The contents of one set or frozenset."""

    __slots__ = (
        "_changes",
        "_items",
        "_lookups",
        "_mirror",
        "_order",
        "_start",
        "certain",
        "changed_at_step",
        "kind",
        "live",
        "machine",
        "owner",
        "source",
    )  # fmt: skip

    def __init__(self, machine: Machine, kind: type) -> None:
        self.machine = machine
        self.kind = kind
        self.live: Any = None
        self.source: Source | None = None
        self.owner: Value | None = None
        self.changed_at_step = machine.step  # of the last change to its order
        self.certain = True  # the mirror has the order of the program's set
        self._mirror: Any = kind()
        self._items: list[Value] | None = []  # of a new set to which items were only added
        self._start: Version | None = None  # the call that computed it, if any
        self._order: list[Member] | None = None  # original members of a live set or a constant
        self._changes: list[tuple[str, tuple[Operand, ...]]] = []
        self._lookups: dict[object, bool] = {}  # guarded membership of tokens in the live set

    @classmethod
    def of_live(cls, machine: Machine, live: object, source: Source) -> SetStore:
        """Create the store of a live set whose type is guarded, without reading it."""
        store = cls(machine, type(live))
        store.live, store.source, store.certain = live, source, False
        store._mirror, store._items = None, None
        return store

    @classmethod
    def of_call(cls, machine: Machine, make: Any, *operands: Operand) -> SetStore:
        """Create the store of the result of `make(*operands)`."""
        mirror = make(*(operand.mirror for operand in operands))
        store = cls(machine, type(mirror))
        store._mirror, store._items = mirror, None
        store.certain = all(operand.certain for operand in operands)
        versions = [operand.version for operand in operands]
        if all(version is not None for version in versions):
            store._start = lambda builder: builder.invoke(
                make, tuple(version(builder) for version in versions if version is not None)
            )
        return store

    @classmethod
    def of_constant(cls, machine: Machine, obj: Any) -> SetStore:
        """Create the store of a set that the trace computed; an exit reuses a frozenset."""
        store = cls(machine, type(obj))
        members = [Member(machine, machine.constant(item)) for item in obj]
        store._mirror, store._items, store.certain = store.kind(members), None, False
        if store.kind is frozenset:
            store._order, store._start = members, lambda builder: builder.constant(obj)
        return store

    # -- reading ---------------------------------------------------------------------------------

    @property
    def mirror(self) -> Any:
        """A set of all members; reading it guards those of a live set and their order."""
        if self._mirror is None:
            self._order = members = self._live_members()
            self._mirror = self.kind(members)
            if len(self._mirror) != len(members):
                raise GraphBreak(UnknownObject.of(what="equal items", type=self.kind.__name__))
            for name, operands in self._changes:
                getattr(self._mirror, name)(*(operand.mirror for operand in operands))
        return self._mirror

    def _live_members(self) -> list[Member]:
        assert self.source is not None
        machine, path, items = self.machine, Contents(self.source), tuple(self.live)
        if all(type(item) in _CONSTANTS for item in items):
            machine.guard(ValueEquals(path, items))
            return [Member(machine, machine.constant(item)) for item in items]
        machine.guard(LengthIs(path, len(items)))
        values = [machine.wrap(item, Item(path, index)) for index, item in enumerate(items)]
        members = [Member(machine, value) for value in values]
        if not hashes_unchanged(self.live, items, [one.token for one in members]):
            raise GraphBreak(UnknownObject.of(what="a hash that has changed", type="an item"))
        return members

    @property
    def values(self) -> list[Value]:
        """The items, in the order of the program's set if that is known."""
        mirror = self.mirror
        return [
            member.value
            for member in (self._order if self._order and not self._changes else mirror)
        ]

    @property
    def is_ordered(self) -> bool:
        """True if the iteration order is known.

        So it is for at most one item, for an unchanged live set and for a set built by known calls.
        The order of the ints 0 to 4 depends neither on history nor on the hash seed.
        """
        if len(self.mirror) < 2 or (self._order is not None and not self._changes):
            return True
        if self.certain and _is_plain(self.mirror):
            return True
        # An int hashes to itself, and the smallest table of CPython's set has 8 entries.
        return all(type(member.token) is int and 0 <= member.token < 5 for member in self.mirror)

    @property
    def count(self) -> int:
        """The number of changes so far."""
        return len(self._changes) + (len(self._items) if self._items is not None else 0)

    def length(self) -> int:
        if self._mirror is None and not self._changes:
            assert self.source is not None
            self.machine.guard(LengthIs(self.source, len(self.live)))
            return len(self.live)
        return len(self.mirror)

    def length_value(self, machine: Machine) -> Value:
        """Return the number of items as a Value that may be symbolic."""
        if self._mirror is not None or self._changes or self.source is None:
            return machine.constant(self.length())
        return live_length(machine, self.live, self.source)

    def is_filled(self, machine: Machine) -> bool:
        """Return whether there are any items; for an unread live set guard only that."""
        if self._mirror is not None or self._changes or self.source is None:
            return self.length() > 0
        return is_filled(machine, self.live, self.source)

    def has(self, item: Value) -> bool:
        """Return whether the item is in the set; for a live set guard only that if possible."""
        member = Member(self.machine, item)
        token = member.token
        if self._mirror is not None or type(token) not in _PLAIN_ITEMS:
            return self._holds(member)
        for name, operands in reversed(self._changes):
            if name not in _ITEMWISE:
                return self._holds(member)
            if member in _members_of(operands):
                added: bool = name == "update"
                return added
        if token not in self._lookups:
            assert self.source is not None
            self._lookups[token] = token in self.live
            self.machine.guard(SetHas(self.source, token, self._lookups[token]))
        return self._lookups[token]

    def _holds(self, member: Member) -> bool:
        is_member: bool = member in self.mirror
        return is_member

    # -- changing --------------------------------------------------------------------------------

    def add(self, item: Value) -> None:
        """Add an item without reading the members."""
        if self._items is None or self._changes:
            self.change("update", operand_of_values(self.machine, [item]))
        else:
            self._mirror.add(Member(self.machine, item))
            self._items.append(item)

    def change(self, name: str, *operands: Operand) -> None:
        """Call a mutating method of the set."""
        if self._mirror is not None:
            getattr(self._mirror, name)(*(operand.mirror for operand in operands))
        if not all(operand.certain for operand in operands):
            self.certain = False
        self.changed_at_step = self.machine.step
        operands = tuple(operand._replace(mirror=copy.copy(operand.mirror)) for operand in operands)
        last = self._changes[-1] if self._changes else None
        if name == "update" and last and last[0] == name and _are_items(*operands, *last[1]):
            self._changes[-1] = name, (_joined(last[1][0], operands[0]),)
        else:
            self._changes.append((name, operands))

    def pop(self) -> Value | None:
        """Remove and return the item that `set.pop` takes; None if it is unknown which."""
        if len(self.mirror) > 1 and not (self.certain and _is_plain(self.mirror)):
            return None
        popped: Value = self._mirror.pop().value
        self._changes.append(("pop", ()))
        return popped

    def forget_order(self) -> None:
        """Mark the order as unknown, where CPython builds the set by other steps than the model."""
        self.certain, self._items, self._start = False, None, None

    # -- exits -----------------------------------------------------------------------------------

    def operand(self) -> Operand:
        """Return a snapshot of the set, as an operand of another set's method."""
        return Operand(self.mirror, self.certain and _is_plain(self.mirror), self.version())

    def version(self) -> Version | None:
        """Return a function that makes the recipe of a copy of the set as it is now.

        None if the copy would iterate in another order.
        """
        changes, owner = tuple(self._changes), self.owner
        if self.source is not None:
            return None if changes or owner is None else lambda builder: builder(owner)
        start = self._start
        if self._items is not None:
            items, kind = tuple(self._items), self.kind
            start = lambda builder: _built(builder, kind, items)  # noqa: E731
        if not changes or start is None:
            return start
        return _after(start, changes)

    def recipe(self, builder: Builder) -> Recipe:
        version = self.version()
        if version is not None:
            return version(builder)
        if not self.is_ordered:
            raise CannotRebuild("a set of unknown order", self.changed_at_step)
        return _built(builder, self.kind, [member.value for member in self.mirror])

    def effects(self, builder: Builder, owner: Value) -> tuple[Effect, ...]:
        """Return the calls that update the live set to these contents."""
        target = builder(owner)
        return tuple(
            Perform(
                builder.constant(getattr(set, name)), (target, *self._arguments(builder, operands))
            )
            for name, operands in self._changes
        )

    def _arguments(self, builder: Builder, operands: tuple[Operand, ...]) -> tuple[Recipe, ...]:
        if any(operand.version is None for operand in operands):
            raise CannotRebuild("a set of unknown order", self.changed_at_step)
        return tuple(
            operand.version(builder) for operand in operands if operand.version is not None
        )

    def parts(self) -> list[Value]:
        """Return the values that the trace has read from the set or added to it."""
        if self._mirror is not None:
            return [member.value for member in self._mirror]
        return [m.value for _, operands in self._changes for m in _members_of(operands)]


def _built(builder: Builder, kind: type, items: Sequence[Value]) -> Recipe:
    recipe = BuildSet(tuple(builder(item) for item in items))
    return recipe if kind is set else builder.invoke(frozenset, (recipe,))


def _after(start: Version, changes: tuple[tuple[str, tuple[Operand, ...]], ...]) -> Version | None:
    """Return a function that makes the recipe of a set and of the calls that change it."""
    if any(operand.version is None for _, operands in changes for operand in operands):
        return None

    def make(builder: Builder) -> Recipe:
        calls = [
            BuildTuple(
                (
                    builder.constant(getattr(set, name)),
                    *(
                        operand.version(builder)
                        for operand in operands
                        if operand.version is not None
                    ),
                )
            )
            for name, operands in changes
        ]
        return builder.invoke(changed, (start(builder), *calls))

    return make


def _members_of(operands: tuple[Operand, ...]) -> list[Member]:
    mirrors = [
        (operand.mirror,) if isinstance(operand.mirror, Member) else operand.mirror
        for operand in operands
    ]
    return [member for mirror in mirrors for member in mirror]


def _are_items(*operands: Operand) -> bool:
    return len(operands) == 2 and all(type(operand.mirror) is tuple for operand in operands)


def _joined(earlier: Operand, later: Operand) -> Operand:
    """Join the operands of two consecutive updates with items."""
    first, second = earlier.version, later.version

    def make(builder: Builder) -> Recipe:
        both = [version(builder) for version in (first, second) if version is not None]
        return BuildTuple(
            tuple(x for recipe in both if isinstance(recipe, BuildTuple) for x in recipe.items)
        )

    return Operand((*earlier.mirror, *later.mirror), earlier.certain and later.certain, make)
