"""Models reads, writes and deletions of `.grad`; backward() and zero_grad() write it too.

Output: the gradient's Value, guarded if it existed before the call, and an effect at the exit for
each tensor whose `.grad` changed. After `p.grad = g`, both expressions give the same Value.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from ....extension import runtime_module
from ....graph.node_meta import device_of
from ....guards.guard import Unhooked
from ....guards.source import Gradient
from ...breaks import GraphBreak, RefusedTorchCall
from ..base import Machine, Value
from ..objects.operators import is_none
from ..tensor_base import TensorBase
from .tensor_hooks import is_hooked, retains_gradient

__all__ = [
    "GRADIENTS_GONE",
    "read_gradient",
    "rely_on_no_hooks",
    "store_gradient",
    "write_gradient",
]

GRADIENTS_GONE = "gradients of unknown tensors are set to None at the exit"  # a mark of the graph


def read_gradient(machine: Machine, owner: TensorBase) -> Value:
    """Return `owner.grad`; `owner` is a TensorValue."""
    if GRADIENTS_GONE in machine.notes.marks:
        owner.refuse(machine, "`.grad` after zero_grad()")
    if owner.grad is not None:
        stored: Value = owner.grad
        return stored
    if not owner.meta.is_leaf and not retains_gradient(machine, owner):
        # Eager returns None here, with a warning on the user's line.
        owner.refuse(machine, "`.grad` of a tensor that is not a leaf")
    if owner.live is None:
        return machine.constant(None)
    if owner.source is None:
        owner.refuse(machine, "`.grad` of a tensor created in the trace")
    return machine.wrap(owner.live.grad, Gradient(owner.source))


def write_gradient(machine: Machine, owner: TensorBase, value: Value) -> None:
    """Record `owner.grad = value`, or break where eager would raise."""
    if not owner.meta.is_leaf or machine.graph.modes_vary:
        owner.refuse(machine, "setting `.grad`")
    node: Node | None = getattr(value, "node", None)
    if node is not None:
        mine, other = owner.meta, node.meta["val"]
        same = (mine.shape, mine.dtype) == (other.shape, other.dtype)
        if not same or device_of(owner.node) != device_of(node) or other.requires_grad:
            # Eager raises for another shape, dtype or device.
            owner.refuse(machine, "storing a gradient that does not match")
    elif not is_none(value):
        owner.refuse(machine, "setting `.grad`")
    store_gradient(machine, owner, value)


def store_gradient(machine: Machine, owner: TensorBase, value: Value) -> None:
    before = machine.effects.changes
    owner.grad = value
    machine.effects.set_attr(owner, "grad", value)
    # Effects on `.grad` alone do not prevent that a functools cache is read before the graph.
    machine.effects.gradients += machine.effects.changes - before


def rely_on_no_hooks(machine: Machine, leaf: TensorBase) -> None:
    """Guard that accumulating a gradient of the tensor runs no hook of user code."""
    live: torch.Tensor | None = leaf.live
    if live is None:
        return
    if is_hooked(machine, leaf) or runtime_module().has_gradient_hooks(live):
        why = "hooks of a tensor run Python code during backward"
        raise GraphBreak(RefusedTorchCall.of(name="torch.autograd.backward", why=why))
    assert leaf.source is not None
    machine.guard(Unhooked(leaf.source))
