"""Knowledge: maps live objects to their Values, and holds the guards on them.

Each object has one Value, whichever path leads to it. Code that runs after the frame, such as a
backward, is traced with a Knowledge of its own (trace/values/autograd/backward_facts.py).
"""

from __future__ import annotations

from typing import Any

from ..guards.guard import IdentityIs, SameObject, TypeIs
from ..guards.source import Source
from ..lazy_dataclass import dataclass, field
from .state import GuardBook
from .values.base import Lazy, Machine, Value

__all__ = ["Knowledge", "reached_again"]


@dataclass(slots=True, eq=False)
class Knowledge:
    """Values by object id; the objects are kept alive, because CPython reuses ids of dead ones."""

    book: GuardBook = field(default_factory=GuardBook)
    memo: dict[int, tuple[object, Value]] = field(default_factory=dict)
    classes: dict[type, Any] = field(default_factory=dict)  # ClassValues
    keys: dict[int, Value] = field(default_factory=dict)  # dict keys that hash by identity
    found: list[tuple[Lazy, Source]] = field(default_factory=list)  # existed when it was looked up

    def unread(self) -> list[TypeIs]:
        """Return guards for objects that were looked up and never read: that they exist matters."""
        unread = (pair for pair in self.found if pair[0].real is None)
        return [TypeIs(source, type(found.obj)) for found, source in unread]

    def object_of(self, value: Value) -> object:
        """Return the object that a value represents; None if it is not known by one."""
        return next((obj for obj, known in self.memo.values() if known is value), None)

    def has_written(self, other: Knowledge, mutated: dict[int, Any]) -> bool:
        """Return whether a value that `other` knows was written to, by the ids in `mutated`."""
        written = (at for at, (_, value) in self.memo.items() if id(value) in mutated)
        return any(at in other.memo for at in written)


def reached_again(machine: Machine, obj: object, value: Value, source: Source) -> Value:
    """Guard that a second path leads to the object of `value`, as it does now.

    Functions and classes are the same objects in every call, so the identity is guarded. Tensors
    and lists are new in each call, so the guard compares the objects at the two paths (SameObject).
    """
    if value.by_identity:
        machine.guard(IdentityIs(source, obj))
    elif value.source is not None and value.source != source:
        machine.guard(SameObject(value.source, source))
    return value
