"""Models slices of ModuleList and Sequential, which are new containers of the same modules.

Input: the values of the modules. Output: the new container, or an iterator over it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...residual_calls import advanced
from ...residual_torch_calls import sequential_of
from ...result import Recipe
from ..base import Args, Builder, Kwargs, Machine, Value
from ..containers.iterators import SequenceIterator
from ..containers.sequences import SliceValue, TupleValue
from ..objects.classes import ClassValue
from .module_hooks import has_global_hooks

__all__ = ["ModuleSlice"]


class ModuleSlice(TupleValue):
    """A slice such as `layers[1:]` of a ModuleList or Sequential.

    `names` are the keys of the modules in the sliced container. Only Sequential keeps them;
    ModuleList counts anew.
    """

    __slots__ = ("cls", "names")

    def __init__(self, cls: ClassValue, items: Sequence[Value], names: Sequence[Value]) -> None:
        super().__init__(items)
        self.cls, self.names = cls, names

    def get_item(self, machine: Machine, key: Value) -> Value:
        if isinstance(key, SliceValue):
            part = key.bounds(machine)
            return ModuleSlice(self.cls, self.items[part], self.names[part])
        return super().get_item(machine, key)

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
        # The hooks would get the new container, whose attributes are not modelled.
        if self.cls.live is not torch.nn.Sequential or has_global_hooks(machine):
            self.refuse(machine, "a call")
        forward = self.cls.get_attr(machine, "forward").realize(machine)
        return forward.call(machine, [self, *args], kwargs)

    def recipe(self, builder: Builder) -> Recipe:
        items = super().recipe(builder)
        if self.cls.live is torch.nn.ModuleList:
            return builder.invoke(torch.nn.ModuleList, (items,))
        return builder.invoke(sequential_of, (builder(TupleValue(self.names)), items))

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
