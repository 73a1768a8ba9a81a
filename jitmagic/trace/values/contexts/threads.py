"""Models locks and threading.local.

Input: a live lock. If a block under the lock only reads Python state, a guard that the lock is free
or owned by this thread suffices: the reads are then valid at the time of the guard check. Kernels
and effects run later. So if the block has any, frame/locked_frames.py acquires the lock for the
whole frame and checks the guards again. That works for one lock per frame, and only without graph
breaks.

Input: a live `threading.local`. Its attributes are read, by guards too, in the calling thread; they
must be constants.
"""

from __future__ import annotations

import functools
import threading

from ....guards.guard import IdentityIs, StateRead
from ....guards.source import Source
from ...breaks import GraphBreak, Reason, UnsupportedOperation
from ...builtins.registry import method
from ...wrap import wraps
from ..base import Args, Builder, CannotRebuild, Kwargs, Machine, Value
from ..objects.callables import BuiltinMethodValue, bind_builtin
from ..objects.constants import ATOMS
from ..objects.identity import IdentityValue
from ..objects.opaque import OpaqueValue

__all__: list[str] = []

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_ABSENT = "<no such attribute>"  # a string, so that guards can compare it; no program uses it


class LockValue(IdentityValue):
    """A lock; `held` counts acquisitions, `done` is `_done()` when the block was entered."""

    __slots__ = ("acquired_at_step", "done", "held", "machine", "text")

    def __init__(self, live: object, source: Source) -> None:
        super().__init__(live, source)
        self.held = self.acquired_at_step = 0
        self.done = (0, 0)
        self.machine: Machine | None = None  # set by `watch`
        self.text = ""

    def get_attr(self, machine: Machine, name: str) -> Value:
        return bind_builtin(machine, self, type(self.live), name)

    def enter(self, machine: Machine) -> tuple[Value, Value]:
        entered = _acquire(machine, self, (), {})
        return BuiltinMethodValue(self, type(self.live), "__exit__"), entered

    def watch(self, machine: Machine) -> None:
        """Break if another thread holds the lock; else check the lock at each exit."""
        if self.machine is None:
            self.text, self.machine = _text_of(self, machine), machine
            machine.at_exit(self._at_exit)

    def _at_exit(self, builder: Builder) -> None:
        """Refuse an exit while the lock is held, or a graph break if the whole frame acquires it.

        The guard that the lock is free is installed here, but not if frame/locked_frames.py
        acquires the lock: it checks the guards again while it holds the lock.
        """
        assert self.machine is not None
        if self.held:
            raise CannotRebuild("a lock that is held", self.acquired_at_step)
        if self.machine.effects.lock is not self.live:
            self.machine.guard(StateRead(self.live.__repr__, self.text))
        elif self.machine.stop is not None or not builder.only_writes():
            raise CannotRebuild("a lock", self.acquired_at_step, _cannot_hold(self))


def _done(machine: Machine) -> tuple[int, int]:
    """Return (number of effects, number of operations) that the trace has recorded so far."""
    graph = machine.graph
    return machine.effects.changes, len(graph.graph.nodes) - len(graph.inputs)


def _refuse(machine: Machine, lock: LockValue, args: Args, kwargs: Kwargs) -> None:
    if args or kwargs:
        lock.refuse(machine, "a call with arguments")


@method(_LOCKS[0], "acquire", "__enter__")
@method(_LOCKS[1], "acquire", "__enter__")
def _acquire(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    assert isinstance(owner, LockValue)
    _refuse(machine, owner, args, kwargs)
    if not owner.held:
        owner.watch(machine)
        owner.acquired_at_step, owner.done = machine.step, _done(machine)
    elif type(owner.live) is _LOCKS[0]:  # a plain lock is not reentrant: the thread deadlocks
        owner.refuse(machine, "acquiring it twice")
    owner.held += 1
    entered: Value = machine.constant(True)
    return entered


def _text_of(lock: LockValue, machine: Machine) -> str:
    """Return the repr of a free or owned lock; no other C method shows the state of every kind."""
    text: str = lock.live.__repr__()
    # An RLock that the calling thread owns can be acquired again without waiting.
    own = getattr(lock.live, "_is_owned", bool)()  # a plain lock has no owner
    if not own and not text.startswith("<unlocked "):
        lock.refuse(machine, "waiting for another thread to release it")
    return text


def _acquire_for_frame(machine: Machine, lock: LockValue) -> None:
    """Have frame/locked_frames.py hold the lock while the whole frame runs."""
    # Only one lock: acquiring two in another order than other threads do may deadlock.
    if machine.effects.lock not in (None, lock.live) or machine.graph is not machine.graph.root:
        raise GraphBreak(_cannot_hold(lock))
    machine.effects.lock = lock.live


def _cannot_hold(lock: LockValue) -> Reason:
    what = "computing or writing something while it is held"
    return UnsupportedOperation.of(what=what, types=lock.describe())


@method(_LOCKS[0], "release", "__exit__")
@method(_LOCKS[1], "release", "__exit__")
def _release(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    assert isinstance(owner, LockValue)
    if not owner.held:
        owner.refuse(machine, "releasing a lock acquired before this graph")
    owner.held -= 1
    if not owner.held and _done(machine) != owner.done:
        _acquire_for_frame(machine, owner)
    return machine.constant(None)


@method(_LOCKS[0], "locked")
def _locked(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    assert isinstance(owner, LockValue)
    if not owner.held and owner.live.locked():
        machine.guard(StateRead(owner.live.locked, True))
        return machine.constant(True)
    owner.watch(machine)
    return machine.constant(bool(owner.held))


@wraps(*_LOCKS)
def _wrap_lock(machine: Machine, obj: object, source: Source) -> Value:
    machine.guard(IdentityIs(source, obj))
    return LockValue(obj, source)


class _ThreadTable(OpaqueValue):
    """The dictionary of a thread's attributes, which no guard path leads to."""

    __slots__ = ()

    def observe(self, machine: Machine) -> None:
        self.refuse(machine, "a use besides the threading.local whose attributes it holds")


class ThreadLocalValue(IdentityValue):
    """A threading.local, with the attributes of the calling thread."""

    __slots__ = ("_known", "_table")

    def __init__(self, live: threading.local, source: Source) -> None:
        super().__init__(live, source)
        self._table = _ThreadTable(dict, None, vars(live))
        self._known: dict[str, Value | None] = {}

    def get_attr(self, machine: Machine, name: str) -> Value:
        self._use(machine)
        if hasattr(threading.local, name):
            self.refuse(machine, f"attribute {name!r}")
        if name not in self._known:
            self._known[name] = self._read(machine, name)
        known = self._known[name]
        if known is None:
            message = f"'_thread._local' object has no attribute '{name}'"
            raise machine.error(AttributeError, message)
        return known

    def _use(self, machine: Machine) -> None:
        """Break if the program also uses its dictionary, which differs from thread to thread."""
        table = self._table.live
        if machine.known.memo.setdefault(id(table), (table, self._table))[1] is not self._table:
            self._table.observe(machine)

    def _read(self, machine: Machine, name: str) -> Value | None:
        read = functools.partial(getattr, self.live, name, _ABSENT)
        found = read()
        # The guard compares with `==`, which a user's class may define; and the dictionary differs
        # from thread to thread, so that no path leads to an object in it.
        if type(found) not in ATOMS:
            self.refuse(machine, f"attribute {name!r}, which is not a constant,")
        machine.guard(StateRead(read, found))
        return None if found is _ABSENT else machine.constant(found)

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        self._use(machine)
        if hasattr(threading.local, name):
            self.refuse(machine, f"setting attribute {name!r}")
        self._known[name] = value
        # object.__setattr__ raises TypeError for a threading.local.
        machine.effects.set_attr(self, name, value, setter=setattr)


@wraps(threading.local)
def _wrap_thread_local(machine: Machine, obj: threading.local, source: Source) -> Value:
    machine.guard(IdentityIs(source, obj))
    return ThreadLocalValue(obj, source)
