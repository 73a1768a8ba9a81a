"""Models functions of jitmagic's API, and functions that jit() or a disable() returned.

Input: such a function. Output of a call: for a stub that jit() returned, an inlined call of the
original function; for graph_break() and disabled functions, a graph break; for is_compiling(), a
constant.
"""

from __future__ import annotations

import types

from ....guards.guard import IdentityIs
from ....guards.source import InstanceDict, Item, Source
from ...breaks import DisabledFunction, GraphBreak, UserGraphBreak
from ..base import Args, Kwargs, Machine, Value
from .identity import IdentityValue

__all__ = ["tagged_value"]

_ROLE = "__jitmagic_role__"  # set by api.py on graph_break() and is_compiling()
_DISABLED = "__jitmagic_disabled__"  # set by api.py on what disable() returns: the reason
# Set by torch.compiler.disable(). A call stub has the first, too, and functools.wraps copies it.
_DISABLED_BY_TORCH = ("_torchdynamo_disable", "_torchdynamo_orig_callable")
_REASON_OF_TORCH = "_torchdynamo_disable_msg"


class _MarkedValue(IdentityValue):
    """A function with a marker attribute: graph_break(), is_compiling(), or a disabled function."""

    __slots__ = ()

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        role = getattr(self.live, _ROLE, None)
        if role == "is_compiling":
            return machine.constant(True)
        if role == "graph_break":
            raise GraphBreak(UserGraphBreak.of())
        by = "jitmagic" if hasattr(self.live, _DISABLED) else "torch.compiler"
        reason = getattr(self.live, _DISABLED if by == "jitmagic" else _REASON_OF_TORCH, None)
        because = f": {reason}" if reason else ""
        name = self.live.__qualname__
        raise GraphBreak(DisabledFunction.of(name=name, by=by, because=because))


class _TaggedValue(IdentityValue):
    """A function that jit() returned; a call inlines the original function."""

    __slots__ = ()

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        assert self.source is not None
        source = Item(InstanceDict(self.source), "__wrapped__")
        original = machine.wrap(self.live.__dict__["__wrapped__"], source)
        return original.call(machine, args, kwargs)


def tagged_value(machine: Machine, obj: types.FunctionType, source: Source) -> Value | None:
    """Return the value of a function that jitmagic created or that is disabled, else None."""
    is_tagged = _is_tagged(obj)
    if not is_tagged and not _is_marked(obj):
        return None
    machine.guard(IdentityIs(source, obj))
    return _TaggedValue(obj, source) if is_tagged else _MarkedValue(obj, source)


def _is_marked(function: types.FunctionType) -> bool:
    marks = function.__dict__
    return _DISABLED in marks or _ROLE in marks or all(map(marks.get, _DISABLED_BY_TORCH))


def _is_tagged(function: types.FunctionType) -> bool:
    """Return whether the function is a call stub: its code's constants have a native Dispatcher."""
    if "__wrapped__" not in function.__dict__:
        return False
    # functools.wraps copies `__wrapped__` and `__dict__` to other functions, but no code constants.
    kinds = (type(constant) for constant in function.__code__.co_consts)
    return any(kind.__module__ == "jitmagic._frame" for kind in kinds)
