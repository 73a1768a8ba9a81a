"""Functions that residual code calls to make the objects of a frame and to repeat its effects.

They import nothing of the tracer, so that an entry of another process runs without it: importing
`trace.values` takes 0.2 s.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CellType
from typing import Any, TypeVar

import torch
from torch.autograd.graph import increment_version
from torch.utils.hooks import RemovableHandle

__all__ = [
    "add_entries",
    "advance",
    "advanced",
    "bump_version",
    "changed",
    "dict_base",
    "is_empty",
    "refill",
    "register_hook",
    "replace_entries",
    "sequential_of",
    "take_hook_number",
    "walked",
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


# -- tensors and modules ---------------------------------------------------------------------------


def bump_version(tensor: torch.Tensor, count: int) -> None:
    """Count writes to a tensor that the graph has made to its parts."""
    for _ in range(count):
        increment_version(tensor)


def register_hook(
    name: str, tensor: torch.Tensor, hook: object = None, handle: RemovableHandle | None = None
) -> None:
    """Call the method of the tensor, and make `handle` the handle that it returns."""
    register: Callable[..., RemovableHandle | None] = getattr(tensor, name)
    made = register() if hook is None else register(hook)
    if handle is not None:
        vars(handle).update(vars(made))


def take_hook_number() -> int:
    """Return the id of a new handle, as RemovableHandle.__init__ takes it."""
    number = RemovableHandle.next_id
    RemovableHandle.next_id += 1
    return number


def sequential_of(names: Sequence[str], modules: Sequence[torch.nn.Module]) -> torch.nn.Sequential:
    """Create a Sequential of these modules under these keys."""
    return torch.nn.Sequential(OrderedDict(zip(names, modules, strict=True)))
