"""Limits the time of a compile by a deadline per thread, which all stages check.

`within(seconds)` sets the deadline (options.compile_seconds), and the first `check` after it raises
`OutOfTime`. That is not an `Exception`, so that no stage handles it like a refused operation: like
KeyboardInterrupt it unwinds to the start of the compile, so that no partial result is left. The
time is wall time, including C++ compilers that the thread waits for; builds in the background have
a deadline of their own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["OutOfTime", "check", "left", "uncounted", "within"]


class OutOfTime(BaseException):
    """Says that the compile took too long. `guards`: those that the trace recorded by then."""

    guards: tuple[Any, ...] = ()


class _Thread(threading.local):
    deadline = float("inf")
    uncounted = 0.0


_here = _Thread()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limit the block to `seconds`, and to the time that is left to an enclosing block."""
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
    """Return the seconds until the deadline, at least 0."""
    return max(0.0, _here.deadline - _now())


@contextmanager
def uncounted() -> Iterator[None]:
    """Extend the deadline by the time of the block, for code that cannot be stopped and whose
    result is used anyway, such as a user's own backend.
    """
    begun = time.monotonic()
    try:
        yield
    finally:
        _here.uncounted += time.monotonic() - begun


def _now() -> float:
    return time.monotonic() - _here.uncounted
