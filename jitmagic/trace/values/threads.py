"""Locks and attributes of a thread's own.

Comes in: a live lock, or a live `threading.local`. A block that holds a lock and only reads
Python's state is as if it had run at the moment when the guards were checked: they say that the
lock is free, or this thread's own. Kernels run and effects are done later than that, without the
lock: a block with any of them is a graph break. Attributes of a `threading.local` are read, by the
guards too, in the thread that calls; constants are followed.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from ...guards.guard import IdentityIs, StateRead
from ...guards.source import Source
from ..builtins.registry import method
from ..wrap import wraps
from .base import Args, Builder, Kwargs, Machine, Unrestorable, Value
from .callables import BuiltinMethodValue, bind_builtin
from .constants import ATOMS
from .identity import IdentityValue

__all__: list[str] = []

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_ABSENT = "<no such attribute>"  # a constant, for guards; no program has this string


class LockValue(IdentityValue):
    """`held`: how often the trace has acquired it, with what the trace had done by then."""

    __slots__ = ("born", "done", "held")

    def __init__(self, live: Any, source: Source) -> None:
        super().__init__(live, source)
        self.held = self.born = 0
        self.done = (0, 0)

    def get_attr(self, machine: Machine, name: str) -> Value:
        return bind_builtin(machine, self, type(self.live), name)

    def enter(self, machine: Machine) -> tuple[Value, Value]:
        entered = _acquire(machine, self, (), {})
        return BuiltinMethodValue(self, type(self.live), "__exit__"), entered

    def leave(self, builder: Builder) -> None:
        """No exit while it is held."""
        if self.held:
            raise Unrestorable("a lock that is held", self.born)


def _done(machine: Any) -> tuple[int, int]:
    """How many effects and operations there are."""
    graph = machine.graph
    return machine.effects.changes, len(graph.graph.nodes) - len(graph.inputs)


def _refuse(machine: Machine, lock: LockValue, args: Args, kwargs: Kwargs) -> None:
    if args or kwargs:
        lock.refuse(machine, "a call with arguments")


@method(_LOCKS[0], "acquire", "__enter__")
@method(_LOCKS[1], "acquire", "__enter__")
def _acquire(machine: Any, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    assert isinstance(owner, LockValue)
    _refuse(machine, owner, args, kwargs)
    if not owner.held:
        _rely_on_state(machine, owner)
        machine.at_exit(owner.leave)
        owner.born, owner.done = machine.step, _done(machine)
    elif type(owner.live) is _LOCKS[0]:
        owner.refuse(machine, "acquiring it twice")
    owner.held += 1
    entered: Value = machine.constant(True)
    return entered


def _rely_on_state(machine: Machine, lock: LockValue) -> None:
    """Only its text tells of every kind of lock, in C, whether and by whom it is held."""
    tell = lock.live.__repr__
    text = tell()
    own = getattr(lock.live, "_is_owned", bool)()  # a plain lock has no owner
    if not own and not text.startswith("<unlocked "):
        lock.refuse(machine, "waiting until another has released it")
    machine.guard(StateRead(tell, text))


@method(_LOCKS[0], "release", "__exit__")
@method(_LOCKS[1], "release", "__exit__")
def _release(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    assert isinstance(owner, LockValue)
    if not owner.held:
        owner.refuse(machine, "releasing what was acquired before this graph")
    owner.held -= 1
    if not owner.held and _done(machine) != owner.done:
        owner.refuse(machine, "computing or writing something while it is held")
    return machine.constant(None)


@method(_LOCKS[0], "locked")
def _locked(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    assert isinstance(owner, LockValue)
    if not owner.held:
        machine.guard(StateRead(owner.live.locked, owner.live.locked()))
    return machine.constant(bool(owner.held) or owner.live.locked())


@wraps(*_LOCKS)
def _wrap_lock(machine: Machine, obj: Any, source: Source) -> Value:
    machine.guard(IdentityIs(source, obj))
    return LockValue(obj, source)


class ThreadLocalValue(IdentityValue):
    """A threading.local: what this thread has there."""

    __slots__ = ("_known",)

    def __init__(self, live: threading.local, source: Source) -> None:
        super().__init__(live, source)
        self._known: dict[str, Value | None] = {}

    def get_attr(self, machine: Machine, name: str) -> Value:
        if hasattr(threading.local, name):
            self.refuse(machine, f"attribute {name!r}")
        if name not in self._known:
            self._known[name] = self._read(machine, name)
        known = self._known[name]
        if known is None:
            message = f"'_thread._local' object has no attribute '{name}'"
            raise machine.error(AttributeError, message)
        return known

    def _read(self, machine: Machine, name: str) -> Value | None:
        read = functools.partial(getattr, self.live, name, _ABSENT)
        found = read()
        if type(found) not in ATOMS:
            self.refuse(machine, f"attribute {name!r}, which is no constant,")
        machine.guard(StateRead(read, found))
        return None if found is _ABSENT else machine.constant(found)

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        if hasattr(threading.local, name):
            self.refuse(machine, f"setting attribute {name!r}")
        self._known[name] = value
        machine.effects.set_attr(self, name, value, setter=setattr)


@wraps(threading.local)
def _wrap_thread_local(machine: Machine, obj: threading.local, source: Source) -> Value:
    machine.guard(IdentityIs(source, obj))
    return ThreadLocalValue(obj, source)
