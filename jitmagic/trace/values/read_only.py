"""Dictionaries that the program can read and nobody writes to: what a mappingproxy shows.

Comes in: the pairs of a table that is as it is for good (parameters of a signature, members of an
enum class). Goes out: a DictValue that is read as one; changing it breaks.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import NoReturn

from ..result import Recipe
from .base import Machine, Value
from .callables import bind_builtin
from .mappings import DictValue

__all__ = ["ReadOnlyTable"]

_READERS = ("keys", "values", "items", "get")


class ReadOnlyTable(DictValue):
    """A mappingproxy."""

    __slots__ = ()

    def __init__(self, machine: Machine, pairs: Iterable[tuple[Value, Value]]) -> None:
        super().__init__(kind=types.MappingProxyType)
        for key, value in pairs:
            self.put(machine, key, value)

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name not in _READERS:
            self.refuse(machine, f"attribute {name!r}")
        return bind_builtin(machine, self, dict, name)

    def changed(self, machine: Machine) -> NoReturn:
        self.refuse(machine, "a change")

    def empty_recipe(self) -> Recipe | None:
        return None
