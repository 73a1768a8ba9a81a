"""What is read of a container as a whole: its length, a part of it, what its numbers come to.

Comes in: a container, past any methods that its class has. Goes out: the length, item, part or
number, or TypeError where the container is of another kind. Agrees with the native loads LENGTH_OF,
ITEM_AT, JOINED, PART and REDUCED.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..symbols.scalar import lost
from .source import Joined, Length, Part, Reduced

__all__ = [
    "SIZED",
    "correction_of",
    "item_at",
    "length_of",
    "read_contents",
    "uncorrected",
]

SIZED: tuple[type[Any], ...] = (tuple, list, dict, set, frozenset, deque)
"""Containers whose length can be read."""


def length_of(container: Any) -> int:
    """len(), past a `__len__` of the class's own."""
    kind = next((base for base in SIZED if issubclass(type(container), base)), None)
    if kind is None or (kind is deque and type(container) is not deque):
        raise TypeError("no container that tells its length")
    return int(kind.__len__(container))


def item_at(sequence: Any, index: Any) -> Any:
    """`sequence[index]` of an exact list or tuple, or of a dict and a str."""
    if type(sequence) is dict and type(index) is str:
        return sequence[index]
    if type(sequence) not in (list, tuple) or type(index) is not int:
        raise TypeError("no index of a list or tuple")
    return sequence[index]


def read_contents(source: Length | Part | Reduced | Joined, container: Any) -> Any:
    """What the source reads of its base."""
    if isinstance(source, Joined):
        if type(container) is not str:
            raise TypeError("no str")
        return f"{source.before}{container}{source.after}"
    if isinstance(source, Length):
        return length_of(container)
    if type(container) not in (list, tuple):
        raise TypeError("neither a list nor a tuple")
    if isinstance(source, Part):
        return container[source.start : source.stop]
    if any(type(item) not in (float, int) for item in container):
        raise TypeError("not floats and ints alone")
    return source.function(container)


def uncorrected(numbers: Sequence[Any]) -> float:
    """The sum of floats, rounded at each addition."""
    return _added_up(numbers)[0]


def correction_of(numbers: Sequence[Any]) -> float:
    """What these additions lose, which sum() adds at its end on CPython 3.12 and later; 0 if that
    is not finite, and so not added.
    """
    loss = _added_up(numbers)[1]
    return loss if math.isfinite(loss) else 0.0


def _added_up(numbers: Sequence[Any]) -> tuple[float, float]:
    if any(kind is not float for kind in set(map(type, numbers))):
        raise TypeError("not floats alone")
    rounded = loss = 0.0
    for x in numbers:
        rounded, loss = rounded + x, loss + lost(rounded, x)
    return rounded, loss
