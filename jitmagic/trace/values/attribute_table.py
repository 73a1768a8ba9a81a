"""`vars(obj)`: the attributes of an instance as a dictionary.

Comes in: an instance, whose attributes it reads and writes, so that both ways see each other's
changes. Goes out: a dictionary for all that only reads; of the changes, setting an item.
"""

from __future__ import annotations

from typing import Any

from ..result import Recipe
from .base import Builder, Machine, Value
from .mappings import DictValue, Pair

__all__ = ["AttributeTable"]


class AttributeTable(DictValue):
    """`owner.__dict__`; one per owner."""

    __slots__ = ("machine", "owner")

    def __init__(self, machine: Machine, owner: Any) -> None:
        super().__init__({})
        self.machine = machine
        self.owner = owner  # an InstanceValue

    @property
    def pairs(self) -> dict[object, Pair]:  # type: ignore[override]
        """As they are now: changing what this gives changes nothing, see `changed`."""
        entries = self.owner.entries(self.machine).items()
        return {name: (self.machine.constant(name), value) for name, value in entries}

    @pairs.setter
    def pairs(self, pairs: dict[object, Pair]) -> None:
        assert not pairs, "the owner has them"

    def is_constant(self, machine: Machine) -> bool:
        return False

    def find(self, machine: Machine, key: Value) -> Value | None:
        key = key.realize(machine)
        if key.python_type(machine) is not str:
            return None if key.is_constant(machine) else self.refuse(machine, "such a key")
        found: Value | None = self.owner.dict_entry(machine, key.as_constant(machine))
        return found

    def store(self, machine: Machine, key: Value, value: Value) -> None:
        key = key.realize(machine)
        if key.python_type(machine) is not str:
            self.refuse(machine, "such a key")
        self.owner.store_past_descriptors(machine, key.as_constant(machine), value)

    def set_item(self, machine: Machine, key: Value, value: Value) -> None:
        self.store(machine, key, value)

    def del_item(self, machine: Machine, key: Value) -> None:
        self.refuse(machine, "item deletion")

    def inplace(self, machine: Machine, op: str, other: Value) -> Value | None:
        self.refuse(machine, f"operator {op}=")

    def changed(self, machine: Machine) -> None:
        self.refuse(machine, "such a change")

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(vars, (builder(self.owner),))

    def empty_recipe(self) -> Recipe | None:
        return None

    def parts(self) -> tuple[Value, ...]:
        return (self.owner,)

    def describe(self) -> str:
        return f"the attributes of {self.owner.describe()}"
