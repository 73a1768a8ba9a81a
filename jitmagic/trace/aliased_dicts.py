"""Dictionaries that have two models: namespaces that the program also reaches as objects.

Comes in: every access to a live dictionary, as an object and as the names of a module or the
attributes of a thread. Goes out: a graph break as soon as one that is reached in both ways was
changed in either, because neither model sees what was written to the other. All other dictionaries
have one model, however they are reached (`trace/values/containers/mappings.py`, `entries_of_live`):
no path of the guards leads to the globals of the frame, nor to the dictionary of a
`threading.local`.
"""

from __future__ import annotations

from enum import Enum, auto

from .breaks import GraphBreak, SharedNamespace

__all__ = ["Access", "AliasedDicts"]


class Access(Enum):
    """How the traced code reaches a dictionary."""

    OBJECT = auto()
    NAMESPACE = auto()


class AliasedDicts:
    """The dictionaries of one trace, by id: they are all kept alive by what was wrapped."""

    def __init__(self) -> None:
        self._changed: dict[int, dict[Access, bool]] = {}

    def use(self, dictionary: int, access: Access, *, changing: bool = False) -> None:
        """Note a use, before it happens; `changing`: its model is about to change."""
        changed = self._changed.setdefault(dictionary, {})
        changed[access] = changing or changed.get(access, False)
        if len(changed) > 1 and any(changed.values()):
            raise GraphBreak(SharedNamespace.of())
