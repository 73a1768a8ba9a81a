"""Models sets and frozensets, with their contents in a store (set_store.py).

Input: live sets, guarded by type, or new ones of any hashable values. Output: items and new sets.
Iteration breaks the graph unless the order is known.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ....guards.guard import TypeIs
from ....guards.source import Source
from ....late import late_names
from ...result import Effect, Recipe
from ...wrap import wraps
from ..base import Builder, Machine, Value
from ..objects.callables import bind_builtin
from ..objects.operators import equal_key
from .iterators import CheckedItems, TableIterator

if TYPE_CHECKING:
    from .set_store import Operand, SetStore
else:
    late_names(globals(), {"trace.values.containers.set_store": "SetStore"})

__all__ = ["SetValue"]

_ALGEBRA: dict[str, Callable[[object, object], object]] = {
    "|": operator.or_, "&": operator.and_, "-": operator.sub, "^": operator.xor,
}  # fmt: skip
_IN_PLACE = {"|": "__ior__", "&": "__iand__", "-": "__isub__", "^": "__ixor__"}
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class SetValue(Value):
    """A set or frozenset."""

    __slots__ = ("store",)

    def __init__(self, store: SetStore) -> None:
        super().__init__(store.source)
        self.store = store
        store.owner = self

    @classmethod
    def of(cls, machine: Machine, items: Iterable[Value]) -> SetValue:
        """Create a set by adding these items one by one."""
        store = SetStore(machine, set)
        for item in items:
            store.add(item)
        return cls(store)

    @property
    def kind(self) -> type:
        return self.store.kind

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def is_constant(self, machine: Machine) -> bool:
        return all(item.realize(machine).is_constant(machine) for item in self.store.values)

    def as_constant(self, machine: Machine) -> object:
        return self.kind(one.realize(machine).as_constant(machine) for one in self.store.values)

    def hash_key(self, machine: Machine) -> object:
        if self.kind is set:
            raise machine.error(TypeError, "unhashable type: 'set'")
        # Neither hash nor equality of a frozenset depends on its order, so its tokens suffice.
        return frozenset(member.token for member in self.store.mirror)

    def get_attr(self, machine: Machine, name: str) -> Value:
        return bind_builtin(machine, self, self.kind, name)

    def contains(self, machine: Machine, item: Value) -> Value:
        known = item.realize(machine)
        if known.varies:
            return machine.constant(equal_key(machine, known, self.store.values) is not None)
        return machine.constant(self.store.has(known))

    def length(self, machine: Machine) -> int:
        return self.store.length()

    def length_value(self, machine: Machine) -> Value:
        return self.store.length_value(machine)

    def truth(self, machine: Machine) -> bool:
        return self.store.is_filled(machine)

    def iterate(self, machine: Machine) -> Value:
        """Return an iterator in the order of the Python set; break if that is unknown."""
        # The mirror's items hash as Values. For objects that hash by their address this gives
        # another order than that of the program's set.
        if not self.store.is_ordered:
            self.refuse(machine, "iteration (its order is not known)")
        return TableIterator(machine, self, type(iter(set())), self.walk(machine))

    def walk(self, machine: Machine) -> Iterator[Value]:
        """Return an iterator over the items; it raises RuntimeError if the size changes."""
        size, changes = self.length(machine), self.store.count

        def check() -> None:
            if self.length(machine) != size:
                raise machine.error(RuntimeError, "Set changed size during iteration")
            if self.store.count != changes:
                self.refuse(machine, "iteration while it is changed")

        return CheckedItems(check, self.store.values)

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if not isinstance(other, SetValue):
            return None
        # `<` is a test for a proper subset: of `a < b` and `a >= b`, both may be False.
        return machine.constant(_ORDER[op](self.store.mirror, other.store.mirror))

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if op not in _ALGEBRA or not isinstance(other, SetValue):
            return None
        left, right = (other, self) if reflected else (self, other)
        operands = left.store.operand(), right.store.operand()
        # The operator of CPython on the mirrors decides the class: that of the left operand.
        return SetValue(SetStore.of_call(machine, _ALGEBRA[op], *operands))

    def inplace(self, machine: Machine, op: str, other: Value) -> Value | None:
        # frozenset has no in-place operators: `f |= g` stores the new object that `f | g` returns.
        if self.kind is not set or op not in _IN_PLACE or not isinstance(other, SetValue):
            return None
        self.change(machine, _IN_PLACE[op], other.store.operand())
        return self

    def add(self, machine: Machine, item: Value) -> None:
        self.store.add(item)
        machine.effects.contents(self)

    def change(self, machine: Machine, name: str, *operands: Operand) -> None:
        """Call a mutating method of the set."""
        self.store.change(name, *operands)
        machine.effects.contents(self)

    def recipe(self, builder: Builder) -> Recipe:
        return self.store.recipe(builder)

    def replace(self, builder: Builder) -> tuple[Effect, ...]:
        """Return the effects that update the live set to these contents."""
        return self.store.effects(builder, self)

    def parts(self) -> Iterable[Value]:
        return self.store.parts()


@wraps(set, frozenset)
def _wrap_set(machine: Machine, obj: set[object] | frozenset[object], source: Source) -> Value:
    machine.guard(TypeIs(source, type(obj)))
    return SetValue(SetStore.of_live(machine, obj, source))
