"""Infers the results of a recorded call, without running it.

Input: an ATen call on meta tensors and the device that they stand for. Output: its results as meta
tensors; None if the call has to run at once, because its kernel would refuse it or because data
decide the shape. It uses the rules by which traced calls are inferred (graph/meta_calls.py): torch
overrides its meta functions by ones in Python, which accept what kernels refuse and whose first
call imports sympy and torch._dynamo (1 s, 10 s on a busy machine).
"""

from __future__ import annotations

from typing import Any

import torch

from ..graph.autocast_mode import OFF
from ..graph.meta_calls import MetaCall, Modes
from ..graph.node_meta import tensors_in
from ..graph.operators.autocast import CastCache
from .program import operator_named

__all__ = ["infer"]

Results = list[torch.Tensor | list[torch.Tensor] | None]


def infer(
    name: str,
    overload: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
) -> Results | None:
    """Return what the call returns, in the order of its schema; None if it has to run at once."""
    op = operator_named(name, overload)
    tensors = list(tensors_in((args, kwargs)))
    devices = dict.fromkeys(map(id, tensors), device)
    modes = Modes(grad=False, autocast=OFF, casts=CastCache(), fresh_size=None, line=None)
    call = MetaCall(op, args, kwargs, devices, modes, tensors)
    try:
        call.run()
    except Exception:  # the kernel itself says why, if it is an error at all
        return None
    results = [call.value] if len(op._schema.returns) == 1 else call.value
    return [list(one) if isinstance(one, tuple) else one for one in results]
