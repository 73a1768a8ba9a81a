"""Models slices of ModuleList and Sequential, which are new containers of the same modules.

Input: the values of the modules. Output: the new container, or an iterator over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ...result import Recipe
from ..base import Args, Builder, Kwargs, Machine, Value
from ..containers.iterators import SequenceIterator, advanced
from ..containers.sequences import TupleValue
from ..objects.classes import ClassValue

__all__ = ["ModuleSlice"]


class ModuleSlice(TupleValue):
    """A slice such as `layers[1:]` of a ModuleList or Sequential."""

    __slots__ = ("cls",)

    def __init__(self, cls: ClassValue, items: Sequence[Value]) -> None:
        super().__init__(items)
        self.cls = cls

    def like(self, items: Iterable[Value]) -> Value:
        return ModuleSlice(self.cls, list(items))

    def python_type(self, machine: Machine) -> type:
        return self.cls.live

    def is_constant(self, machine: Machine) -> bool:
        return False

    def iterate(self, machine: Machine) -> Value:
        return _ModuleIterator(self)

    def get_attr(self, machine: Machine, name: str) -> Value:
        # The new container has attributes of its own (`training` is True), which no table models.
        self.refuse(machine, f"attribute {name!r}")

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        self.refuse(machine, f"operator {op}")

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        return None

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        # ModuleList has no `forward`, and that of Sequential takes one argument.
        if self.cls.live is not torch.nn.Sequential or len(args) != 1 or kwargs:
            self.refuse(machine, "a call")
        (value,) = args
        for item in self.items:
            value = item.realize(machine).call(machine, [value], {})
        return value

    def recipe(self, builder: Builder) -> Recipe:
        items = super().recipe(builder)
        if self.cls.live is torch.nn.ModuleList:
            return builder.invoke(torch.nn.ModuleList, (items,))
        return builder.invoke(sequential_of, (items,))

    def describe(self) -> str:
        return self.cls.live.__name__


class _ModuleIterator(SequenceIterator):
    """An iterator over a ModuleSlice, with the type of an iterator over `_modules.values()`."""

    __slots__ = ()

    def python_type(self, machine: Machine) -> type:
        # Both containers iterate over `self._modules.values()`.
        return type(iter({}.values()))

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(advanced, (builder(self.container), builder.constant(self.index)))


def sequential_of(modules: Sequence[torch.nn.Module]) -> torch.nn.Sequential:
    """Create a Sequential of these modules."""
    return torch.nn.Sequential(*modules)
