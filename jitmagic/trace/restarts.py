"""Restarts: how one attempt at a trace tells the next where to end.

Comes in: the reason why an attempt cannot go on, and the step of the root frame that led there.
Goes out: the Stop before which the next attempt ends. A break found deep in inlined calls would
need the interpreter's whole state undone; tracing again costs time once per compile, and cannot
leave half of an effect behind.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

from ..errors import UserLine
from ..guards.guard import Guard
from .result import BreakReason

__all__ = [
    "TAKES_THE_COMPILED_BRANCH",
    "CompiledBranchRaises",
    "Reached",
    "Restart",
    "Stop",
    "check_branch",
    "earlier",
    "release_tracebacks",
]

TAKES_THE_COMPILED_BRANCH = "is_compiling"  # a note on the graph: a library was told that it is


@dataclass(frozen=True, slots=True)
class Stop:
    """Where an attempt has to end: before the step-th instruction of the root frame."""

    step: int
    reason: BreakReason
    where: UserLine | None = None  # None: the line of that instruction
    because: tuple[Guard, ...] = ()  # what has to hold for a call to meet the same reason


class Restart(Exception):
    """The attempt failed; the next one ends at `stop`."""

    def __init__(self, stop: Stop) -> None:
        super().__init__()
        self.stop = stop


class CompiledBranchRaises(Exception):
    """The program raises where a library took its branch for compilers, which may be its own
    mistake (masks that Switch Transformers makes in eager alone): the next attempt takes eager's.
    """


def check_branch(marks: Container[str]) -> None:
    """Of a program that raises."""
    if TAKES_THE_COMPILED_BRANCH in marks:
        raise CompiledBranchRaises


class Reached(Exception):
    """The instruction the attempt has to stop before."""


def release_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of an attempt: their frames hold the errors, and the user's objects,
    which would otherwise live until the garbage collector finds the cycle.
    """
    at: BaseException | None = error
    while at is not None:
        at.__traceback__ = None
        at = at.__context__


def earlier(new: Stop, old: Stop | None) -> Stop:
    """Each attempt has to end before the one that failed, so there are only so many."""
    if old is None:
        return new
    assert new.step < old.step, "a trace has to get shorter"
    because = (*new.because, *old.because)
    if old.reason.whole_frame:  # left to eager as a whole, wherever an attempt ends
        return Stop(new.step, old.reason, old.where, because)
    return replace(new, because=because)
