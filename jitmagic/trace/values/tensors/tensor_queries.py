"""Answers methods of tensors from metadata, without a node in the graph.

Input: a tensor, the name of a method and its arguments. Output: the result, or None to record the
call. The strides that a kernel chooses are unknown before it runs, so reading them is a graph
break. The exception is `grad.is_contiguous()` in a user's backward: autograd gives no promise about
the strides of a gradient, so the trace makes the gradient contiguous and answers True.
"""

from __future__ import annotations

from typing import Any

import torch

from ....graph.node_meta import device_of
from ...breaks import GraphBreak, UncertainStrides
from ...region import RegionBuilder
from ..base import Args, Kwargs, Machine, Value

__all__ = ["answer_query"]

_STRIDE_READERS = frozenset(
    ("stride", "is_contiguous", "dim_order", "is_non_overlapping_and_dense")
)


def answer_query(
    machine: Machine, owner: Any, name: str, args: Args, kwargs: Kwargs
) -> Value | None:
    """Return the result of a query, or None to record the call. `owner` is a TensorValue."""
    if name in _STRIDE_READERS and owner.node in machine.graph.unknown_strides:
        if name != "is_contiguous" or args or kwargs or not _is_gradient(machine, owner):
            raise GraphBreak(UncertainStrides.of(what=f".{name}()"))
        # `if not grad.is_contiguous(): grad = grad.contiguous()` was a graph break in backwards.
        owner.node = machine.graph.call("contiguous", [owner.node], {}, machine.lines())
        return machine.constant(True)
    if name == "get_device":
        device = device_of(owner.node)
        return machine.constant(-1 if device.type == "cpu" else device.index)
    if name == "type" and not (args and _is_tensor(machine, args[0])):
        given = args[0].realize(machine).as_constant(machine) if args else None
        if not isinstance(given, torch.dtype):
            owner.refuse(machine, ".type() with names of types")
    return None


def _is_tensor(machine: Machine, value: Value) -> bool:
    return issubclass(value.realize(machine).python_type(machine), torch.Tensor)


def _is_gradient(machine: Machine, owner: Any) -> bool:
    """Return whether the tensor is an unchanged gradient argument of a user's backward."""
    graph = machine.graph
    return isinstance(graph, RegionBuilder) and graph.is_fed(owner.node, "gradient")
