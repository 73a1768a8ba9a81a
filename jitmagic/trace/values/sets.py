"""Sets and frozensets.

A live set gives no path to its items. Of a frozenset of constants the value is guarded; of any
other live set only whether a constant or a class is in it. A new set holds any hashable values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ...guards.guard import LengthIs, SetHas, TypeIs, ValueEquals
from ...guards.source import Source
from ..result import BuildSet, Effect, Perform, Recipe
from ..wrap import wraps
from .base import Builder, Machine, Unrestorable, Value
from .callables import bind_builtin
from .constants import ATOMS
from .iterators import StepIterator
from .opaque import OpaqueValue

__all__ = ["LiveSetValue", "SetValue"]

_ALGEBRA: dict[str, Callable[[Any, Any], Any]] = {
    "|": operator.or_, "&": operator.and_, "-": operator.sub, "^": operator.xor,
}  # fmt: skip
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


# Nobody's code runs when these are looked up.
_PLAIN_ITEMS = (int, str, bytes, bool, float, type(None), type, torch.dtype)


class SetValue(Value):
    """A set or frozenset: `members` maps hash keys to values.

    `grown`: a Python set that has come about by the same steps, hence with the same order in this
    process: adding one item after the other. None: another step was taken, at `born`, or nobody
    knows.
    """

    __slots__ = ("born", "grown", "kind", "members")

    def __init__(
        self, members: dict[object, Value], kind: type = set, source: Source | None = None
    ) -> None:
        super().__init__(source)
        self.members = members
        self.kind = kind
        self.grown: set[object] | None = None
        self.born: int | None = None

    @classmethod
    def made(cls, machine: Machine, members: dict[object, Value], kind: type) -> SetValue:
        """A new set that Python makes of others, in an order of its own."""
        made = cls(members, kind)
        made.born = machine.step
        return made

    @classmethod
    def of(
        cls, machine: Machine, items: Iterable[Value], kind: type = set, *, in_order: bool = False
    ) -> SetValue:
        """A new set of these items; `in_order`: added one by one."""
        made = cls.made(machine, {}, kind)
        made.grown = set() if in_order else None
        for item in items:
            made.insert(item.realize(machine).hash_key(machine), item)
        return made

    def insert(self, key: object, item: Value) -> None:
        """Add one item to the machine's model."""
        self.members.setdefault(key, item)
        if type(key) not in _PLAIN_ITEMS:  # its hash may be its address
            self.grown = None
        elif self.grown is not None:
            self.grown.add(key)

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def is_constant(self, machine: Machine) -> bool:
        return all(item.realize(machine).is_constant(machine) for item in self.members.values())

    def as_constant(self, machine: Machine) -> Any:
        return self.kind(one.realize(machine).as_constant(machine) for one in self.members.values())

    def hash_key(self, machine: Machine) -> object:
        if self.kind is set:
            raise machine.error(TypeError, "unhashable type: 'set'")
        return frozenset(self.members)

    def get_attr(self, machine: Machine, name: str) -> Value:
        return bind_builtin(machine, self, self.kind, name)

    def contains(self, machine: Machine, item: Value) -> Value:
        return machine.constant(item.realize(machine).hash_key(machine) in self.members)

    def length(self, machine: Machine) -> int:
        return len(self.members)

    def truth(self, machine: Machine) -> bool:
        return bool(self.members)

    def iterate(self, machine: Machine) -> Value:
        """In the order that a Python set has, where that can be known."""
        if not self._ordered():
            self.refuse(machine, "iteration (its order is not known)")
        return StepIterator(machine, type(iter(set())), self._walk(machine))

    def _walk(self, machine: Machine) -> Iterator[Value]:
        size = len(self.members)

        def check() -> None:
            if len(self.members) != size:
                raise machine.error(RuntimeError, "Set changed size during iteration")

        for key in list(self.kind(self.members) if self.grown is None else self.grown):
            check()
            if key not in self.members:
                self.refuse(machine, "iteration while it is changed")
            yield self.members[key]
        check()  # Python looks before it says that nothing is left

    def _ordered(self) -> bool:
        """Whether the order is known: of one item, of what has grown, of small non-negative ints,
        for which neither history nor the hash seed counts.
        """
        if len(self.members) < 2 or self.grown is not None:
            return True
        return all(type(key) is int and 0 <= key < 5 for key in self.members)

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if not isinstance(other, SetValue):
            return None
        return machine.constant(_ORDER[op](self.members.keys(), other.members.keys()))

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if op not in _ALGEBRA or not isinstance(other, SetValue):
            return None
        left, right = (other, self) if reflected else (self, other)
        return SetValue.made(machine, left.combined(op, right), left.kind)

    def combined(self, op: str, other: SetValue) -> dict[object, Value]:
        """The members of `self op other`."""
        kept = _ALGEBRA[op](self.members.keys(), other.members.keys())
        both = {**other.members, **self.members}
        return {key: value for key, value in both.items() if key in kept}

    def inplace(self, machine: Machine, op: str, other: Value) -> Value | None:
        if self.kind is not set or op not in _ALGEBRA or not isinstance(other, SetValue):
            return None
        self.change(machine, self.combined(op, other))
        return self

    def change(self, machine: Machine, members: dict[object, Value]) -> None:
        """The set has these members from now on."""
        self.members, self.grown = dict(members), None
        self.born = machine.step
        machine.effects.contents(self)

    def recipe(self, builder: Builder) -> Recipe:
        if self.born is not None and not self._ordered():
            raise Unrestorable("a set with an order of its own", self.born)
        made = BuildSet(tuple(builder(item) for item in self.members.values()))
        return made if self.kind is set else builder.invoke(frozenset, (made,))

    def replace(self, builder: Builder) -> tuple[Effect, ...]:
        """The effects that bring the live set to these contents."""
        me = builder(self)
        clear, update = (
            builder.invoke(getattr, (me, builder.constant(name))) for name in ("clear", "update")
        )
        items = BuildSet(tuple(builder(item) for item in self.members.values()))
        return Perform(clear), Perform(update, (items,))

    def parts(self) -> Iterable[Value]:
        return self.members.values()


class LiveSetValue(OpaqueValue):
    """A set that existed before: its length, and item by item what is in it."""

    __slots__ = ("_asked",)
    live: set[object] | frozenset[object]

    def __init__(self, live: set[object] | frozenset[object], source: Source) -> None:
        super().__init__(type(live), source, live)
        self._asked: dict[object, bool] = {}

    def length(self, machine: Machine) -> int:
        assert self.source is not None
        machine.guard(LengthIs(self.source, len(self.live)))
        return len(self.live)

    def truth(self, machine: Machine) -> bool:
        return self.length(machine) > 0

    def contains(self, machine: Machine, item: Value) -> Value:
        key = item.realize(machine).hash_key(machine)
        if type(key) not in _PLAIN_ITEMS:
            self.refuse(machine, "`in`")
        if key not in self._asked:
            assert self.source is not None
            self._asked[key] = key in self.live
            machine.guard(SetHas(self.source, key, self._asked[key]))
        return machine.constant(self._asked[key])

    def describe(self) -> str:
        return f"a {type(self.live).__name__} made before this graph"


@wraps(set)
def _wrap_set(machine: Machine, obj: set[object], source: Source) -> Value:
    machine.guard(TypeIs(source, set))
    return LiveSetValue(obj, source)


@wraps(frozenset)
def _wrap_frozenset(machine: Machine, obj: frozenset[object], source: Source) -> Value:
    if not all(type(item) in ATOMS for item in obj):
        machine.guard(TypeIs(source, frozenset))
        return LiveSetValue(obj, source)
    machine.guard(ValueEquals(source, obj))
    return SetValue({item: machine.constant(item) for item in obj}, frozenset, source)
