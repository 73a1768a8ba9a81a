"""Methods of tensors that are answered from what is known of them, without a call in the graph.

Comes in: a tensor, the name of a method and its arguments. Goes out: the answer; None: record the
call. What layout a kernel chose nobody knows before it ran; the one of a gradient is autograd's
choice in eager too, so a backward that asks whether its gradient is contiguous is given one that
is: that is what such code asks for.
"""

from __future__ import annotations

from typing import Any

import torch

from ....graph.node_meta import device_of
from ...breaks import GraphBreak, UncertainStrides
from ...region import RegionBuilder
from ..base import Args, Kwargs, Machine, Value

__all__ = ["described"]

_STRIDE_READERS = frozenset(
    ("stride", "is_contiguous", "dim_order", "is_non_overlapping_and_dense")
)


def described(machine: Machine, owner: Any, name: str, args: Args, kwargs: Kwargs) -> Value | None:
    """`owner` is a TensorValue."""
    if name in _STRIDE_READERS and owner.node in machine.graph.unknown_strides:
        if name != "is_contiguous" or args or kwargs or not _is_gradient(machine, owner):
            raise GraphBreak(UncertainStrides.of(what=f".{name}()"))
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
    """Whether it is what the backward of an autograd function is given, unchanged."""
    graph = machine.graph
    return isinstance(graph, RegionBuilder) and graph.is_fed(owner.node, "gradient")
