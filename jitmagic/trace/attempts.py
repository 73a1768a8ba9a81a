"""attempts: one frame traced with as many varying numbers as data as it can do with.

Comes in: a way to trace the frame, and the sources of floats and ints that differ from what it was
compiled for. Goes out: the Trace to go on with. Invariant: the user's own code is not cut in two
for the sake of numbers that vary; those used in a way that only a constant allows are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..guards.source import Source
from .result import Break, Trace

__all__ = ["trace_with_numbers"]

_MOST_NUMBERS = 8  # that are tried one after the other where not all of them can be data


Attempt = Callable[[frozenset[Source] | None, bool], Trace]
"""attempt(numbers that are data, whether their bounds are wide)"""


def trace_with_numbers(attempt: Attempt, varying: frozenset[Source] | None) -> Trace:
    """Bounds of the numbers are wide where the frame can do with that."""
    if not varying:
        return attempt(varying, False)

    def tried(numbers: frozenset[Source]) -> Iterator[Trace]:
        for wide in (True, False):
            yield attempt(numbers, wide)

    found = []
    for traced in tried(varying):
        if not isinstance(traced.exit, Break):
            return traced
        found.append(traced)
    best = plain = attempt(None, False)
    if (good := _first_as_good(found, plain)) is not None:
        return good
    kept: frozenset[Source] = frozenset()
    for number in sorted(varying, key=repr) if 1 < len(varying) <= _MOST_NUMBERS else ():
        if (good := _first_as_good(tried(kept | {number}), plain)) is not None:
            kept, best = kept | {number}, good
    return best


def _first_as_good(traces: Iterable[Trace], plain: Trace) -> Trace | None:
    return next((traced for traced in traces if _is_as_good(traced, plain)), None)


def _is_as_good(traced: Trace, plain: Trace) -> bool:
    """Whether a trace with numbers that vary goes as far as the one without."""
    ours, theirs = traced.exit, plain.exit
    if not isinstance(ours, Break):
        return True
    if not isinstance(theirs, Break) or theirs.where != ours.where:
        return False
    return theirs.reason.kind == ours.reason.kind  # else the number itself is what breaks there
