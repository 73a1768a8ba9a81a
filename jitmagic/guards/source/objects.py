"""Attributes and parts of one object: cells, dictionaries, classes, functions, tensors, caches."""

from __future__ import annotations

import sys
import types

import torch

from ...bytecode import build
from ...compat.modes import ignore_torch_function
from ...compat.tensors import TensorBase
from ...lazy_dataclass import dataclass
from ..function_cache import cached_result
from ..live_objects import (
    array_memory,
    attribute_at,
    in_classes,
    instance_dict,
    number_of,
    of_kind,
    part_of,
    referent_of,
    scalar_classes,
    slot_of,
)
from .row import Code, Derived, Residual, Source

__all__ = [
    "ArrayMemory",
    "AttributeAt",
    "CacheEntry",
    "CellContents",
    "FunctionPart",
    "Gradient",
    "InstanceDict",
    "ModuleAttr",
    "NumberOf",
    "Referent",
    "SlotAttr",
    "TypeAttr",
    "TypeOf",
]


@dataclass(frozen=True, slots=True)
class CellContents(Derived):
    """The contents of a closure cell."""

    TEXT, STEP = "{0}", "CELL"

    def follow(self, base: object) -> object:
        return of_kind(types.CellType, base).cell_contents

    def code(self, base: Code) -> Code:
        return [*base, *build.load_attr("cell_contents")]


@dataclass(frozen=True, slots=True)
class InstanceDict(Derived):
    """The `__dict__` of an object."""

    TEXT, STEP = "{0}.__dict__", "INSTANCE_DICT"
    follow = staticmethod(instance_dict)

    def emit(self, residual: Residual) -> Code:
        owner = residual.base(self.base)
        if self.base in residual.with_getattribute:
            return build.call(_own_dict, owner)
        return [*owner, *build.load_attr("__dict__")]


@dataclass(frozen=True, slots=True)
class _Named(Derived):
    """Abstract base of attributes that have a constant name."""

    name: str

    TEXT = "{0}.{self.name}"


@dataclass(frozen=True, slots=True)
class ModuleAttr(_Named):
    """`base.__dict__[name]` of a Python module."""

    STEP = "MODULE_ITEM"

    def follow(self, base: object) -> object:
        return instance_dict(of_kind(types.ModuleType, base))[self.name]

    def code(self, base: Code) -> Code:
        table = [*base, *build.load_attr("__dict__")]
        return [*table, *build.load_const(self.name), *build.binary_subscr()]


@dataclass(frozen=True, slots=True)
class TypeAttr(_Named):
    """The attribute that the MRO of the type `base` has under a name, without `__get__`."""

    STEP = "TYPE_ATTR"

    def follow(self, base: object) -> object:
        return in_classes(of_kind(type, base), self.name)


@dataclass(frozen=True, slots=True)
class SlotAttr(_Named):
    """A C-level member or getset of a known built-in type."""

    STEP = "SLOT"

    def follow(self, base: object) -> object:
        return slot_of(base, self.name)

    def code(self, base: Code) -> Code:
        return [*base, *build.load_attr(self.name)]


@dataclass(frozen=True, slots=True)
class FunctionPart(Derived):
    """`__code__`, `__closure__`, `__defaults__`, `__kwdefaults__` or `__globals__` of a function;
    `__annotations__` once they are evaluated, else None; `__self__` or `__func__` of a method.
    """

    part: str

    TEXT, STEP = "{0}.{self.part}", "FUNCTION_PART"

    def follow(self, base: object) -> object:
        return part_of(base, self.part)

    def code(self, base: Code) -> Code:
        return [*base, *build.load_attr(self.part)]


@dataclass(frozen=True, slots=True)
class AttributeAt(Derived):
    """`base.name` of a name that the class lacks, read at `index`.

    `tables` are searched after `__dict__`.
    """

    index: Source
    tables: tuple[str, ...]

    TEXT, STEP = "getattr({0}, {1})", "ATTRIBUTE_AT"

    @property
    def bases(self) -> tuple[Source, ...]:
        return self.base, self.index

    def follow(self, base: object, name: object) -> object:
        return attribute_at(base, name, self.tables)


@dataclass(frozen=True, slots=True)
class TypeOf(Derived):
    """`type(base)`."""

    TEXT, STEP = "type({0})", "TYPE"
    follow = staticmethod(type)


@dataclass(frozen=True, slots=True)
class NumberOf(Derived):
    """The int or float that a scalar of numpy holds."""

    TEXT, STEP = "{0}.item()", "NUMBER_OF"
    follow = staticmethod(number_of)

    def operands(self) -> tuple[object, ...]:
        return (scalar_classes(),)


@dataclass(frozen=True, slots=True)
class Gradient(Derived):
    """`base.grad` of a leaf tensor."""

    TEXT, STEP = "{0}.grad", "GRADIENT"

    def follow(self, base: object) -> object:
        return slot_of(of_kind(torch.Tensor, base), "grad")

    def operands(self) -> tuple[object, ...]:
        # Of this class, and those with this handler, reading .grad runs no Python.
        return TensorBase.__dict__["grad"], (torch.Tensor, ignore_torch_function)

    def code(self, base: Code) -> Code:
        return [*base, *build.load_attr("grad")]


@dataclass(frozen=True, slots=True)
class ArrayMemory(Derived):
    """A tensor that shares the memory of a numpy array."""

    TEXT, STEP = "from_numpy({0})", "ARRAY_MEMORY"
    follow = staticmethod(array_memory)

    def operands(self) -> tuple[object, ...]:
        return torch.from_numpy, sys.modules["numpy"].ndarray

    def code(self, base: Code) -> Code:
        return build.call(torch.from_numpy, base)


@dataclass(frozen=True, slots=True)
class Referent(Derived):
    """The referent of a weakref.ref or mappingproxy, or None."""

    TEXT, STEP = "{0}()", "REFERENT"
    follow = staticmethod(referent_of)


@dataclass(frozen=True, slots=True)
class CacheEntry(Derived):
    """The cached result of a functools.lru_cache for a key."""

    key: object

    STEP = "CACHE_ENTRY"

    def describe(self) -> str:
        parts = self.key if isinstance(self.key, tuple) else (self.key,)
        # The marker of keyword arguments is an object().
        shown = ", ".join(repr(part) for part in parts if type(part) is not object)
        return f"{self.base.describe()}({shown})"

    def follow(self, base: object) -> object:
        return cached_result(base, self.key)


def _own_dict(owner: object) -> object:
    return object.__getattribute__(owner, "__dict__")
