"""The thread's torch state as facts: what a trace is made under, and what a call finds.

Comes in: nothing. Goes out: StateFacts, whose `autocast_rest` is left out (read_autocast_rest), as
only blocks of autocast rely on it.
"""

from __future__ import annotations

import torch

from .guard import AutocastRest, StateFacts

__all__ = ["SET_ASIDE", "anomaly_mode", "read_autocast_rest", "read_state"]

SET_ASIDE: set[str] = set()  # modes of the process that are off while something is compiled


def anomaly_mode() -> bool:
    """Whether backwards are checked, or will be when the compile is over."""
    return torch.is_anomaly_enabled() or "anomaly" in SET_ASIDE


def read_state() -> StateFacts:
    """The state of this thread."""
    return StateFacts(
        grad_enabled=torch.is_grad_enabled(),
        inference_mode=torch.is_inference_mode_enabled(),
        autocast_cpu=_autocast("cpu"),
        autocast_cuda=_autocast("cuda"),
        default_dtype=torch.get_default_dtype(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        function_modes=torch._C._len_torch_function_stack(),
        dispatch_modes=torch._C._len_torch_dispatch_stack(),
    )


def read_autocast_rest() -> AutocastRest:
    """What else this thread keeps of autocast."""
    torch.autocast_increment_nesting()
    return AutocastRest(
        torch.get_autocast_dtype("cpu"),
        torch.get_autocast_dtype("cuda"),
        torch.is_autocast_cache_enabled(),
        torch.autocast_decrement_nesting(),
    )


def _autocast(device: str) -> torch.dtype | None:
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
