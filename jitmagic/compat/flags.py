"""Binds getters of process-wide settings, which guards call again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .table import private

__all__ = [
    "ATTENTION_GETTERS",
    "GETTERS",
    "attention_order",
    "capturing_getter",
    "current_accelerator",
    "get_mkldnn_enabled",
    "get_warn_always",
    "has_mkldnn",
    "is_autocast_available",
    "log_api_usage_once",
    "privateuse1_name",
]

get_warn_always: Callable[[], bool] = private("torch._C._get_warnAlways")
get_mkldnn_enabled: Callable[[], bool] = private("torch._C._get_mkldnn_enabled")
has_mkldnn: bool = private("torch._C._has_mkldnn")
is_autocast_available: Callable[[str], bool] = private("torch._C._is_autocast_available")
privateuse1_name: Callable[[], str] = private("torch._C._get_privateuse1_backend_name")
current_accelerator: Callable[[], Any] = private("torch._C._accelerator_getAccelerator")
log_api_usage_once: Callable[[str], None] = private("torch._C._log_api_usage_once")

# Not every version of torch has each of them; a program can only read those that exist.
_NAMES = (
    "get_num_threads get_num_interop_threads _get_warnAlways _get_float32_matmul_precision "
    "_get_deterministic_algorithms _get_deterministic_algorithms_warn_only "
    "_get_deterministic_fill_uninitialized_memory _get_qengine _get_nnpack_enabled "
    "_get_flash_sdp_enabled _get_math_sdp_enabled _get_mem_efficient_sdp_enabled "
    "_get_cudnn_sdp_enabled _get_overrideable_sdp_enabled _get_fa3_sdp_enabled "
    "_get_math_sdp_allow_fp16_bf16_reduction _get_cublas_allow_tf32 "
    "_get_cublas_allow_fp16_reduced_precision_reduction "
    "_get_cublas_allow_bf16_reduced_precision_reduction _get_cublas_allow_fp16_accumulation "
    "_get_cudnn_enabled _get_cudnn_benchmark _get_cudnn_deterministic _get_cudnn_allow_tf32 "
    "_get_mkldnn_enabled _get_mkldnn_deterministic _get_onednn_allow_tf32 _get_miopen_immediate "
    "_get_cpu_allow_fp16_reduced_precision_reduction _get_cpu_capability"
).split()
GETTERS: list[Callable[[], Any]] = [
    getattr(torch._C, name) for name in _NAMES if hasattr(torch._C, name)
]
attention_order: Callable[[], list[int]] = private("torch._C._get_sdp_priority_order")
ATTENTION_GETTERS: list[Callable[[], Any]] = [
    getter
    for name, getter in vars(torch._C).items()
    if name.startswith("_get_") and "sdp" in name.split("_") and getter is not attention_order
]


def capturing_getter(device: str, otherwise: Callable[[], object]) -> Callable[[], object]:
    """Return the C function that says whether the device captures a graph.

    A build of torch without the device has none.
    """
    found: Callable[[], object] = getattr(
        torch._C, f"_{device}_isCurrentStreamCapturing", otherwise
    )
    return found
