"""Functions of torch's objects that residual code calls; see residual_calls.py."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.utils.hooks import RemovableHandle

from ..compat.modes import InferenceMode
from ..graph.autocast_mode import DEVICES, Autocast
from ..guards.guard import AutocastDetails
from ..guards.state import read_autocast_details

__all__ = [
    "as_inference_tensor",
    "bare_module",
    "bring_thread_to",
    "bump_version",
    "number_scalar",
    "register_hook",
    "require_grad",
    "sequential_of",
    "take_hook_number",
    "with_class",
]

_initialise_module: Any = torch.nn.Module.__dict__["__init__"]


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


# -- the state of the thread -----------------------------------------------------------------------


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
