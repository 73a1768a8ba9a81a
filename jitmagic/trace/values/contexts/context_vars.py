"""Models contextvars.ContextVar: reads, and `set` with a `reset` in the same trace.

Input: a live variable, guarded by identity. Output: its value, which is guarded and must be a
constant if it was set before the call. A `set` that a `reset` undoes records no effect, any other
one does. If its token is live at an exit, the graph break moves before the `set`, since only a real
`set` can create a token.
"""

from __future__ import annotations

import contextvars
import functools
from typing import Any

from ....guards.guard import IdentityIs, StateRead
from ....guards.source import Source
from ...builtins.registry import method
from ...result import Recipe
from ...wrap import wraps
from ..base import Args, Builder, CannotRebuild, Kwargs, Machine, Value
from ..objects.callables import bind_builtin
from ..objects.constants import ATOMS
from ..objects.identity import IdentityValue
from .contexts import set_at_exit

__all__: list[str] = []

_UNSET = "<nothing is set>"  # a string, so that guards can compare it
_TOKEN = "the token of a context variable"


class ContextVarValue(IdentityValue):
    """A ContextVar; `active` has the `set` calls of the trace that are not yet reset."""

    __slots__ = ("active",)

    def __init__(self, live: contextvars.ContextVar[Any], source: Source) -> None:
        super().__init__(live, source)
        self.active: list[TokenValue] = []

    def get_attr(self, machine: Machine, name: str) -> Value:
        return bind_builtin(machine, self, contextvars.ContextVar, name)

    def before(self, machine: Machine) -> Value | None:
        """Return the constant that was set before the call, guarded, or None if it was unset."""
        read = functools.partial(self.live.get, _UNSET)
        found = self._constant(machine, read())
        machine.guard(StateRead(read, found))
        return None if found is _UNSET else machine.constant(found)

    def default(self, machine: Machine) -> Value:
        """Return the variable's default, which is immutable."""
        try:
            return machine.constant(self._constant(machine, self.live.get()))
        except LookupError:
            raise machine.error(LookupError, self) from None

    def _constant(self, machine: Machine, found: object) -> object:
        if type(found) not in ATOMS:
            # No guard path leads into the context of a thread (a HAMT in C). So a guard can compare
            # the value, but a later read of an object's attribute would have no source.
            self.refuse(machine, "reading an object that was set before this graph")
        return found

    def changed(self) -> tuple[Value] | None:
        """Return what an exit sets if the trace has left the variable set."""
        # The token was dropped; one that is live at the exit is CannotRebuild.
        return (self.active[-1].content,) if self.active else None


class TokenValue(Value):
    """The token that `set` returns and `reset` takes."""

    __slots__ = ("content", "created_at_step")

    def __init__(self, machine: Machine, content: Value) -> None:
        super().__init__()
        self.created_at_step = machine.step
        self.content = content

    def python_type(self, machine: Machine) -> type:
        return contextvars.Token

    def truth(self, machine: Machine) -> bool:
        return True

    def recipe(self, builder: Builder) -> Recipe:
        raise CannotRebuild(_TOKEN, self.created_at_step)


def _variable(owner: Value) -> ContextVarValue:
    assert isinstance(owner, ContextVarValue)
    return owner


@method(contextvars.ContextVar, "set")
def _set(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    variable = _variable(owner)
    set_at_exit(machine, variable.live.set, variable.changed)
    variable.active.append(TokenValue(machine, args[0]))
    return variable.active[-1]


@method(contextvars.ContextVar, "reset")
def _reset(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    variable = _variable(owner)
    # A token restores the value from before its own `set`: if another `set` came after it, an exit
    # would have to restore that earlier value.
    if not variable.active or args[0] is not variable.active[-1]:
        owner.refuse(machine, "a reset to a value set before this graph")
    variable.active.pop()
    return machine.constant(None)


@method(contextvars.ContextVar, "get")
def _get(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    variable = _variable(owner)
    if kwargs or len(args) > 1:
        owner.refuse(machine, "get() with these arguments")
    if variable.active:
        return variable.active[-1].content
    found = variable.before(machine)
    if found is not None:
        return found
    return args[0] if args else variable.default(machine)


@wraps(contextvars.ContextVar)
def _wrap_variable(
    machine: Machine, obj: contextvars.ContextVar[Any], source: Source
) -> ContextVarValue:
    machine.guard(IdentityIs(source, obj))
    return ContextVarValue(obj, source)
