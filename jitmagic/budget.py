"""Limits the time of a compile: a deadline of the thread, which all stages check.

Comes in: seconds (options.compile_seconds). Goes out: `OutOfTime`, raised by the `check` that comes
after the deadline. It is no `Exception`, so that no stage takes it for a refused operation: like an
interrupt it unwinds to where the compile began, so that no partial result is left. The time is what
the user waits, including C++ compilers that the thread waits for; builds in the background have a
deadline of their own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["OutOfTime", "check", "left", "uncounted", "within"]


class OutOfTime(BaseException):
    """Says that the compile took too long. `guards`: the facts of the call read so far."""

    guards: tuple[Any, ...] = ()


class _Thread(threading.local):
    deadline = float("inf")
    uncounted = 0.0


_here = _Thread()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limit the block to so many seconds, and to those left to the block around it."""
    outer = _here.deadline
    _here.deadline = min(outer, _now() + seconds)
    try:
        yield
    finally:
        _here.deadline = outer


def check() -> None:
    """Raise OutOfTime after the deadline."""
    if _now() > _here.deadline:
        raise OutOfTime


def left() -> float:
    """Seconds until the deadline, at least 0."""
    return max(0.0, _here.deadline - _now())


@contextmanager
def uncounted() -> Iterator[None]:
    """Leave the time of the block out of account: it cannot be stopped, and what it gives is used,
    as a user's own backend is.
    """
    begun = time.monotonic()
    try:
        yield
    finally:
        _here.uncounted += time.monotonic() - begun


def _now() -> float:
    return time.monotonic() - _here.uncounted
