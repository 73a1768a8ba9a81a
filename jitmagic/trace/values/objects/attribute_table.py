"""Models the `__dict__` of an object that the traced code creates.

Input: the object. Output: a DictValue over its attributes. An exit that needs the dictionary
itself builds the object first and calls `vars(object)`.
"""

from __future__ import annotations

from ...result import Recipe
from ..base import Builder, Machine, Value
from ..containers.mappings import DictValue
from ..containers.table_store import TableStore

__all__ = ["AttributeTable"]


class AttributeTable(DictValue):
    """The dictionary `owner.__dict__`; an exit that builds the owner also stores its contents."""

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
