"""Reads the state of a built-in iterator without advancing it.

Input: a live iterator. Output: a tuple of the container that it iterates over and its position, or
None if they cannot be read. extensions/frame/iterator_parts.cpp does the same in native guards; no
user code runs.

    list, tuple       (container, index of the next item)     reversed: the same, going down
    range             (start, stop, step, steps taken)
    dict, views, set  (dictionary or set, number of entries left)
    enumerate         (inner iterator, next number)
    zip               (whether it is strict, *inner iterators)
    map, filter       (function, *inner iterators); None for map(strict=True) of 3.14
"""

from __future__ import annotations

import gc
from typing import Any

__all__ = ["DICT_ITERATORS", "SET_ITERATOR", "iterator_parts"]

# Types of iterators over dictionaries, and the view that each belongs to.
DICT_ITERATORS: dict[type, str] = {
    type(iter({})): "keys",
    type(iter({}.values())): "values",
    type(iter({}.items())): "items",
}
SET_ITERATOR: type = type(iter(set()))
_TABLES = (dict, set, frozenset)
_SEQUENCE: tuple[type, ...] = (type(iter([])), type(iter(())), type(reversed([])), reversed)
_RANGE = type(iter(range(0)))
_WRAPPERS = (enumerate, map, filter)


def iterator_parts(iterator: Any) -> tuple[object, ...] | None:
    """Return the parts listed in the module's docstring, or None."""
    kind = type(iterator)
    if kind in DICT_ITERATORS or kind is SET_ITERATOR:
        return _entries_left(iterator)
    if kind not in (*_SEQUENCE, _RANGE, zip, *_WRAPPERS):
        return None
    reduced = iterator.__reduce__()
    if kind in _WRAPPERS:
        return tuple(reduced[1]) if len(reduced) == 2 else None
    if kind is zip:
        return (len(reduced) > 2, *reduced[1])
    (container,) = reduced[1]
    state = reduced[2] if len(reduced) > 2 else None
    if kind is _RANGE:
        return (container.start, container.stop, container.step, state or 0)
    if state is None or type(container) not in (list, tuple):
        return None  # exhausted, or over an object of a user's class
    return container, state


def _entries_left(iterator: object) -> tuple[object, ...] | None:
    """Return the container and the number of entries left, which CPython counts down to 0."""
    owner = next((one for one in gc.get_referents(iterator) if type(one) in _TABLES), None)
    if owner is None:
        return None
    try:
        return owner, len(iterator.__reduce__()[1][0])
    except RuntimeError:  # the container has changed its size
        return None
