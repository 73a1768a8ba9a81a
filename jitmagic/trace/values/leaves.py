"""`requires_grad_()` of a tensor that the traced code has made: a leaf of the autograd graph.

Comes in: the node of a tensor, and the flag asked for. Goes out: the node that the tensor has from
there on, for autograd's later questions, or a break where the tensor is from outside.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from ...graph.builder import GraphBuilder
from ..breaks import GraphBreak, RefusedTorchCall
from .base import Machine

__all__ = ["required_grad"]


def required_grad(machine: Machine, node: Node, live: torch.Tensor | None, wanted: object) -> Node:
    """The same node where nothing changes."""
    graph: GraphBuilder = machine.graph
    meta: torch.Tensor = node.meta["val"]
    if meta.requires_grad is wanted and not graph.flags_vary(node):
        return node
    differentiable = meta.is_floating_point() or meta.is_complex()
    if wanted is not True or live is not None or graph.modes_vary or not differentiable:
        why = "it makes a leaf of the autograd graph"
        raise GraphBreak(RefusedTorchCall.of(name="Tensor.requires_grad_", why=why))
    return graph.require_grad(node, machine.lines())
