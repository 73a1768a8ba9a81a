"""Weak references: `weakref.ref` objects that the program calls, as recurrent layers do.

Comes in: a live reference of exactly that class (a subclass may be called otherwise). Goes out:
what it leads to at this moment, by a source; that it leads there still is guarded like any path.
"""

from __future__ import annotations

import weakref
from typing import Any

from ...guards.guard import TypeIs
from ...guards.source import Referent, Source
from ..wrap import wraps
from .base import Args, Kwargs, Machine, Value
from .opaque import WithoutOperators

__all__: list[str] = []


class WeakReferenceValue(WithoutOperators):
    """A reference made before this graph."""

    __slots__ = ("live",)

    def __init__(self, live: weakref.ref[Any], source: Source) -> None:
        super().__init__(source)
        self.live = live

    def python_type(self, machine: Machine) -> type:
        return weakref.ref

    def truth(self, machine: Machine) -> bool:
        return True

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if args or kwargs or self.source is None:
            self.refuse(machine, "a call with arguments")
        return machine.lazy(self.live(), Referent(self.source))

    def describe(self) -> str:
        return "weak reference"


@wraps(weakref.ref)
def _wrap_reference(machine: Machine, obj: weakref.ref[Any], source: Source) -> Value:
    machine.guard(TypeIs(source, weakref.ref))
    return WeakReferenceValue(obj, source)
