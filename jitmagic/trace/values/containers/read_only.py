"""Models types.MappingProxyType, a read-only view of a dictionary.

Input: the pairs of an immutable table (parameters of a signature, members of an enum class), or a
live mappingproxy. Output: a Value that reads like a dictionary; a write breaks the graph.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import NoReturn

from ....guards.guard import TypeIs
from ....guards.live_objects import referent_of
from ....guards.source import Referent, Source
from ...breaks import GraphBreak, UnknownObject
from ...result import Recipe
from ...wrap import wraps
from ..base import Machine, Value
from ..objects.callables import bind_builtin
from ..objects.opaque import WithoutOperators
from .mappings import DictValue

__all__ = ["ProxyValue", "ReadOnlyTable"]

_READERS = ("keys", "values", "items", "get")


class ReadOnlyTable(DictValue):
    """A mappingproxy of a table that never changes."""

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


class ProxyValue(WithoutOperators):
    """A live mappingproxy, whose dictionary may differ in the next call."""

    __slots__ = ("target",)

    def __init__(self, target: Value, source: Source) -> None:
        super().__init__(source)
        self.target = target

    def python_type(self, machine: Machine) -> type:
        return types.MappingProxyType

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name not in _READERS:
            self.refuse(machine, f"attribute {name!r}")
        return self.target.get_attr(machine, name)

    def get_item(self, machine: Machine, key: Value) -> Value:
        return self.target.get_item(machine, key)

    def contains(self, machine: Machine, item: Value) -> Value:
        return self.target.contains(machine, item)

    def length(self, machine: Machine) -> int:
        return self.target.length(machine)

    def truth(self, machine: Machine) -> bool:
        return self.target.truth(machine)

    def iterate(self, machine: Machine) -> Value:
        return self.target.iterate(machine)


@wraps(types.MappingProxyType)
def _wrap_proxy(machine: Machine, obj: object, source: Source) -> Value:
    machine.guard(TypeIs(source, types.MappingProxyType))
    try:
        # A proxy has no attribute for its mapping. gc.get_referents() finds it, if it is a dict or
        # an OrderedDict; the methods of another mapping may run user code.
        target = referent_of(obj)
    except TypeError:
        what = "the dictionary"
        raise GraphBreak(UnknownObject.of(what=what, type="mappingproxy")) from None
    return ProxyValue(machine.wrap(target, Referent(source)), source)
