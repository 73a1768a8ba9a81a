"""Reads the thread's torch state (grad mode, autocast, ...), which the GlobalState guard compares.

Called when a trace begins and when a failed guard is explained. Output: StateFacts, without
`autocast_details`: only traces of autocast blocks rely on those (read_autocast_details).
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from ..compat.modes import (
    DeviceContext,
    dispatch_mode_depth,
    function_mode_at,
    function_mode_depth,
    is_torch_function_enabled,
)
from ..compat.tensors import transform_of_thread
from .guard import AutocastDetails, StateFacts

__all__ = [
    "DISABLED_MODES",
    "FUNCTION_MODES",
    "anomaly_mode",
    "is_transformed_call",
    "read_autocast_details",
    "read_state",
    "torch_functions_of_subclasses",
]

DISABLED_MODES: set[str] = set()  # process-wide modes disabled during a compile


class _FunctionModes(threading.local):
    """Function modes that a compile has disabled on this thread, innermost last.

    of_subclasses: whether `__torch_function__` of subclasses is on outside the compile; None: no
        compile is running
    transformed: whether the compile has disabled transforms of torch.func
    """

    disabled: tuple[object, ...] = ()
    of_subclasses: bool | None = None
    transformed: bool = False


FUNCTION_MODES = _FunctionModes()


def torch_functions_of_subclasses() -> bool:
    """Return whether `__torch_function__` of tensor subclasses is called; a compile disables it."""
    outside = FUNCTION_MODES.of_subclasses
    return is_torch_function_enabled() if outside is None else outside


def is_transformed_call() -> bool:
    """Return whether a transform of torch.func is active; a compile disables it."""
    return FUNCTION_MODES.transformed or transform_of_thread() is not None


def anomaly_mode() -> bool:
    """Return whether anomaly mode is on; a compile disables it and restores it afterwards."""
    return torch.is_anomaly_enabled() or "anomaly" in DISABLED_MODES


def read_state() -> StateFacts:
    """Return the state of this thread."""
    watching, default_device = _function_modes()
    return StateFacts(
        grad_enabled=torch.is_grad_enabled(),
        inference_mode=torch.is_inference_mode_enabled(),
        autocast_cpu=_autocast("cpu"),
        autocast_cuda=_autocast("cuda"),
        default_dtype=torch.get_default_dtype(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        function_modes=watching,
        dispatch_modes=dispatch_mode_depth(),
        transformed=is_transformed_call(),
        default_device=default_device,
    )


def _function_modes() -> tuple[int, torch.device | None]:
    """Return the number of the user's torch-function modes, and the default device.

    torch keeps the default device in a mode at the bottom of the stack
    (extensions/frame/function_modes.h).
    """
    count = function_mode_depth()
    modes: list[Any] = list(FUNCTION_MODES.disabled)
    modes += map(function_mode_at, range(count))
    if modes and type(modes[0]) is DeviceContext:
        return len(modes) - 1, modes[0].device
    return len(modes), None


def read_autocast_details() -> AutocastDetails:
    """Return this thread's autocast state beyond what read_state returns."""
    torch.autocast_increment_nesting()
    return AutocastDetails(
        torch.get_autocast_dtype("cpu"),
        torch.get_autocast_dtype("cuda"),
        torch.is_autocast_cache_enabled(),
        torch.autocast_decrement_nesting(),
    )


def _autocast(device: str) -> torch.dtype | None:
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
