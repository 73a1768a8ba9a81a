"""Indexes nests by the memory that they read, for horizontal fusion.

In: groups in program order. Out: the earlier groups that could share a nest with a given one. The
index leaves out only pairs that would be refused: for their extents, or because no two loads have
the same index. Without it n nests that each read a row of one buffer are n² pairs, each of which
costs a rebuilt nest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..loops.expr import AxisVar, Expr, Integer, linear
from ..symbols.size import Dimension, Size
from .groups import Group

__all__ = ["OpenNests"]

_AccessKey = tuple[bool, tuple[object, ...], str, tuple[int, ...]]


class OpenNests:
    """Holds the nests that can still be joined, as bit masks of their keys. `buffers`: the most a
    nest may have.
    """

    def __init__(self, buffers: int) -> None:
        self._buffers = buffers
        self._reading: dict[_AccessKey, int] = {}
        # Item i: nests that have room for more than i further buffers.
        self._with_room = [0] * buffers
        self._readers: Counter[str] = Counter()  # buffer -> number of its readers among the nests

    def has_room(self, group: Group) -> bool:
        """Return whether another nest may join, which adds at least the buffer that it writes."""
        return self._room(group) > 0

    def _room(self, group: Group) -> int:
        return self._buffers - len(_read(group)) - len(group.stores)

    def add(self, key: int, group: Group) -> None:
        """Add a nest with room to the index."""
        for access in _access_keys(group):
            self._reading[access] = self._reading.get(access, 0) | 1 << key
        self._readers.update(_read(group))
        for room in range(self._room(group)):
            self._with_room[room] |= 1 << key

    def remove(self, key: int, group: Group) -> None:
        """Remove a nest, which must be unchanged since `add`."""
        for access in _access_keys(group):
            self._reading[access] &= ~(1 << key)
        self._readers.subtract(_read(group))
        for room in range(self._room(group)):
            self._with_room[room] &= ~(1 << key)

    def candidates(self, group: Group) -> int:
        """Return the mask of nests that may read the same memory, are independent of `group`, and
        have room for its buffers.
        """
        found = 0
        for access in _access_keys(group):
            found |= self._reading.get(access, 0)
        added = len(group.stores) + sum(not self._readers[name] for name in _read(group))
        if added > self._buffers:
            return 0
        return found & self._with_room[added - 1] & ~(group.before | group.after)


def _read(group: Group) -> set[str]:
    return {load.buffer for load in group.shape.loads}


def _access_keys(group: Group) -> Iterator[_AccessKey]:
    """Yield facts about each load that renaming the outer axes does not change."""
    shape = group.shape
    extents = tuple(_extent(axis.extent) for axis in shape.outer)
    for load in shape.loads:
        offsets = tuple(_offset(part) for part in load.index)
        yield shape.rigid, extents, load.buffer, offsets


def _extent(extent: Dimension) -> object:
    """Return a key that is equal exactly where `is_same` holds."""
    return extent.expr if isinstance(extent, Size) else extent


def _offset(part: Expr) -> int:
    if isinstance(part, AxisVar):
        return 0
    return part.value if isinstance(part, Integer) else linear(part)[0]
