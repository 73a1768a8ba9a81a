"""SetStore: what a set or frozenset holds, where that came from, what the traced code did to it.

Comes in: items, a live set, or a call that makes a set of others. Goes out: the members (of a live
set guarded once somebody asks for them; a length or one look-up guards no more than that), their
order where it is known, and the calls by which an exit makes the set or brings the live one to
what the model holds. Python itself keeps the model: `mirror` is a set of members that went through
the same calls, so that equality, order and which of two equal objects stays are CPython's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from ....guards.guard import LengthIs, SetHas, ValueEquals
from ....guards.source import Contents, Item, Source
from ...breaks import GraphBreak, UnknownObject
from ...result import BuildDict, BuildSet, BuildTuple, Effect, Perform, Recipe
from ..base import Builder, Machine, Unrestorable, Value
from .keys import are_found
from .lengths import is_filled, live_length

__all__ = ["Operand", "SetStore", "operand_of_item", "operand_of_keys", "operand_of_values"]

Version = Callable[[Builder], Recipe]

# Looking these up runs no user code.
_PLAIN_ITEMS = (int, str, bytes, bool, float, type(None), type, torch.dtype)
_ITEMWISE = ("update", "discard", "difference_update")  # tell of each item whether it is there
_CONSTANTS = (int, str, bytes, bool, float, complex, type(None))  # equal by value to a guard


class Member:
    """One item: hashed and compared by its token (keys.py)."""

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
    """What a method of a set is given."""

    mirror: Any  # a set, dict or tuple of members, or one member
    certain: bool  # the mirror is ordered as Python's own is
    version: Version | None  # makes it as it is now; None: nothing can


def _is_plain(members: Iterable[Member]) -> bool:
    """Whether the hashes are those of the program in every call: none is an address."""
    return all(type(member.token) in _PLAIN_ITEMS for member in members)


def operand_of_values(machine: Machine, values: Sequence[Value]) -> Operand:
    """Items that are given one by one."""
    items = tuple(values)
    members = tuple(Member(machine, item) for item in items)
    make = lambda builder: BuildTuple(tuple(builder(item) for item in items))  # noqa: E731
    return Operand(members, _is_plain(members), make)


def operand_of_item(machine: Machine, item: Value) -> Operand:
    """One item."""
    member = Member(machine, item)
    return Operand(member, _is_plain((member,)), lambda builder: builder(item))


def operand_of_keys(machine: Machine, keys: Sequence[Value]) -> Operand:
    """A dictionary with these keys: Python reads its table at once."""
    items = tuple(keys)
    members = dict.fromkeys(Member(machine, item) for item in items)

    def make(builder: Builder) -> Recipe:
        return BuildDict(tuple(map(builder, items)), (builder.constant(None),) * len(items))

    return Operand(members, _is_plain(members), make)


class SetStore:
    """The contents of one set or frozenset."""

    __slots__ = (
        "_asked",
        "_changes",
        "_items",
        "_mirror",
        "_order",
        "_start",
        "born",
        "certain",
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
        self.born = machine.step  # when its order came to be what it is
        self.certain = True
        self._mirror: Any = kind()
        self._items: list[Value] | None = []  # added one by one to a new set, and nothing else done
        self._start: Version | None = None  # what made it, where that is another call
        self._order: list[Member] | None = None  # of a set that existed before, as it was
        self._changes: list[tuple[str, tuple[Operand, ...]]] = []
        self._asked: dict[object, bool] = {}

    @classmethod
    def of_live(cls, machine: Machine, live: Any, source: Source) -> SetStore:
        """The store of a set whose type is guarded; nothing else of it is read."""
        store = cls(machine, type(live))
        store.live, store.source, store.certain = live, source, False
        store._mirror, store._items = None, None
        return store

    @classmethod
    def made(cls, machine: Machine, make: Any, *operands: Operand) -> SetStore:
        """The store of what `make` gives, called with these sets."""
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
        """The store of a set that the trace itself has: a frozenset is that very object."""
        store = cls(machine, type(obj))
        members = [Member(machine, machine.constant(item)) for item in obj]
        store._mirror, store._items, store.certain = store.kind(members), None, False
        if store.kind is frozenset:
            store._order, store._start = members, lambda builder: builder.constant(obj)
        return store

    # -- reading ---------------------------------------------------------------------------------

    @property
    def mirror(self) -> Any:
        """A set of all members; those of a live set get guarded, in their order."""
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
        if not are_found(self.live, items, [one.token for one in members]):
            raise GraphBreak(UnknownObject.of(what="a hash that has changed", type="an item"))
        return members

    @property
    def values(self) -> list[Value]:
        """The items, in the order that they have if that is known."""
        mirror = self.mirror
        return [
            member.value
            for member in (self._order if self._order and not self._changes else mirror)
        ]

    @property
    def is_ordered(self) -> bool:
        """Whether the order is known: of one item, of a live set as it was, of what has come about
        by known calls, of small non-negative ints, for which history and hash seed do not count.
        """
        if len(self.mirror) < 2 or (self._order is not None and not self._changes):
            return True
        if self.certain and _is_plain(self.mirror):
            return True
        return all(type(member.token) is int and 0 <= member.token < 5 for member in self.mirror)

    @property
    def count(self) -> int:
        """Grows with every change."""
        return len(self._changes) + (len(self._items) if self._items is not None else 0)

    def length(self) -> int:
        if self._mirror is None and not self._changes:
            assert self.source is not None
            self.machine.guard(LengthIs(self.source, len(self.live)))
            return len(self.live)
        return len(self.mirror)

    def counted(self, machine: Machine) -> Value:
        """The same as a number that may vary."""
        if self._mirror is not None or self._changes or self.source is None:
            return machine.constant(self.length())
        return live_length(machine, self.live, self.source)

    def is_filled(self, machine: Machine) -> bool:
        """Whether there are any items."""
        if self._mirror is not None or self._changes or self.source is None:
            return self.length() > 0
        return is_filled(machine, self.live, self.source)

    def has(self, item: Value) -> bool:
        """Whether the item is there; of a live set no more is guarded, where a guard can tell."""
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
        if token not in self._asked:
            assert self.source is not None
            self._asked[token] = token in self.live
            self.machine.guard(SetHas(self.source, token, self._asked[token]))
        return self._asked[token]

    def _holds(self, member: Member) -> bool:
        is_member: bool = member in self.mirror
        return is_member

    # -- changing --------------------------------------------------------------------------------

    def add(self, item: Value) -> None:
        """The members that are there need not be known."""
        if self._items is None or self._changes:
            self.change("update", operand_of_values(self.machine, [item]))
        else:
            self._mirror.add(Member(self.machine, item))
            self._items.append(item)

    def change(self, name: str, *operands: Operand) -> None:
        """Call a method that changes the set."""
        if self._mirror is not None:
            getattr(self._mirror, name)(*(operand.mirror for operand in operands))
        if not all(operand.certain for operand in operands):
            self.certain = False
        self.born = self.machine.step
        operands = tuple(operand._replace(mirror=copy.copy(operand.mirror)) for operand in operands)
        last = self._changes[-1] if self._changes else None
        if name == "update" and last and last[0] == name and _are_items(*operands, *last[1]):
            self._changes[-1] = name, (_joined(last[1][0], operands[0]),)
        else:
            self._changes.append((name, operands))

    def pop(self) -> Value | None:
        """The item that `pop` takes, removed; None: nobody knows which."""
        if len(self.mirror) > 1 and not (self.certain and _is_plain(self.mirror)):
            return None
        taken: Value = self._mirror.pop().value
        self._changes.append(("pop", ()))
        return taken

    def forget_order(self) -> None:
        """It has come about in other steps than the model knows."""
        self.certain, self._items, self._start = False, None, None

    # -- exits -----------------------------------------------------------------------------------

    def operand(self) -> Operand:
        """The set as it is now, for a method of another."""
        return Operand(self.mirror, self.certain and _is_plain(self.mirror), self.version())

    def version(self) -> Version | None:
        """What makes a set like this one is now; None: Python's own order would be another."""
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
            raise Unrestorable("a set with an order of its own", self.born)
        return _built(builder, self.kind, [member.value for member in self.mirror])

    def tell(self, builder: Builder, owner: Value) -> tuple[Effect, ...]:
        """The calls that bring the live set to these contents."""
        me = builder(owner)
        return tuple(
            Perform(builder.constant(getattr(set, name)), (me, *self._told(builder, operands)))
            for name, operands in self._changes
        )

    def _told(self, builder: Builder, operands: tuple[Operand, ...]) -> tuple[Recipe, ...]:
        if any(operand.version is None for operand in operands):
            raise Unrestorable("a set with an order of its own", self.born)
        return tuple(
            operand.version(builder) for operand in operands if operand.version is not None
        )

    def parts(self) -> list[Value]:
        """The values it holds, as far as anybody knows."""
        if self._mirror is not None:
            return [member.value for member in self._mirror]
        return [m.value for _, operands in self._changes for m in _members_of(operands)]


def _built(builder: Builder, kind: type, items: Sequence[Value]) -> Recipe:
    recipe = BuildSet(tuple(builder(item) for item in items))
    return recipe if kind is set else builder.invoke(frozenset, (recipe,))


def _after(start: Version, changes: tuple[tuple[str, tuple[Operand, ...]], ...]) -> Version | None:
    """What makes the set and then changes it."""
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


def changed(target: set[Any], *calls: tuple[Any, ...]) -> set[Any]:
    """A set after some calls of its methods."""
    for method, *operands in calls:
        method(target, *operands)
    return target


def _members_of(operands: tuple[Operand, ...]) -> list[Member]:
    mirrors = [
        (operand.mirror,) if isinstance(operand.mirror, Member) else operand.mirror
        for operand in operands
    ]
    return [member for mirror in mirrors for member in mirror]


def _are_items(*operands: Operand) -> bool:
    return len(operands) == 2 and all(type(operand.mirror) is tuple for operand in operands)


def _joined(earlier: Operand, later: Operand) -> Operand:
    """Items that are added one after the other."""
    first, second = earlier.version, later.version

    def make(builder: Builder) -> Recipe:
        both = [version(builder) for version in (first, second) if version is not None]
        return BuildTuple(
            tuple(x for recipe in both if isinstance(recipe, BuildTuple) for x in recipe.items)
        )

    return Operand((*earlier.mirror, *later.mirror), earlier.certain and later.certain, make)
