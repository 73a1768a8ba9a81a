"""Functions that residual code calls to make the objects of a frame and to repeat its effects.

They import nothing of the tracer, so that an entry of another process runs without it: importing
`trace.values` takes 0.2 s.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CellType
from typing import Any, TypeVar

import torch
from torch.autograd.graph import increment_version
from torch.utils.hooks import RemovableHandle

from ..compat.modes import InferenceMode
from ..graph.autocast_mode import DEVICES, Autocast
from ..guards.guard import AutocastDetails
from ..guards.state import read_autocast_details

__all__ = [
    "add_entries",
    "advance",
    "advanced",
    "applied_context",
    "as_inference_tensor",
    "bare_module",
    "bring_thread_to",
    "bump_version",
    "changed",
    "dict_base",
    "entered_block",
    "is_empty",
    "joined",
    "number_scalar",
    "refill",
    "register_hook",
    "replace_entries",
    "require_grad",
    "sequential_of",
    "take_hook_number",
    "walked",
    "warn_at",
    "with_class",
]

_T = TypeVar("_T")
_initialise_module: Any = torch.nn.Module.__dict__["__init__"]


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


def bare_module(cls: type[torch.nn.Module]) -> torch.nn.Module:
    """Create a module with torch.nn.Module's `__init__` alone."""
    module = object.__new__(cls)
    _initialise_module(module)
    return module


def require_grad(tensor: torch.Tensor) -> None:
    """Make a tensor require grad."""
    tensor.requires_grad_()


def with_class(tensor: torch.Tensor, kind: type) -> torch.Tensor:
    """Return the tensor as an instance of a subclass."""
    try:
        tensor.__class__ = kind
    except TypeError:  # a class with slots has another layout in memory
        return tensor.as_subclass(kind)  # type: ignore[type-var]
    return tensor


def as_inference_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return an inference tensor with the same memory."""
    # torch cannot convert a tensor, but a new one, created in the mode, can share its storage.
    with InferenceMode(True):  # type: ignore[attr-defined]
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(tensor)  # type: ignore[call-overload, no-any-return]


def number_scalar(tensor: torch.Tensor) -> Any:
    """Return the scalar of numpy with the value of a 0-dim tensor."""
    return tensor.numpy()[()]


# -- contexts, texts and warnings ------------------------------------------------------------------


def applied_context(kind: type, mode: bool, before: bool) -> object:
    """Build a context without its constructor, which might set the mode again."""
    made: Any = object.__new__(kind)
    made.mode, made.prev = mode, before
    return made


def bring_thread_to(mode: Autocast, rest: AutocastDetails) -> None:
    """Set the thread's state to the one that the traced code has left."""
    for device in DEVICES:
        torch.set_autocast_enabled(device, mode.dtype_on(device) is not None)
        torch.set_autocast_dtype(device, getattr(rest, device))
    torch.set_autocast_cache_enabled(rest.cache)
    while (nesting := read_autocast_details().nesting) < rest.nesting:
        torch.autocast_increment_nesting()
    for _ in range(nesting - rest.nesting):
        # As torch.autocast.__exit__ does, which clears the cache with the outermost block.
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


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
