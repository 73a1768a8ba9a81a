"""The `__dict__` of an object that the traced code makes.

Comes in: the object. Goes out: a dictionary of its attributes, which is read and changed like any,
and which is made by `vars(object)` at an exit.
"""

from __future__ import annotations

from ...result import Recipe
from ..base import Builder, Machine, Value
from ..containers.mappings import DictValue
from ..containers.table_store import TableStore

__all__ = ["AttributeTable"]


class AttributeTable(DictValue):
    """`owner.__dict__`: what it holds is stored when the owner is made."""

    __slots__ = ("owner",)

    def __init__(self, owner: Value, store: TableStore) -> None:
        super().__init__(store=store)
        self.owner = owner

    def is_constant(self, machine: Machine) -> bool:
        return False

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(vars, (builder(self.owner),))

    def empty_recipe(self) -> Recipe | None:
        return None

    def describe(self) -> str:
        return f"the attributes of {self.owner.describe()}"
