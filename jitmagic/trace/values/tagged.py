"""Functions that jitmagic made or marked: what jit() and disable() return, graph_break() and
is_compiling().

Comes in: a live function with api.py's marks, or whose code is a call stub. Goes out: a call of
what it was made from, or the break it asks for.
"""

from __future__ import annotations

import types

from ...guards.guard import IdentityIs
from ...guards.source import InstanceDict, Item, Source
from ..breaks import DisabledFunction, GraphBreak, UserGraphBreak
from .base import Args, Kwargs, Machine, Value
from .identity import IdentityValue

__all__ = ["tagged_value"]

_ROLE = "__jitmagic_role__"  # set by api.py on graph_break() and is_compiling()
_DISABLED = "__jitmagic_disabled__"  # set by api.py on what disable() returns


class _MarkedValue(IdentityValue):
    """A function that api.py marked: graph_break(), is_compiling(), or a disabled function."""

    __slots__ = ()

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        role = getattr(self.live, _ROLE, None)
        if role == "is_compiling":
            return machine.constant(True)
        if role == "graph_break":
            raise GraphBreak(UserGraphBreak.of())
        raise GraphBreak(DisabledFunction.of(name=self.live.__qualname__))


class _TaggedValue(IdentityValue):
    """A function that jit() returned: a call is a call of what it was made from."""

    __slots__ = ()

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        assert self.source is not None
        source = Item(InstanceDict(self.source), "__wrapped__")
        original = machine.wrap(self.live.__dict__["__wrapped__"], source)
        return original.call(machine, args, kwargs)


def tagged_value(machine: Machine, obj: types.FunctionType, source: Source) -> Value | None:
    """The value of a function that is jitmagic's; None: it is not."""
    marked = _DISABLED in obj.__dict__ or _ROLE in obj.__dict__
    if not marked and not _is_tagged(obj):
        return None
    machine.guard(IdentityIs(source, obj))
    return _MarkedValue(obj, source) if marked else _TaggedValue(obj, source)


def _is_tagged(function: types.FunctionType) -> bool:
    """Whether the function is a call stub: its code holds a native Dispatcher."""
    if "__wrapped__" not in function.__dict__:
        return False
    kinds = (type(constant) for constant in function.__code__.co_consts)
    return any(kind.__module__ == "jitmagic._frame" for kind in kinds)
