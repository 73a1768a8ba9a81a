"""Restarts: after a graph break the frame is traced again, up to the instruction to break at.

A graph can end only between instructions of the root frame, and a break may be raised deep in
inlined calls. Rolling the interpreter back would mean undoing all of its state. Tracing again costs
time once per compile, and cannot leave an effect half recorded.
"""

from __future__ import annotations

from collections.abc import Container

from ..errors import UserLine
from ..guards.guard import Guard
from ..lazy_dataclass import dataclass, replace
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

TAKES_THE_COMPILED_BRANCH = "is_compiling"  # a mark of the graph: a library saw True


@dataclass(frozen=True, slots=True)
class Stop:
    """The point before which an attempt must end: the step-th instruction of the root frame."""

    step: int
    reason: BreakReason
    where: UserLine | None = None  # None: the line of that instruction
    because: tuple[Guard, ...] = ()  # facts under which another call breaks for the same reason


class Restart(Exception):
    """The attempt failed; the next one ends at `stop`."""

    def __init__(self, stop: Stop) -> None:
        super().__init__()
        self.stop = stop


class CompiledBranchRaises(Exception):
    """The program raised after a library took its `is_compiling()` branch.

    That may be a bug of the library (Switch Transformers makes its masks only in the eager branch),
    so the next attempt answers False and takes the eager branch.
    """


def check_branch(marks: Container[str]) -> None:
    """Raise CompiledBranchRaises if the program took such a branch; called when it has raised."""
    if TAKES_THE_COMPILED_BRANCH in marks:
        raise CompiledBranchRaises


class Reached(Exception):
    """Raised before the instruction at which the attempt has to stop."""


def release_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of an attempt.

    Their frames refer to the errors and to the user's objects, which would otherwise live until the
    garbage collector finds the cycle.
    """
    at: BaseException | None = error
    while at is not None:
        at.__traceback__ = None
        at = at.__context__


def earlier(new: Stop, old: Stop | None) -> Stop:
    """Return the stop of the next attempt, which is always before that of the last one.

    Attempts get shorter, so their number is limited.
    """
    if old is None:
        return new
    assert new.step < old.step, "a trace has to get shorter"
    because = (*new.because, *old.because)
    if old.reason.whole_frame:  # eager runs the whole frame, wherever an attempt ends
        return Stop(new.step, old.reason, old.where, because)
    return replace(new, because=because)
