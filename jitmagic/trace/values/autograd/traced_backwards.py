"""Lists the backwards that a frame's trace contains, and the objects that calls save for them.

Every trace looks here; `backward_facts`, which fills the lists, is imported by those with a
backward.
"""

from __future__ import annotations

from typing import Any

from ....guards.source import Source
from ...graph_notes import GraphNotes

__all__ = ["SavedObjects", "TracedBackwards", "has_outdated_facts", "release_facts"]


class SavedObjects(dict[Source, int]):
    """Maps the Source of each object that a call saves for backwards to its index."""

    def index(self, source: Source) -> int:
        return self.setdefault(source, len(self))


class TracedBackwards(list[Any]):
    """The BackwardFacts of all autograd functions of one frame."""


def release_facts(notes: GraphNotes) -> None:
    """Drop the references now: the facts are in cycles, which only the gc would free later."""
    for facts in notes.root.of(TracedBackwards):
        vars(facts).clear()


def has_outdated_facts(notes: GraphNotes) -> bool:
    """Return whether the frame itself has changed state that a backward reads."""
    return any(facts.is_stale for facts in notes.root.of(TracedBackwards))
