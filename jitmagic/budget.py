"""Limits the time of a compile by a deadline per thread, which all stages check, and its cost.

`within(seconds)` sets the deadline (options.compile_seconds), and the first `check` after it raises
`OutOfTime`. That is not an `Exception`, so that no stage handles it like a refused operation: like
KeyboardInterrupt it unwinds to the start of the compile, so that no partial result is left. The
time is wall time, including C++ compilers that the thread waits for; builds in the background have
a deadline of their own.

`affordable(seconds)` limits what the later stages are expected to take: each recorded operation
spends its share, and the trace ends with `TooCostly` as soon as the sum is over the limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = [
    "OutOfTime", "TooCostly", "affordable", "check", "left", "spend", "stopped", "uncounted",
    "within",
]  # fmt: skip


class OutOfTime(BaseException):
    """Says that the compile took too long. `guards`: those that the trace recorded by then."""

    guards: tuple[Any, ...] = ()


class TooCostly(BaseException):
    """Says that the stages after the trace are expected to take longer than `affordable`."""


class _Thread(threading.local):
    deadline = float("inf")
    uncounted = 0.0
    affordable = float("inf")
    stopped: threading.Event | None = None


_here = _Thread()


@contextmanager
def within(seconds: float, until: threading.Event | None = None) -> Iterator[None]:
    """Limit the block to `seconds`, and to the time that is left to an enclosing block. Setting
    `until` ends it too, as if its time were over.
    """
    outer = _here.deadline, _here.stopped
    _here.deadline = min(_here.deadline, _now() + seconds)
    _here.stopped = until or _here.stopped
    try:
        yield
    finally:
        _here.deadline, _here.stopped = outer


def check() -> None:
    """Raise OutOfTime after the deadline."""
    if _now() > _here.deadline or (_here.stopped is not None and _here.stopped.is_set()):
        raise OutOfTime


@contextmanager
def affordable(seconds: float) -> Iterator[None]:
    """Limit what operations of the block may `spend`."""
    outer, _here.affordable = _here.affordable, seconds
    try:
        yield
    finally:
        _here.affordable = outer


def spend(seconds: float) -> None:
    """Count an operation that the later stages need so long for; also checks the deadline. Raises
    TooCostly and OutOfTime.
    """
    check()
    _here.affordable -= seconds
    if _here.affordable < 0:
        raise TooCostly


def left() -> float:
    """Return the seconds until the deadline, at least 0."""
    return max(0.0, _here.deadline - _now())


def stopped() -> threading.Event | None:
    """Return the event that ends the block early; None if none does."""
    return _here.stopped


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
