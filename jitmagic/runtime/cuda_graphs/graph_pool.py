"""Limits how many size tuples of a graph have CUDA graphs.

Each recording reserves the memory of its computation. In: the replayer that has made one. Out:
beyond MAX_SIZES, the least recently used replayers drop their recordings. They launch the same
kernels one by one until they are called often enough to record again.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakSet

from ...protocols import Protocol

__all__ = ["MAX_SIZES", "GraphPool", "Records"]

MAX_SIZES = 8


class Records(Protocol):
    """Is a replayer, or those of the parts of one plan."""

    @property
    def recordings(self) -> Sequence[object]: ...

    @property
    def last_use(self) -> int: ...

    def drop_unused(self) -> None: ...


class GraphPool:
    """Refers to the replayers with recordings."""

    __slots__ = ("_users",)

    def __init__(self) -> None:
        self._users: WeakSet[Records] = WeakSet()

    def note(self, user: Records) -> None:
        """Add `user`, which has made a recording that is replayed next, and drop the recordings of
        the least recently used ones.
        """
        self._users.add(user)
        others = [one for one in self._users if one.recordings and one is not user]
        others.sort(key=lambda one: one.last_use)
        for one in others[: max(0, len(others) + 1 - MAX_SIZES)]:
            one.drop_unused()
        self._users = WeakSet(one for one in self._users if one.recordings)
