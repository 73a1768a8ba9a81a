"""What is read of a live container without its items: how many there are, whether there are any.

Comes in: a container and where it is. Goes out: a number, which is data of the graph once it was
seen to differ (a list that grows with every step of a training loop), and guards on its range.
"""

from __future__ import annotations

from typing import Any

from ....guards.contents import length_of
from ....guards.guard import InRange, ValueEquals
from ....guards.source import Length, Source
from ....symbols.interval import INT64
from ..base import Machine, Value
from ..objects.operators import binary

__all__ = ["guard_length", "is_filled", "live_length"]


def live_length(machine: Machine, live: Any, source: Source, added: int = 0) -> Value:
    """How many items it had when the frame began, and so many more."""
    count = machine.wrap(length_of(live), Length(source))
    return binary(machine, "+", count, machine.constant(added)) if added else count


def guard_length(machine: Machine, source: Source, least: int, most: int | None = None) -> None:
    """So many items or more, and no more than `most`."""
    machine.guard(InRange(Length(source), least, INT64.high if most is None else most))


def is_filled(machine: Machine, live: Any, source: Source) -> bool:
    """Whether it had any items when the frame began."""
    filled = length_of(live) > 0
    if filled:
        guard_length(machine, source, 1)
    else:
        machine.guard(ValueEquals(Length(source), 0))
    return filled
