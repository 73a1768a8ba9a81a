"""Weak references: `weakref.ref` objects that the program calls, as recurrent layers do.

Comes in: a live reference of exactly that class (a subclass may be called otherwise), or a call
that makes one. Goes out: what it leads to at this moment, by a source; that it leads there still is
guarded like any path.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from ....guards.guard import TypeIs
from ....guards.source import Referent, Source
from ...breaks import GraphBreak, UnsupportedArguments, WeaklyReferenced
from ...builtins.registry import handles
from ...library_files import is_library
from ...result import Recipe
from ...wrap import wraps
from ..base import Args, Builder, Kwargs, Lazy, Machine, Value
from .opaque import WithoutOperators

__all__ = ["NewReference"]


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


class NewReference(WithoutOperators):
    """A reference made here. Whether its object is still alive when it is called only Python knows
    where no frame holds it: the program may have dropped it.
    """

    __slots__ = ("target",)

    def __init__(self, target: Value) -> None:
        super().__init__()
        self.target = target

    def python_type(self, machine: Machine) -> type:
        return weakref.ref

    def truth(self, machine: Machine) -> bool:
        return True

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if args or kwargs or not _is_held(machine, self.target):
            self.refuse(machine, "a call")
        return self.target

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(weakref.ref, (builder(self.target),))

    def parts(self) -> Iterable[Value]:
        return (self.target,)

    def describe(self) -> str:
        return "weak reference"


def _is_held(machine: Any, target: Value) -> bool:
    """Whether variables and stacks lead to an object, by more than weak references."""
    waiting = [v for frame in machine.frames for v in (*frame.slots.values(), *frame.stack)]
    seen = set[int]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, Lazy):
            value = value.real
        if value is target:
            return True
        if value is None or id(value) in seen or isinstance(value, NewReference):
            continue
        seen.add(id(value))
        waiting += value.parts()
    return False


def _is_in_library(machine: Any) -> bool:
    """Who does not ask whether the object is alive."""
    return is_library(machine.frame.program.body.filename)


@handles(weakref.ref)
def _make_reference(machine: Any, args: Args, kwargs: Kwargs) -> Value:
    made_here = bool(args) and args[0].source is None
    kind = args[0].python_type(machine) if made_here else object
    of_layer = issubclass(kind, torch.Tensor)  # a module of the library's holds it as well
    of_scheduler = issubclass(kind, torch.optim.Optimizer)
    if made_here and not (_is_in_library(machine) and (of_layer or of_scheduler)):
        raise GraphBreak(WeaklyReferenced.of(what="weakref.ref()"))
    if len(args) != 1 or kwargs or of_layer:
        what = "a call back, or a tensor made here, which may die"
        raise GraphBreak(UnsupportedArguments.of(name="weakref.ref", what=what))
    return NewReference(args[0])


@wraps(weakref.ref)
def _wrap_reference(machine: Machine, obj: weakref.ref[Any], source: Source) -> Value:
    machine.guard(TypeIs(source, weakref.ref))
    return WeakReferenceValue(obj, source)
