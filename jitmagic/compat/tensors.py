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
    "is_transformed",
    "make_wrapper",
    "memory_format_of_convolution",
    "select_convolution",
    "set_conjugate",
    "storage_use_count",
    "transform_of_thread",
]

TensorBase: Any = private("torch._C.TensorBase")
TENSOR_CLASSES: Collection[Any] = private("torch._tensor_classes")
dispatch_keys: Callable[[torch.Tensor], Any] = private("torch._C._dispatch_keys")
make_wrapper: Callable[..., Any] = private("torch.Tensor._make_wrapper_subclass")
set_conjugate: Callable[[torch.Tensor, bool], None] = private("torch._C._set_conj")
storage_use_count: Callable[[int], int] = private("torch._C._storage_Use_Count")
broadcast_size: Callable[..., torch.Size] = private("torch._C._infer_size")

# Transforms of torch.func.
is_transformed: Callable[[torch.Tensor], bool] = private(
    "torch._C._functorch.is_functorch_wrapped_tensor"
)
transform_of_thread: Callable[[], Any] = private("torch._C._functorch.peek_interpreter_stack")

# Convolutions: the kernel that the dispatcher chooses, and the layout of its result.
select_convolution: Callable[..., Any] = private("torch._C._select_conv_backend")
memory_format_of_convolution: Callable[..., torch.memory_format] = private(
    "torch._C._conv_determine_backend_memory_format"
)
