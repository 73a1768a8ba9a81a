"""Knowledge: maps live objects to their Values, and records what was guarded about them.

Each object has one Value, however it is reached. Code that runs after the frame, such as a
backward, is traced with a Knowledge of its own (trace/values/autograd/backward_facts.py).
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
    """Values by object id, and the objects, because an id is unique only among living ones."""

    book: GuardBook = field(default_factory=GuardBook)
    memo: dict[int, tuple[object, Value]] = field(default_factory=dict)
    classes: dict[type, Any] = field(default_factory=dict)  # ClassValues
    globals: dict[int, Any] = field(default_factory=dict)  # GlobalsValues
    keys: dict[int, Value] = field(default_factory=dict)  # keys that hash by identity
    found: list[tuple[Lazy, Source]] = field(default_factory=list)  # that existed

    def unread(self) -> list[TypeIs]:
        """Return guards for objects that were found but never read: their existence may matter."""
        unread = (pair for pair in self.found if pair[0].real is None)
        return [TypeIs(source, type(found.obj)) for found, source in unread]

    def object_of(self, value: Value) -> Any:
        """Return the object that a value represents; None if it is not known by one."""
        return next((obj for obj, known in self.memo.values() if known is value), None)

    def has_written(self, other: Knowledge, mutated: dict[int, Any]) -> bool:
        """Return whether a value that `other` knows was written to, by the ids in `mutated`."""
        objects = (at for at, (_, value) in self.memo.items() if id(value) in mutated)
        names = (at for at, names in self.globals.items() if names.written)
        return any(at in other.memo for at in objects) or any(at in other.globals for at in names)


def reached_again(machine: Machine, obj: object, value: Value, source: Source) -> Value:
    """Guard that two paths which led to one object keep leading to one object.

    Functions and classes are the same objects in every call. Tensors and lists are new in each
    call, so only the equality of the two paths can be guarded.
    """
    if value.by_identity:
        machine.guard(IdentityIs(source, obj))
    elif value.source is not None and value.source != source:
        machine.guard(SameObject(value.source, source))
    return value
