"""Models `weakref.ref` objects that the program calls, as recurrent layers of torch do.

Input: a live reference of exactly that class, since a subclass may override `__call__`, or a call
that creates one. Output: the referent, read through a source and guarded like any other path.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

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
    """A reference that existed before the call."""

    __slots__ = ("live",)
    always_true = True

    def __init__(self, live: weakref.ref[object], source: Source) -> None:
        super().__init__(source)
        self.live = live

    def python_type(self, machine: Machine) -> type:
        return weakref.ref

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if args or kwargs or self.source is None:
            self.refuse(machine, "a call with arguments")
        return machine.lazy(self.live(), Referent(self.source))

    def describe(self) -> str:
        return "weak reference"


class NewReference(WithoutOperators):
    """A reference that the traced code creates.

    A call is traced only while a variable or stack of a traced frame refers to the target. Else the
    program may have dropped the last reference, and only CPython knows whether it is alive.
    """

    __slots__ = ("target",)
    always_true = True

    def __init__(self, target: Value) -> None:
        super().__init__()
        self.target = target

    def python_type(self, machine: Machine) -> type:
        return weakref.ref

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


def _is_held(machine: Machine, target: Value) -> bool:
    """Return whether a variable or stack of a traced frame holds a strong reference to it."""
    pending = [v for frame in machine.frames for v in (*frame.slots.values(), *frame.stack)]
    seen = set[int]()
    while pending:
        value = pending.pop()
        if isinstance(value, Lazy):
            value = value.real
        if value is target:
            return True
        # A weak reference does not keep its target alive, so its parts do not count.
        if value is None or id(value) in seen or isinstance(value, NewReference):
            continue
        seen.add(id(value))
        pending += value.parts()
    return False


def _is_in_library(machine: Machine) -> bool:
    """Return whether library code is running, which does not test if the referent is alive."""
    return is_library(machine.frame.program.body.filename)


@handles(weakref.ref)
def _make_reference(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    made_here = bool(args) and args[0].source is None
    kind = args[0].python_type(machine) if made_here else object
    # torch.nn.RNN refers weakly to its weights, which the layer holds as well: a break suffices. A
    # learning rate scheduler refers weakly to its optimizer; frames that create both ran as eager
    # as a whole before they were allowed here.
    of_layer = issubclass(kind, torch.Tensor)  # a torch.nn module also holds it
    of_scheduler = issubclass(kind, torch.optim.Optimizer)
    if made_here and not (_is_in_library(machine) and (of_layer or of_scheduler)):
        raise GraphBreak(WeaklyReferenced.of(what="weakref.ref()"))
    if len(args) != 1 or of_layer:
        what = "a callback, or a new tensor, which may die"
        raise GraphBreak(UnsupportedArguments.of(name="weakref.ref", what=what))
    return NewReference(args[0])


@wraps(weakref.ref)
def _wrap_reference(machine: Machine, obj: weakref.ref[object], source: Source) -> Value:
    machine.guard(TypeIs(source, weakref.ref))
    return WeakReferenceValue(obj, source)
