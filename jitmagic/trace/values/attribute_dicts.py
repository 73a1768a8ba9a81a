"""The dictionary that holds an object's attributes, as an object of its own: `obj.__dict__`.

Comes in: an InstanceValue.  Goes out: its entries, guarded like its attributes, which they are:
there is one model of both.  Changes through the dictionary are left to Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..result import Recipe
from .base import Builder, Machine, Value
from .constants import ConstantValue
from .mappings import DictValue, Pair

__all__ = ["NamespaceValue"]


class NamespaceValue(DictValue):
    """`obj.__dict__`, to be read: of an object that existed before name by name, else whole."""

    __slots__ = ("machine", "owner")

    def __init__(self, machine: Machine, owner: Any) -> None:
        self.machine = machine
        self.owner = owner
        super().__init__({})

    @property
    def pairs(self) -> dict[object, Pair]:  # type: ignore[override]
        """What the object holds by now."""
        if self.owner.source is not None:
            self.owner.refuse(self.machine, "all of __dict__")
        held = self.owner.attrs.items()
        return {name: (ConstantValue(name), value) for name, value in held if value is not None}

    @pairs.setter
    def pairs(self, pairs: dict[object, Pair]) -> None:
        """Nothing is kept here."""

    def find(self, machine: Machine, key: Value) -> Value | None:
        name = key.realize(machine).hash_key(machine)
        return self.owner.dict_entry(machine, name) if isinstance(name, str) else None

    def changed(self, machine: Machine) -> None:
        self.refuse(machine, "changing attributes through __dict__")

    def store(self, machine: Machine, key: Value, value: Value) -> None:
        self.changed(machine)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(getattr, (builder(self.owner), builder.constant("__dict__")))

    def empty_recipe(self) -> Recipe | None:
        return None

    def parts(self) -> Iterable[Value]:
        return (self.owner,)
