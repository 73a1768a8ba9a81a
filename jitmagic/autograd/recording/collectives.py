"""Records functional collectives, each with the wait for its results (graph/operators/waited.py).

torch's tracing has the wait next to the collective too (`_maybe_wrap_tensor`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from ...graph.distributed.waited import is_collective, is_waited, waited, waiting_copy
from ...protocols import Protocol
from .aten_call import AtenCall
from .sym import Sym

__all__ = ["is_collective", "record_collective"]

_WAITS = ("wait_tensor", "_wrap_tensor_autograd")  # the latter makes a tensor that waits when used


class Tracing(Protocol):
    """The interface of the recording mode that is needed here."""

    def value(self, tensor: torch.Tensor) -> Sym: ...
    def fresh(self, sym: Sym) -> torch.Tensor: ...
    def wrap(self, value: object) -> Any: ...
    def emit(self, call: AtenCall) -> Any: ...


def record_collective(mode: Tracing, call: AtenCall) -> object:
    """Record a collective and the wait for it, or the wait for a tensor from outside."""
    if call.op._opname not in _WAITS:
        return mode.wrap(mode.emit(replace(call, op=waited(call.op))))
    sym = mode.value(call.args[0])
    if _is_waited(sym.node):
        return mode.fresh(sym)
    return mode.wrap(mode.emit(AtenCall(waiting_copy(), call.args, {})))


def _is_waited(node: Node) -> bool:
    """Return whether the node's results are those of a collective that the graph waits for."""
    parent = node.args[0] if node.args and not is_waited(node.target) else node
    return isinstance(parent, Node) and is_waited(parent.target)
