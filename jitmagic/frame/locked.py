"""Variants that run while a lock of the program's is held: the frame writes or computes under it.

Comes in: the lock, the variant's guards, its residual. Goes out: what a call runs. The guards were
checked before the lock was acquired, when another thread may have had it; so they are checked again
once it is held (`if not self.ready: with lock: if not self.ready: ...` asks twice for that reason).
What they do not fit any more runs as plain Python, without the lock, which it acquires itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from .native import GuardProgram

__all__ = ["start_over", "while_held"]


class _StartsOver(Exception):
    """The graph has raised: the frame is plain Python's from its start."""


def start_over(*values: Any) -> Any:
    """What such a residual calls in place of the plain frame, which acquires the lock itself."""
    raise _StartsOver


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
