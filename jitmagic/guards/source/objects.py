"""Attributes and parts of one object: cells, dictionaries, classes, functions, tensors, caches."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from typing import Any

import torch

from ...bytecode import build
from ..function_cache import cached_result
from ..live_objects import (
    array_memory,
    attribute_at,
    in_classes,
    instance_dict,
    int_of,
    integer_classes,
    of_kind,
    part_of,
    referent_of,
    slot_of,
)
from .row import Code, Derived, Residual, Source, Step

__all__ = [
    "ArrayMemory",
    "AttributeAt",
    "CacheEntry",
    "CellContents",
    "FunctionPart",
    "Gradient",
    "InstanceDict",
    "IntOf",
    "ModuleAttr",
    "Referent",
    "SlotAttr",
    "TypeAttr",
    "TypeOf",
]

_GRADIENT = torch._C.TensorBase.__dict__["grad"]
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)  # reading their .grad runs no Python


@dataclass(frozen=True, slots=True)
class CellContents(Derived):
    """The contents of a closure cell."""

    def text(self, base: str) -> str:
        return base

    def follow(self, base: Any) -> Any:
        return of_kind(types.CellType, base).cell_contents

    def step(self, base: int) -> Step:
        return ("CELL", base)

    def code(self, base: Code) -> Code:
        return [*base, *build.load_attr("cell_contents")]


@dataclass(frozen=True, slots=True)
class InstanceDict(Derived):
    """The `__dict__` of an object."""

    def text(self, base: str) -> str:
        return f"{base}.__dict__"

    def follow(self, base: Any) -> Any:
        return instance_dict(base)

    def step(self, base: int) -> Step:
        return ("INSTANCE_DICT", base)

    def emit(self, residual: Residual) -> Code:
        owner = self.base.emit(residual)
        if self.base in residual.with_getattribute:
            return build.call(_own_dict, owner)
        return [*owner, *build.load_attr("__dict__")]


@dataclass(frozen=True, slots=True)
class _Named(Derived):
    """Abstract base of attributes that have a constant name."""

    name: str

    def text(self, base: str) -> str:
        return f"{base}.{self.name}"


@dataclass(frozen=True, slots=True)
class ModuleAttr(_Named):
    """`base.__dict__[name]` of a Python module."""

    def follow(self, base: Any) -> Any:
        return instance_dict(of_kind(types.ModuleType, base))[self.name]

    def step(self, base: int) -> Step:
        return ("MODULE_ITEM", base, self.name)

    def code(self, base: Code) -> Code:
        table = [*base, *build.load_attr("__dict__")]
        return [*table, *build.load_const(self.name), *build.binary_subscr()]


@dataclass(frozen=True, slots=True)
class TypeAttr(_Named):
    """The attribute that the MRO of the type `base` has under a name, without `__get__`."""

    def follow(self, base: Any) -> Any:
        return in_classes(of_kind(type, base), self.name)

    def step(self, base: int) -> Step:
        return ("TYPE_ATTR", base, self.name)


@dataclass(frozen=True, slots=True)
class SlotAttr(_Named):
    """A C-level member or getset of a known built-in type."""

    def follow(self, base: Any) -> Any:
        return slot_of(base, self.name)

    def step(self, base: int) -> Step:
        return ("SLOT", base, self.name)

    def code(self, base: Code) -> Code:
        return [*base, *build.load_attr(self.name)]


@dataclass(frozen=True, slots=True)
class FunctionPart(Derived):
    """`__code__`, `__closure__`, `__defaults__`, `__kwdefaults__` or `__globals__` of a function;
    `__self__` or `__func__` of a bound method.
    """

    part: str

    def text(self, base: str) -> str:
        return f"{base}.{self.part}"

    def follow(self, base: Any) -> Any:
        return part_of(base, self.part)

    def step(self, base: int) -> Step:
        return ("FUNCTION_PART", base, self.part)

    def code(self, base: Code) -> Code:
        return [*base, *build.load_attr(self.part)]


@dataclass(frozen=True, slots=True)
class AttributeAt(Derived):
    """`base.name` of a name that the class lacks, read at `index`.

    `tables` are searched after `__dict__`.
    """

    index: Source
    tables: tuple[str, ...]

    @property
    def bases(self) -> tuple[Source, ...]:
        return self.base, self.index

    def text(self, base: str, index: str) -> str:
        return f"getattr({base}, {index})"

    def follow(self, base: Any, name: Any) -> Any:
        return attribute_at(base, name, self.tables)

    def step(self, base: int, index: int) -> Step:
        return ("ATTRIBUTE_AT", base, index, self.tables)


@dataclass(frozen=True, slots=True)
class TypeOf(Derived):
    """`type(base)`."""

    def text(self, base: str) -> str:
        return f"type({base})"

    def follow(self, base: Any) -> Any:
        return type(base)

    def step(self, base: int) -> Step:
        return ("TYPE", base)

    def code(self, base: Code) -> Code:
        return build.call(type, base)


@dataclass(frozen=True, slots=True)
class IntOf(Derived):
    """The value of a numpy integer."""

    def text(self, base: str) -> str:
        return f"int({base})"

    def follow(self, base: Any) -> Any:
        return int_of(base)

    def step(self, base: int) -> Step:
        return ("INT_OF", base, integer_classes())


@dataclass(frozen=True, slots=True)
class Gradient(Derived):
    """`base.grad` of a leaf tensor."""

    def text(self, base: str) -> str:
        return f"{base}.grad"

    def follow(self, base: Any) -> Any:
        return slot_of(of_kind(torch.Tensor, base), "grad")

    def step(self, base: int) -> Step:
        return ("GRADIENT", base, _GRADIENT, _PLAIN_TENSORS)

    def code(self, base: Code) -> Code:
        return [*base, *build.load_attr("grad")]


@dataclass(frozen=True, slots=True)
class ArrayMemory(Derived):
    """A tensor that shares the memory of a numpy array."""

    def text(self, base: str) -> str:
        return f"from_numpy({base})"

    def follow(self, base: Any) -> Any:
        return array_memory(base)

    def step(self, base: int) -> Step:
        return ("ARRAY_MEMORY", base, torch.from_numpy, sys.modules["numpy"].ndarray)

    def code(self, base: Code) -> Code:
        return build.call(torch.from_numpy, base)


@dataclass(frozen=True, slots=True)
class Referent(Derived):
    """The referent of a weakref.ref or mappingproxy, or None."""

    def text(self, base: str) -> str:
        return f"{base}()"

    def follow(self, base: Any) -> Any:
        return referent_of(base)

    def step(self, base: int) -> Step:
        return ("REFERENT", base)


@dataclass(frozen=True, slots=True)
class CacheEntry(Derived):
    """The cached result of a functools.lru_cache for a key."""

    key: object

    def text(self, base: str) -> str:
        parts = self.key if isinstance(self.key, tuple) else (self.key,)
        # The marker of keyword arguments is an object().
        return f"{base}({', '.join(repr(p) for p in parts if type(p) is not object)})"

    def follow(self, base: Any) -> Any:
        return cached_result(base, self.key)

    def step(self, base: int) -> Step:
        return ("CACHE_ENTRY", base, self.key)


def _own_dict(owner: object) -> object:
    return object.__getattribute__(owner, "__dict__")
