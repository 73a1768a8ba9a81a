"""Runs variants whose frame writes or computes while it holds a lock of the program.

Input: the lock, the variant's guards and its residual. Output: the callable that runs a call. The
guards were checked before the lock was acquired, when another thread may have held it, so they are
checked again under the lock (double-checked locking: `if not self.ready: with lock: if not
self.ready: ...`). If they fail then, the call runs as plain Python without the lock, which it
acquires itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING
from weakref import ref

from ..torch_types import AnyFunction
from .native import Entry, GuardProgram

if TYPE_CHECKING:
    from .handle import Handle

__all__ = ["RetryEager", "while_held"]


class _RestartAsEager(Exception):
    """The graph raised, and the frame must run as plain Python from its start."""


class RetryEager:
    """Runs the frame as plain Python from its start after the graph raised.

    If the frame holds a lock, this ends the residual first, since the plain frame acquires the lock
    itself. This object is a constant of the residual's code, which the garbage collector does not
    traverse, so it refers to the handle and the entry weakly. A running call keeps the handle
    alive.
    """

    def __init__(self, handle: Handle, *, is_locked: bool) -> None:
        self._handle, self.is_locked = ref(handle), is_locked
        self._entry: Callable[[], Entry | None] = lambda: None

    def set_entry(self, entry: Entry) -> None:
        """Set the entry whose mispredictions are counted."""
        self._entry = ref(entry)

    def __call__(self, *values: object) -> object:
        if self.is_locked:
            raise _RestartAsEager
        handle = self._handle()
        assert handle is not None
        result = handle.original(*values)
        entry = self._entry()
        if entry is not None:
            handle.ledger.tolerates_misprediction(entry)
        return result


def while_held(
    lock: AbstractContextManager[object],
    guards: GuardProgram,
    residual: AnyFunction,
    plain: AnyFunction,
) -> AnyFunction:
    """Return a callable that runs `residual` with the lock held.

    Another thread waits for the lock until all kernels of the frame have run: longer than in eager,
    but never for a second lock.
    """

    def run(*values: object) -> object:
        with suppress(_RestartAsEager), lock:
            if guards.check(values):
                return residual(*values)
        return plain(*values)

    return run
