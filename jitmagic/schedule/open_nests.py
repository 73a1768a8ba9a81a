"""An index of nests by the places that they read, for horizontal fusion.

In: groups in program order. Out: the earlier ones that could share a nest with a group. Each pair
that the index leaves out would be refused for its extents or because no load of the two has the
same index. Without it n nests that each read a row of one buffer are n² pairs, each of which costs
a rebuilt nest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..loops.expr import AxisVar, Expr, Integer, linear
from ..symbols.size import Dimension, Size
from .groups import Group

__all__ = ["OpenNests"]

_Place = tuple[bool, tuple[object, ...], str, tuple[int, ...]]


class OpenNests:
    """Nests that may still take in others, as bit masks of their keys. `buffers`: how many a nest
    may have.
    """

    def __init__(self, buffers: int) -> None:
        self._buffers = buffers
        self._reading: dict[_Place, int] = {}
        self._with_room = [0] * buffers  # place i: those that may have more than i further buffers
        self._readers: Counter[str] = Counter()  # of each buffer, among the nests

    def has_room(self, group: Group) -> bool:
        """Whether any other nest may join: it brings one buffer at least, which it writes."""
        return self._room(group) > 0

    def _room(self, group: Group) -> int:
        return self._buffers - len(_read(group)) - len(group.stores)

    def add(self, key: int, group: Group) -> None:
        """Put a nest with room into the index."""
        for place in _places(group):
            self._reading[place] = self._reading.get(place, 0) | 1 << key
        self._readers.update(_read(group))
        for room in range(self._room(group)):
            self._with_room[room] |= 1 << key

    def remove(self, key: int, group: Group) -> None:
        """Take a nest out; it has not changed since it was put in."""
        for place in _places(group):
            self._reading[place] &= ~(1 << key)
        self._readers.subtract(_read(group))
        for room in range(self._room(group)):
            self._with_room[room] &= ~(1 << key)

    def beside(self, group: Group) -> int:
        """Return the mask of those that read memory where `group` may read it, that need not run
        before or after it, and that have room for what it writes and for what it alone reads.
        """
        found = 0
        for place in _places(group):
            found |= self._reading.get(place, 0)
        added = len(group.stores) + sum(not self._readers[name] for name in _read(group))
        if added > self._buffers:
            return 0
        return found & self._with_room[added - 1] & ~(group.before | group.after)


def _read(group: Group) -> set[str]:
    return {load.buffer for load in group.shape.loads}


def _places(group: Group) -> Iterator[_Place]:
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
