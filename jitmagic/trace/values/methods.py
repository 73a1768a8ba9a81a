"""Models bound methods of objects that a Value models: `n.item`, `generator.send`."""

from __future__ import annotations

import types
from collections.abc import Iterable

from ..result import Recipe
from .base import Args, Builder, Kwargs, Machine, Value

__all__ = ["MethodValue"]


class MethodValue(Value):
    """Method `name` bound to its owner. A subclass overrides `call` if its owner has no
    `call_method` of its own.
    """

    __slots__ = ("name", "owner")

    def __init__(self, owner: Value, name: str) -> None:
        super().__init__()
        self.owner, self.name = owner, name

    def python_type(self, machine: Machine) -> type:
        descriptor = getattr(self.owner.python_type(machine), self.name)
        # CPython binds slot wrappers and methods to different types: `(1).__add__` is a method-
        # wrapper, `[].append` a builtin_function_or_method.
        is_slot = isinstance(descriptor, types.WrapperDescriptorType)
        return types.MethodWrapperType if is_slot else types.BuiltinMethodType

    def truth(self, machine: Machine) -> bool:
        return True

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        return self.owner.call_method(machine, self.name, args, kwargs)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(getattr, (builder(self.owner), builder.constant(self.name)))

    def parts(self) -> Iterable[Value]:
        return (self.owner,)
