"""Warnings of torch's C++ where the trace computes something without a call of torch.

Comes in: a call that warns for the same reason, on stand-ins. Goes out: the warning, on the user's
line, where torch would show it: most are given once in a process, only torch knows which were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ....graph.attribution import call_from
from ...breaks import GraphBreak, TorchCallFailed
from ..base import Machine

__all__ = ["warned_as_by"]


def warned_as_by(machine: Machine, name: str, call: Callable[..., Any], *stand_ins: Any) -> None:
    """Make the call. Where a filter makes an error of the warning, the program has to raise it."""
    try:
        with torch.inference_mode(False):
            call_from(machine.where(), call, stand_ins, {})
    except Warning as error:
        text = f"{type(error).__name__}: {error}"
        raise GraphBreak(TorchCallFailed.of(name=name, error=text)) from None
