"""Reads containers as a whole: their length, a slice, or a sum, minimum or maximum.

Input: a container. Output: the length, item, slice or number; raises TypeError for an unsupported
type. Methods that a subclass overrides are not called, because guards run no user code. Agrees with
the native loads LENGTH_OF, ITEM_AT, JOINED, PART and REDUCED.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..symbols.symbolic_numbers import rounding_error

__all__ = [
    "SIZED",
    "item_at",
    "length_of",
    "of_numbers",
    "plain_sequence",
    "rounded_sum",
    "sum_compensation",
]

SIZED: tuple[type[Any], ...] = (tuple, list, dict, set, frozenset, deque)
"""Containers whose length can be read."""


def length_of(container: object) -> int:
    """Return len() of a container, bypassing a `__len__` of its class."""
    kind = next((base for base in SIZED if issubclass(type(container), base)), None)
    if kind is None or (kind is deque and type(container) is not deque):
        raise TypeError("not a container with a plain length")
    return int(kind.__len__(container))


def item_at(sequence: Any, index: object) -> object:
    """Return `sequence[index]` of an exact list or tuple, or of a dict with a str as key."""
    if type(sequence) is dict and type(index) is str:
        return sequence[index]
    if type(sequence) not in (list, tuple) or type(index) is not int:
        raise TypeError("not an index into a list or tuple")
    return sequence[index]


def plain_sequence(container: object) -> Any:
    """Return the container if it is an exact list or tuple."""
    if type(container) not in (list, tuple):
        raise TypeError("neither a list nor a tuple")
    return container


def of_numbers(container: object) -> object:
    """Return the container if it is a list or tuple of floats and ints."""
    if any(type(item) not in (float, int) for item in plain_sequence(container)):
        raise TypeError("contains something other than floats and ints")
    return container


def rounded_sum(numbers: Sequence[object]) -> float:
    """Return the sum of floats, rounded after each addition."""
    return _added_up(numbers)[0]


def sum_compensation(numbers: Sequence[object]) -> float:
    """Return the accumulated rounding error of these additions; 0 if it is not finite.

    CPython 3.12 and later add it to the result of sum() (compensated summation), if it is finite.
    """
    loss = _added_up(numbers)[1]
    return loss if math.isfinite(loss) else 0.0


def _added_up(numbers: Sequence[Any]) -> tuple[float, float]:
    if any(kind is not float for kind in set(map(type, numbers))):
        raise TypeError("contains something other than floats")
    rounded = loss = 0.0
    for x in numbers:
        rounded, loss = rounded + x, loss + rounding_error(rounded, x)
    return rounded, loss
