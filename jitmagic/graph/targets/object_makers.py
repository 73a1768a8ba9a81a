"""Defines recipes of objects of the program that a backward needs when it runs as Python.

A `Make` is called with the tensors and sizes that the graph saved (`left`) and with the live
objects that the call holds (`held`); it returns the object. Objects that the frame created are made
anew each time, live ones are taken from `held`. The recipes are frozen, so a stored graph has them.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...lazy_dataclass import dataclass
from ...torch_types import AnyFunction

__all__ = [
    "Constant",
    "Context",
    "Filled",
    "Function",
    "Held",
    "Instance",
    "Left",
    "Make",
    "Mapped",
    "NamedItems",
    "Partial",
    "Result",
]

Make = Callable[[Sequence[object], tuple[object, ...]], Any]
Attributes = tuple[tuple[str, Make], ...]


@dataclass(frozen=True, slots=True)
class Held:
    """Takes a live object that the call holds."""

    index: int

    def __call__(self, left: Sequence[object], held: tuple[object, ...]) -> Any:
        return held[self.index]


@dataclass(frozen=True, slots=True)
class Left:
    """Takes a tensor or a size that the graph saved; a number has a `kind`."""

    index: int
    kind: AnyFunction | None = None

    def __call__(self, left: Sequence[object], held: tuple[object, ...]) -> Any:
        value = left[self.index]
        return value if self.kind is None else self.kind(value)


@dataclass(frozen=True, slots=True)
class Constant:
    """Returns a constant of the trace."""

    value: Any

    def __call__(self, left: Sequence[object], held: tuple[object, ...]) -> Any:
        return self.value


@dataclass(frozen=True, slots=True)
class Result:
    """Calls a function with the parts as arguments."""

    function: AnyFunction
    parts: tuple[Make, ...]

    def __call__(self, left: Sequence[object], held: tuple[object, ...]) -> Any:
        return self.function(*(part(left, held) for part in self.parts))


@dataclass(frozen=True, slots=True)
class Filled:
    """Makes a container of `kind` with the parts as items."""

    kind: AnyFunction
    parts: tuple[Make, ...]

    def __call__(self, left: Sequence[object], held: tuple[object, ...]) -> Any:
        return self.kind([part(left, held) for part in self.parts])


@dataclass(frozen=True, slots=True)
class NamedItems:
    """Makes a named tuple. A `__new__` of its class takes the fields as separate arguments."""

    cls: type
    parts: tuple[Make, ...]

    def __call__(self, left: Sequence[object], held: tuple[object, ...]) -> Any:
        return tuple.__new__(self.cls, [part(left, held) for part in self.parts])


@dataclass(frozen=True, slots=True)
class Mapped:
    """Makes a dictionary of `kind` with these keys and values."""

    kind: AnyFunction
    keys: Filled
    values: Filled

    def __call__(self, left: Sequence[object], held: tuple[object, ...]) -> Any:
        return self.kind(zip(self.keys(left, held), self.values(left, held), strict=True))


@dataclass(frozen=True, slots=True)
class Function:
    """Makes a function of the program, over these cells."""

    code: types.CodeType
    globals: dict[str, Any]
    name: str
    defaults: Make
    keyword_defaults: Make
    cells: Filled

    def __call__(self, left: Sequence[object], held: tuple[object, ...]) -> Any:
        given = self.name, self.defaults(left, held), self.cells(left, held)
        made = types.FunctionType(self.code, self.globals, *given)
        made.__kwdefaults__ = self.keyword_defaults(left, held)
        return made


@dataclass(frozen=True, slots=True)
class Partial:
    """Makes a functools.partial; the first of the parts is its function."""

    parts: Filled
    keywords: Attributes

    def __call__(self, left: Sequence[object], held: tuple[object, ...]) -> Any:
        given = {name: part(left, held) for name, part in self.keywords}
        return partial(*self.parts(left, held), **given)


@dataclass(frozen=True, slots=True)
class Instance:
    """Makes an instance. Neither `__init__` nor a user's `__setattr__` may run again: their effects
    happened in the forward.
    """

    cls: Make
    attributes: Attributes

    def __call__(self, left: Sequence[object], held: tuple[object, ...]) -> Any:
        made = object.__new__(self.cls(left, held))
        for name, part in self.attributes:
            object.__setattr__(made, name, part(left, held))
        return made


@dataclass(frozen=True, slots=True)
class Context:
    """Makes the class of an autograd function and the attributes of its `ctx`."""

    function: Make
    attributes: Attributes

    def __call__(self, left: Sequence[object], held: tuple[object, ...]) -> Any:
        named = {name: part(left, held) for name, part in self.attributes}
        return self.function(left, held), named
