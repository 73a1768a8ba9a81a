"""Limits how many size tuples of a graph have CUDA graphs.

Each recording reserves the memory of its computation. In: the replayer that is being called. Out:
beyond MAX_SIZES, the least recently used replayers drop their recordings. They launch the same
kernels one by one until they are called often enough to record again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from weakref import ReferenceType, ref

__all__ = ["MAX_SIZES", "GraphPool"]

MAX_SIZES = 8


class _Records(Protocol):
    @property
    def recordings(self) -> Sequence[object]: ...

    def drop_unused(self) -> None: ...


class GraphPool:
    """Lists the replayers with recordings in order of their last use."""

    __slots__ = ("_used",)

    def __init__(self) -> None:
        self._used: dict[int, ReferenceType[_Records]] = {}

    def note(self, user: _Records) -> None:
        """Mark `user` as the most recently used."""
        if next(reversed(self._used), None) == id(user):
            return
        self._used.pop(id(user), None)
        self._used[id(user)] = ref(user)
        kept = [one for place in self._used.values() if (one := place()) is not None]
        for one in kept[:-MAX_SIZES]:
            one.drop_unused()
        self._used = {id(one): ref(one) for one in kept if one.recordings}
