"""Detects dictionaries that are accessed both as a namespace and as an object.

Two Values then model one dictionary: one for `d["x"]`, one for globals of a module or attributes of
a `threading.local`. Every access to a live dictionary is recorded here. One that is accessed in
both ways and changed in either is a graph break, because neither model sees the other's writes. All
other dictionaries have one model (`entries_of_live` in `trace/values/containers/mappings.py`): no
guard path leads to the globals of the frame or to the dictionary of a `threading.local`.
"""

from __future__ import annotations

from enum import Enum, auto

from .breaks import GraphBreak, SharedNamespace

__all__ = ["Access", "AliasedDicts"]


class Access(Enum):
    """Names the way in which traced code reaches a dictionary."""

    OBJECT = auto()
    NAMESPACE = auto()


class AliasedDicts:
    """Records the live dictionaries of one trace by id; their Values keep them alive."""

    def __init__(self) -> None:
        self._changed: dict[int, dict[Access, bool]] = {}

    def use(self, dictionary: int, access: Access, *, changing: bool = False) -> None:
        """Record a use before it happens; `changing`: its model is about to change."""
        changed = self._changed.setdefault(dictionary, {})
        changed[access] = changing or changed.get(access, False)
        if len(changed) > 1 and any(changed.values()):
            raise GraphBreak(SharedNamespace.of())
