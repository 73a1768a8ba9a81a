"""`vars(obj)`, `globals()`: the attributes of an object, the names of a module, as a dictionary.

Comes in: an instance or a namespace, which it reads and writes, so that both ways see each other's
changes. Goes out: a dictionary that can be read and changed like any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...guards.source import Source
from ..result import Recipe
from .base import Builder, Machine, Value
from .mappings import DictValue
from .table_store import Pair, TableStore

__all__ = ["AttributeTable"]


class _AttributeStore(TableStore):
    """What `owner` (an InstanceValue or GlobalsValue) has. It tells of its changes itself."""

    __slots__ = ("owner",)

    def __init__(self, machine: Machine, owner: Any) -> None:
        super().__init__()
        self.machine: Machine = machine
        self.owner = owner

    @property
    def pairs(self) -> dict[object, Pair]:
        entries = self.owner.entries(self.machine).items()
        return {name: (self.machine.constant(name), value) for name, value in entries}

    def get(self, token: object) -> Value | None:
        if isinstance(token, Value):
            self.owner.refuse(self.machine, "such a key of __dict__")
        found: Value | None = None
        if type(token) is str:
            found = self.owner.dict_entry(self.machine, token)
        return found

    def length(self) -> int:
        return len(self.pairs)

    def put(self, token: object, key: Value, value: Value) -> None:
        self.owner.set_entry(self.machine, self._name(token), value)

    def erase(self, token: object, key: Value) -> bool:
        found = self.get(token) is not None
        if found:
            self.owner.set_entry(self.machine, self._name(token), None)
        return found

    def clear(self) -> None:
        for name in list(self.owner.entries(self.machine)):
            self.owner.set_entry(self.machine, name, None)

    def _name(self, token: object) -> str:
        if not isinstance(token, str):
            self.owner.refuse(self.machine, "such a key of __dict__")
        return str(token)

    def parts(self) -> list[Value]:
        return [self.owner]


class AttributeTable(DictValue):
    """`owner.__dict__`, `globals()`; one per owner, which `make` describes at an exit."""

    __slots__ = ("make", "owner")

    def __init__(
        self, machine: Machine, owner: Any, make: Callable[[Builder], Recipe], source: Source | None
    ) -> None:
        super().__init__(store=_AttributeStore(machine, owner))
        self.source = source
        self.owner = owner
        self.make = make

    def is_constant(self, machine: Machine) -> bool:
        return False

    def is_changed(self, machine: Machine) -> bool:
        changed: bool = self.owner.is_changed(machine)
        return changed

    def changed(self, machine: Machine) -> None:
        """The owner has told."""

    def recipe(self, builder: Builder) -> Recipe:
        return self.make(builder)

    def empty_recipe(self) -> Recipe | None:
        return None

    def describe(self) -> str:
        return f"the attributes of {self.owner.describe()}"
