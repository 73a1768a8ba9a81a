"""Records `tensor.data = other`: the same tensor object gets the memory of another tensor.

Input: the tensor's value, and the one whose memory it takes. Output: the tensor's new node, a leaf
if it requires grad; an effect at the exit rebinds the live tensor. Views of the tensor still refer
to the old memory. It is a graph break if a later backward would reach such a leaf
(autograd_leaves.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.fx import Node

from ....graph.builder import GraphBuilder
from ....graph.memory import storage_of
from ....graph.node_meta import device_of
from ...breaks import CachedCast, GraphBreak
from ...result import Perform
from ..base import Builder, Machine
from .autograd_leaves import LeafChange, LeafChanges

__all__ = ["bind_data"]


def bind_data(machine: Machine, owner: Any, value: Any) -> None:
    """Record `owner.data = value`; views of the old memory still refer to it."""
    graph = machine.graph
    source: Any = getattr(value, "node", None)
    if source is not None and _is_same_memory(graph, owner.node, source):
        return  # `p.data += x` stores its own memory, as does a module.to() without conversion
    if source is None or graph.root is not graph or not _can_bind(graph, owner, source):
        owner.refuse(machine, "setting attribute 'data'")
    if graph.cast_cache.has(owner.meta):
        raise GraphBreak(CachedCast.of(name="set_data", what="one of an old value"))
    lines = machine.lines()
    wants_grad = owner.meta.requires_grad
    bound = value.get_attr(machine, "data")
    # A separate node: it gets the autograd history of `owner`, which `value` must not get.
    made: Node = graph.call(getattr, (bound.node, "data"), {}, lines)
    if owner.live is not None:
        machine.effects.set_attr(owner, "data", bound)
        machine.at_exit(lambda builder: _count_writes(owner, made.meta["val"], builder))
    if wants_grad:
        machine.notes.of(LeafChanges).append(LeafChange(owner, machine.step, is_early=False))
        made = graph.require_grad(made, lines)
    machine.notes.owners[made] = owner
    owner.node = made


def _count_writes(owner: Any, meta: torch.Tensor, builder: Builder) -> None:
    """Add the number of the graph's writes to the tensor's version counter.

    Autograd checks the counter, which `tensor.data = other` does not replace.
    """
    counted = builder.constant(increment_version)
    for _ in range(meta._version):
        builder.effect(Perform(counted, (builder(owner),)))


def _can_bind(graph: GraphBuilder, owner: Any, source: Node) -> bool:
    """Return whether autograd has no view or history of the tensor, and its gradient still fits."""
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
    """Return whether two tensors have the same memory, dtype, shape and strides."""
    if one is other:
        return True
    memory = storage_of(one)
    known = memory is not None and not {one, other} & graph.unknown_strides
    return known and memory == storage_of(other) and _placement(one) == _placement(other)


def _placement(node: Node) -> tuple[Any, ...]:
    meta: torch.Tensor = node.meta["val"]
    flags = meta.is_conj(), meta.is_neg()
    return meta.dtype, meta.shape, meta.stride(), meta.storage_offset(), *flags
