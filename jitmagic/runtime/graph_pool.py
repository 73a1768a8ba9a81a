"""Shelf: how many vectors of sizes of a graph have CUDA graphs.

A recording keeps memory for all that it computes. Comes in: who replays one now. Goes out: of those
used longest ago, beyond MOST_SIZES, the recordings are given up; they run plainly, with the same
kernels, until they are called often enough again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol
from weakref import ReferenceType, ref

__all__ = ["MOST_SIZES", "Shelf"]

MOST_SIZES = 8


class _Records(Protocol):
    @property
    def recordings(self) -> Sequence[Any]: ...

    def forget(self) -> None: ...


class Shelf:
    """Those with recordings, the one used last at the end."""

    __slots__ = ("_used",)

    def __init__(self) -> None:
        self._used: dict[int, ReferenceType[_Records]] = {}

    def note(self, user: _Records) -> None:
        """It is used now."""
        if next(reversed(self._used), None) == id(user):
            return
        self._used.pop(id(user), None)
        self._used[id(user)] = ref(user)
        kept = [one for place in self._used.values() if (one := place()) is not None]
        for one in kept[:-MOST_SIZES]:
            one.forget()
        self._used = {id(one): ref(one) for one in kept if one.recordings}
