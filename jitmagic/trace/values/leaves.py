"""`requires_grad_()` and `tensor.data = other`: the same tensor object is another one to autograd.

Comes in: the tensor's value, and the flag asked for, or the tensor whose memory it takes. Goes out:
the node that the tensor has from there on, for autograd's later questions. A tensor from outside
that changes its flag keeps its memory: its node is then one of `detach()`. An effect at the exit
does the same to the live tensor. Break where a later backward would have to lead to such a leaf.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.fx import Node

from ...graph.builder import GraphBuilder, storage_of
from ...graph.node_meta import device_of
from ..breaks import GraphBreak, RefusedTorchCall
from ..result import Perform
from .base import Builder, Machine, Unrestorable
from .inference import is_made_inside

__all__ = ["bind_data", "check_leaves", "required_grad"]

_REASON = RefusedTorchCall.of(
    name="Tensor.requires_grad_", why="it makes a leaf of the autograd graph"
)


def required_grad(machine: Machine, owner: Any, wanted: object) -> Node:
    """The same node where nothing changes. `owner` is a TensorValue."""
    graph: GraphBuilder = machine.graph
    node: Node = owner.node
    meta: torch.Tensor = node.meta["val"]
    if meta.requires_grad is wanted and not graph.flags_vary(node):
        return node
    differentiable = meta.is_floating_point() or meta.is_complex()
    is_inference = graph.inference.is_on or is_made_inside(node)
    if not isinstance(wanted, bool) or graph.modes_vary or not differentiable or is_inference:
        raise GraphBreak(_REASON)
    if owner.live is not None:
        return _of_an_input(machine, owner, wanted)
    if not wanted:
        raise GraphBreak(_REASON)
    return graph.require_grad(node, machine.lines())


def _of_an_input(machine: Machine, owner: Any, wanted: bool) -> Node:
    graph: GraphBuilder = machine.graph
    live: torch.Tensor = owner.live
    if graph.root is not graph or owner.source is None or not owner.meta.is_leaf:
        raise GraphBreak(_REASON)
    if live.is_inference() or owner.node.meta["spec"] is None:
        raise GraphBreak(_REASON)
    if wanted and any(_is_view_of(owner.meta, node) for node in graph.owners):
        raise GraphBreak(_REASON)  # they have a history from then on, in eager
    graph.switched.append((owner, machine.step))
    machine.effects.set_attr(owner, "requires_grad", machine.constant(wanted))
    before = next((n for n in graph.inputs if graph.owners.get(n) is owner), None)
    if before is not None and before.meta["val"].requires_grad is wanted:
        return before  # as it came
    detached: Node = graph.call("detach", (owner.node,), {}, machine.lines())
    return graph.require_grad(detached, machine.lines()) if wanted else detached


def bind_data(machine: Machine, owner: Any, value: Any) -> None:
    """`owner.data = value`: the memory of `value` from here on; views of the old one keep that."""
    graph: GraphBuilder = machine.graph
    source: Any = getattr(value, "node", None)
    if source is not None and _is_same_memory(graph, owner.node, source):
        return  # what `p.data += x` stores, and module.to(dtype) that converts nothing
    if source is None or graph.root is not graph or not _can_bind(graph, owner, source):
        owner.refuse(machine, "setting attribute 'data'")
    lines = machine.lines()
    wants_grad = owner.meta.requires_grad
    bound = value.get_attr(machine, "data")
    # A node of its own: it has the history of `owner`, which `value` must not get.
    made: Node = graph.call(getattr, (bound.node, "data"), {}, lines)
    if owner.live is not None:
        machine.effects.set_attr(owner, "data", bound)
        machine.at_exit(lambda builder: _count_writes(owner, made.meta["val"], builder))
    if wants_grad:
        graph.switched.append((owner, machine.step))
        made = graph.require_grad(made, lines)
    graph.owners[made] = owner
    owner.node = made


def _count_writes(owner: Any, meta: torch.Tensor, builder: Builder) -> None:
    """The tensor keeps its version counter, whatever memory it has: autograd asks it."""
    counted = builder.constant(increment_version)
    for _ in range(meta._version):
        builder.effect(Perform(counted, (builder(owner),)))


def _can_bind(graph: GraphBuilder, owner: Any, source: Node) -> bool:
    """Autograd knows the tensor by no view and no history, and its gradient still fits."""
    if graph.modes_vary or graph.inference.used:
        return False
    if not owner.meta.is_leaf or owner.meta._is_view():
        return False
    if owner.live is not None and (
        owner.source is None or owner.live.is_inference() or owner.live._is_view()
    ):
        return False
    mine, other = owner.meta, source.meta["val"]
    same = (mine.shape, mine.dtype) == (other.shape, other.dtype)
    return same and device_of(owner.node) == device_of(source)


def _is_same_memory(graph: GraphBuilder, one: Node, other: Node) -> bool:
    """Whether two tensors are the same numbers in the same memory."""
    if one is other:
        return True
    memory = storage_of(one)
    known = memory is not None and not {one, other} & graph.unknown_strides
    return known and memory == storage_of(other) and _placement(one) == _placement(other)


def _placement(node: Node) -> tuple[Any, ...]:
    meta: torch.Tensor = node.meta["val"]
    flags = meta.is_conj(), meta.is_neg()
    return meta.dtype, meta.shape, meta.stride(), meta.storage_offset(), *flags


def _is_view_of(meta: torch.Tensor, node: Node) -> bool:
    """One without a history, to autograd."""
    view = node.meta["val"]
    if not isinstance(view, torch.Tensor) or view.requires_grad or not view._is_view():
        return False
    return bool(view.untyped_storage()._cdata == meta.untyped_storage()._cdata)


def check_leaves(graph: GraphBuilder) -> None:
    """Raise Unrestorable where a later backward leads to a tensor from outside that became a leaf,
    which to autograd is none while the graph runs; and where there are views of it, whose history
    changes with it.
    """
    if not graph.switched:
        return
    behind = set(graph.leaves_behind(graph.differentiable_outputs()))
    became = [graph.owners.get(leaf) for leaf in graph.leaves if leaf in behind]
    handed_out = [node for node in graph.owners if graph.is_output(node)]
    lives = [getattr(graph.owners.get(node), "live", None) for node in graph.inputs]
    bases = [live._base for live in lives if live is not None and live._is_view()]
    for owner, born in graph.switched:
        views = any(_is_view_of(owner.meta, node) for node in handed_out)
        if owner in became or views or any(base is owner.live for base in bases):
            raise Unrestorable("a tensor that became a leaf", born, _REASON)
