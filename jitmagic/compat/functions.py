"""Binds functions of the namespace torch whose names begin with an underscore."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .table import private

__all__ = [
    "C_MODULE",
    "VF",
    "assert_async",
    "check",
    "check_all",
    "check_index",
    "check_not_implemented",
    "check_type",
    "check_value",
    "choose_attention",
    "foreach",
    "foreach_add_",
    "foreach_copy_",
    "nested_from_left_aligned_mask",
    "nested_from_mask",
    "pack_padded_sequence",
    "pad_packed_sequence",
    "self_attention",
    "transformer_encoder_layer",
]

C_MODULE: Any = private("torch._C")
VF: Any = private("torch._VF")  # functions whose overloads torch.nn chooses from

assert_async: Callable[..., None] = private("torch._assert_async")
check: Callable[..., None] = private("torch._check")
check_index: Callable[..., None] = private("torch._check_index")
check_value: Callable[..., None] = private("torch._check_value")
check_type: Callable[..., None] = private("torch._check_type")
check_not_implemented: Callable[..., None] = private("torch._check_not_implemented")
check_all: Callable[..., None] = private("torch._check_tensor_all")

pack_padded_sequence: Callable[..., Any] = private("torch._pack_padded_sequence")
pad_packed_sequence: Callable[..., Any] = private("torch._pad_packed_sequence")

self_attention: Callable[..., Any] = private("torch._native_multi_head_attention")
transformer_encoder_layer: Callable[..., torch.Tensor] = private(
    "torch._transformer_encoder_layer_fwd"
)
nested_from_mask: Callable[..., torch.Tensor] = private("torch._nested_tensor_from_mask")
nested_from_left_aligned_mask: Callable[..., bool] = private(
    "torch._nested_tensor_from_mask_left_aligned"
)
choose_attention: Callable[..., int] = private("torch._fused_sdp_choice")


def foreach(name: str) -> Callable[..., Any]:
    """Return the operation on lists of tensors with this name, `add_`."""
    found: Callable[..., Any] = private(f"torch._foreach_{name}")
    return found


foreach_add_, foreach_copy_ = foreach("add_"), foreach("copy_")
