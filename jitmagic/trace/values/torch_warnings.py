"""Emits the warnings of torch's C++ code that eager would give for calls that the trace replaces.

Input: a call on stand-ins that warns for the same reason. Output: the warning on the user's line,
if torch would show it. Most are shown once per process, and only torch knows which it has shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...graph.attribution import call_from
from ..breaks import GraphBreak, TorchCallFailed
from .base import Machine

__all__ = ["replay_warning"]


def replay_warning(machine: Machine, name: str, call: Callable[..., Any], *stand_ins: Any) -> None:
    """Make the call, which warns; break the graph if a warning filter makes that an error."""
    try:
        # In inference mode, float() of a tensor that requires grad does not warn.
        with torch.inference_mode(False):
            call_from(machine.where(), call, stand_ins, {})
    except Warning as error:
        text = f"{type(error).__name__}: {error}"
        raise GraphBreak(TorchCallFailed.of(name=name, error=text)) from None
