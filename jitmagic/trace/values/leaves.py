"""`t.requires_grad = ...` and `t.requires_grad_(...)`.

Comes in: the node of a tensor and what it is told to be. Goes out: the node it is from now on. Only
a tensor that the trace made may become a leaf, and only while nobody outside can see it: its
gradient is then nobody's, and later operations are recorded. A tensor from outside is changed by
Python, before the next graph; so is one that an exit hands on (`ExitBuilder.output`).
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch.fx import Node

from ...graph.leaves import leaf_of
from ..breaks import GraphBreak, RefusedTorchCall
from .base import Machine, Value

__all__ = ["requires_grad_", "with_requires_grad"]


def with_requires_grad(machine: Machine, node: Node, live: object, wanted: Value) -> Node:
    """The node of a leaf; `live` is the tensor if it existed before."""
    meta = node.meta["val"]
    known = wanted.is_constant(machine) and isinstance(wanted.as_constant(machine), bool)
    if not known or not meta.is_leaf:
        _refuse("only Python knows what comes of it")
    if wanted.as_constant(machine) == meta.requires_grad:
        return node
    differentiable = meta.dtype.is_floating_point or meta.dtype.is_complex
    if live is not None or meta.requires_grad or not differentiable:
        _refuse("it makes a leaf of the autograd graph")
    made: Node = machine.graph.call(leaf_of, (node,), {}, machine.lines())
    machine.graph.leaves.append(made)
    return made


def requires_grad_(
    machine: Machine, owner: Value, meta: torch.Tensor, requires_grad: Value | None = None
) -> Value:
    """`owner.requires_grad_(requires_grad)`: unlike the attribute, it lets a tensor that requires
    grad be told so, leaf or not."""
    wanted = machine.constant(True) if requires_grad is None else requires_grad.realize(machine)
    if not (meta.requires_grad and wanted.truth(machine)):
        owner.set_attr(machine, "requires_grad", wanted)
    return owner


def _refuse(why: str) -> NoReturn:
    raise GraphBreak(RefusedTorchCall.of(name="Tensor.requires_grad_", why=why))
