"""Knowledge: what a machine has found out about the objects of the process.

Comes in: objects as they are looked at, and facts about them. Goes out: one value for each object,
and the guards. What runs later than the frame is followed with a knowledge of its own
(trace/values/autograd/backward_facts.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..guards.guard import IdentityIs, SameObject, TypeIs
from ..guards.source import Source
from .state import GuardBook
from .values.base import Lazy, Machine, Value

__all__ = ["Knowledge", "reached_again"]


@dataclass(slots=True, eq=False)
class Knowledge:
    """By id. The objects are held with their values: an id is unique only among living ones."""

    book: GuardBook = field(default_factory=GuardBook)
    memo: dict[int, tuple[object, Value]] = field(default_factory=dict)
    classes: dict[type, Any] = field(default_factory=dict)  # ClassValues
    globals: dict[int, Any] = field(default_factory=dict)  # GlobalsValues
    keys: dict[int, Value] = field(default_factory=dict)  # what is a key by its identity
    found: list[tuple[Lazy, Source]] = field(default_factory=list)  # that were there

    def unread(self) -> list[TypeIs]:
        """Guards of what was found and not looked at: that it is there may be all that the program
        asked.
        """
        unread = (pair for pair in self.found if pair[0].real is None)
        return [TypeIs(source, type(found.obj)) for found, source in unread]

    def object_of(self, value: Value) -> Any:
        """The object that a value stands for; None: it is not known by one."""
        return next((obj for obj, known in self.memo.values() if known is value), None)

    def has_written(self, other: Knowledge, mutated: dict[int, Any]) -> bool:
        """Return whether what `other` knows is among the values that were written to, by
        their ids.
        """
        objects = (at for at, (_, value) in self.memo.items() if id(value) in mutated)
        names = (at for at, names in self.globals.items() if names.written)
        return any(at in other.memo for at in objects) or any(at in other.globals for at in names)


def reached_again(machine: Machine, obj: object, value: Value, source: Source) -> Value:
    """One object, two paths: they have to go on leading to one object. Functions and classes
    are the same in every call; tensors and lists are others each time, so that only that the
    paths meet can be guarded.
    """
    if value.by_identity:
        machine.guard(IdentityIs(source, obj))
    elif value.source is not None and value.source != source:
        machine.guard(SameObject(value.source, source))
    return value
