"""Functions that residual code calls to make the objects of a frame and to repeat its effects.

They import nothing of the tracer, so that an entry of another process runs without it: importing
`trace.values` takes 0.2 s. Those that need torch are in residual_torch_calls.py.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from types import CellType
from typing import Any, TypeVar

__all__ = [
    "add_entries",
    "advance",
    "advanced",
    "applied_context",
    "changed",
    "dict_base",
    "entered_block",
    "is_empty",
    "joined",
    "refill",
    "replace_entries",
    "walked",
    "warn_at",
]

_T = TypeVar("_T")


# -- containers ------------------------------------------------------------------------------------


def dict_base(kind: type) -> type[dict[object, object]]:
    """Return the built-in class of a dictionary class."""
    return OrderedDict if issubclass(kind, OrderedDict) else dict


def add_entries(target: dict[object, object], new: dict[object, object]) -> None:
    """Store entries with the base class's `__setitem__`, not an overriding one."""
    # dict.__setitem__ does not update the linked list by which an OrderedDict iterates.
    store = dict_base(type(target)).__setitem__
    for key, value in new.items():
        store(target, key, value)


def replace_entries(target: dict[object, object], new: dict[object, object]) -> None:
    """Give a dictionary new contents, without calling methods that the user's class overrides.

    Keys that stay keep their positions and others are appended, as in the user's code: an iterator
    over `target` that is advanced afterwards then sees what it would in eager.
    """
    base = dict_base(type(target))
    # By identity, since to compare keys would run the user's `__eq__`.
    places = {id(key): place for place, key in enumerate(base.__iter__(target))}
    stay: set[int] = set()
    last = -1
    for key in new:
        place = places.get(id(key), -1)
        if place <= last:
            break
        stay.add(id(key))
        last = place
    for key in list(base.__iter__(target)):
        if id(key) not in stay:
            base.__delitem__(target, key)
    for key, value in new.items():
        base.__setitem__(target, key, value)


def refill(target: deque[object], items: list[object]) -> None:
    """Replace the contents of a deque."""
    # The object itself has to remain, since others may refer to it; its `maxlen` is read-only.
    target.clear()
    target.extend(items)


def changed(target: set[object], *calls: tuple[Any, ...]) -> set[object]:
    """Call methods of a set and return it."""
    for method, *operands in calls:
        method(target, *operands)
    return target


def is_empty(cell: CellType) -> bool:
    """Return whether a closure cell has no contents."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


# -- iterators -------------------------------------------------------------------------------------


def advance(iterator: Iterator[object], count: int) -> None:
    """Take up to `count` items from an iterator."""
    for _ in range(count):
        next(iterator, None)


def advanced(items: Iterable[_T], count: int) -> Iterator[_T]:
    """Return an iterator over the items, advanced by `count`."""
    iterator = iter(items)
    for _ in range(count):
        next(iterator)
    return iterator


def walked(table: Any, what: str, count: int) -> Iterator[object]:
    """Return an iterator over `table` or a view of it, advanced by `count` items."""
    return advanced(getattr(table, what)() if what else table, count)


# -- contexts, texts and warnings ------------------------------------------------------------------


def applied_context(kind: type, mode: bool, before: bool) -> object:
    """Build a context without its constructor, which might set the mode again."""
    made: Any = object.__new__(kind)
    made.mode, made.prev = mode, before
    return made


def entered_block(kind: Callable[..., Any], /, **arguments: object) -> Callable[..., object]:
    """Create and enter a context; return its `__exit__`."""
    block = kind(**arguments)
    block.__enter__()
    leave: Callable[..., object] = block.__exit__
    return leave


def joined(*pieces: str) -> str:
    """Return the pieces of a text in one."""
    return "".join(pieces)


def warn_at(
    message: str, category: type[Warning], filename: str, lineno: int, names: dict[str, Any]
) -> None:
    """Do what `warnings.warn` does in the frame with these globals."""
    registry = names.setdefault("__warningregistry__", {})
    module = names.get("__name__") or "<string>"
    warnings.warn_explicit(message, category, filename, lineno, module, registry)
