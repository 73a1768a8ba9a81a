"""Variants that run while a lock of the program's is held: the frame writes or computes under it.

Comes in: the lock, the variant's guards, its residual. Goes out: what a call runs. The guards were
checked before the lock was acquired, when another thread may have had it; so they are checked again
once it is held (`if not self.ready: with lock: if not self.ready: ...` asks twice for that reason).
What they do not fit any more runs as plain Python, without the lock, which it acquires itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any
from weakref import ref

from .native import Entry, GuardProgram

if TYPE_CHECKING:
    from .handle import Handle

__all__ = ["Again", "while_held"]


class _StartsOver(Exception):
    """The graph has raised: the frame is plain Python's from its start."""


class Again:
    """What a residual calls when its graph has raised: the frame as plain Python, from its start.
    Of one that holds a lock it ends the residual first, since the plain frame acquires that itself.

    A constant of the residual's code, whose constants the garbage collector does not see: what
    leads back to the residual is held weakly. A call keeps the handle alive while it runs.
    """

    def __init__(self, handle: Handle, *, is_locked: bool) -> None:
        self._handle, self._is_locked = ref(handle), is_locked
        self._entry: Callable[[], Entry | None] = lambda: None

    def belongs_to(self, entry: Entry) -> None:
        """Whose residual it is, where surprises are counted."""
        self._entry = ref(entry)

    def __call__(self, *values: Any) -> Any:
        if self._is_locked:
            raise _StartsOver
        handle = self._handle()
        assert handle is not None
        result = handle.run_plainly(*values)
        entry = self._entry()
        if entry is not None:
            handle.ledger.foresees_less(entry)
        return result


def while_held(
    lock: AbstractContextManager[Any],
    guards: GuardProgram,
    residual: Callable[..., Any],
    plain: Callable[..., Any],
) -> Callable[..., Any]:
    """`residual`, called with the lock held. Who waits for it waits until all of the frame's
    kernels have run: longer than eager would hold it, and never for another lock."""

    def run(*values: Any) -> Any:
        with suppress(_StartsOver), lock:
            if guards.check(values):
                return residual(*values)
        return plain(*values)

    return run
