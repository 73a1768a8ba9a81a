"""Binds facts about tensors, and the constructor of wrapper subclasses."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from .table import private

__all__ = [
    "TENSOR_CLASSES",
    "TensorBase",
    "broadcast_size",
    "dispatch_keys",
    "dispatch_keys_on",
    "grad_mode_below",
    "is_transformed",
    "make_wrapper",
    "memory_format_of_convolution",
    "pop_transform",
    "push_transform",
    "select_convolution",
    "set_conjugate",
    "storage_use_count",
    "transform_of_thread",
    "transforms_of_thread",
    "unwrap_if_dead",
]

TensorBase: Any = private("torch._C.TensorBase")
TENSOR_CLASSES: Collection[Any] = private("torch._tensor_classes")
dispatch_keys: Callable[[torch.Tensor], Any] = private("torch._C._dispatch_keys")
_KeySet: Any = private("torch._C.DispatchKeySet")
_key_named: Callable[[str], Any] = private("torch._C._parse_dispatch_key")
_BACKEND_BITS = {"CPU": 1, "CUDA": 2}  # of BackendComponent in c10/core/DispatchKey.h


def dispatch_keys_on(device: str, keys: Any) -> Any:
    """Return the keys that a tensor on the CPU would have on a device of another type."""
    name = device.upper()
    if keys.has(autocast := _key_named("AutocastCPU")):
        keys = keys.remove(autocast).add(_key_named(f"Autocast{name}"))
    moved = keys.raw_repr() ^ _BACKEND_BITS["CPU"] ^ _BACKEND_BITS[name]
    return _KeySet.from_raw_repr(moved)


make_wrapper: Callable[..., Any] = private("torch.Tensor._make_wrapper_subclass")
set_conjugate: Callable[[torch.Tensor, bool], None] = private("torch._C._set_conj")
storage_use_count: Callable[[int], int] = private("torch._C._storage_Use_Count")
broadcast_size: Callable[..., torch.Size] = private("torch._C._infer_size")

# Transforms of torch.func.
is_transformed: Callable[[torch.Tensor], bool] = private(
    "torch._C._functorch.is_functorch_wrapped_tensor"
)
transform_of_thread: Callable[[], Any] = private("torch._C._functorch.peek_interpreter_stack")
pop_transform: Callable[[], Any] = private("torch._C._functorch.pop_dynamic_layer_stack")
push_transform: Callable[[Any], int] = private("torch._C._functorch.push_dynamic_layer_stack")
unwrap_if_dead: Callable[[torch.Tensor], torch.Tensor] = private(
    "torch._C._functorch.unwrap_if_dead"
)
_stack: Callable[[], list[Any] | None] = private("torch._C._functorch.get_interpreter_stack")


def transforms_of_thread() -> list[str]:
    """Return the names of the active transforms, outermost first: "Vmap", "Grad", "Jvp", ..."""
    return [level.key().name for level in _stack() or ()]


_grad_level: Callable[[Any], Any] = private("torch._C._functorch.CGradInterpreterPtr")


def grad_mode_below() -> bool:
    """Return whether grad mode was on around each active grad transform. Below the levels, nothing
    is recorded otherwise.
    """
    levels = (level for level in _stack() or () if level.key().name == "Grad")
    return all(_grad_level(level).prevGradMode() for level in levels)


# Convolutions: the kernel that the dispatcher chooses, and the layout of its result.
select_convolution: Callable[..., Any] = private("torch._C._select_conv_backend")
memory_format_of_convolution: Callable[..., torch.memory_format] = private(
    "torch._C._conv_determine_backend_memory_format"
)
