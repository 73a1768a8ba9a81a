"""Dictionaries with two faces: objects of their own, and what holds the attributes of an object or
the names of a module (`vars(x)`, `x.__dict__`, `globals()`, `module._buffers`).

Comes in: every use of a live dictionary as the one or the other.  Goes out: a break as soon as one
that is used as both was changed by either: each face has a model of its own, and one does not see
what the other was told.
"""

from __future__ import annotations

from enum import Enum, auto

from .breaks import GraphBreak, SharedNamespace

__all__ = ["Face", "Tables"]


class Face(Enum):
    """How the traced code reaches a dictionary."""

    OBJECT = auto()
    NAMESPACE = auto()


class Tables:
    """The dictionaries of one trace, by id: they are all kept alive by what was wrapped."""

    def __init__(self) -> None:
        self._changed: dict[int, dict[Face, bool]] = {}

    def use(self, table: int, face: Face, *, changing: bool = False) -> None:
        """Note a use, before it happens; `changing`: the model of this face is about to change."""
        faces = self._changed.setdefault(table, {})
        faces[face] = changing or faces.get(face, False)
        if len(faces) > 1 and any(faces.values()):
            raise GraphBreak(SharedNamespace.of())
