"""Aliased `__dict__`s: dictionaries that the program reaches as objects of their own and as what
holds the attributes of an object or the names of a module (`vars(x)`, `x.__dict__`, `globals()`,
`module._buffers`).

Comes in: every access to a live dictionary, in the one way or the other. Goes out: a graph break as
soon as one that is reached in both ways was changed in either: each way has a model of its own,
which does not see what was written to the other.
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
