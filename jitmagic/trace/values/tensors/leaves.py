"""Records changes of a tensor object: `requires_grad_()` and `tensor.data = other`.

`required_grad` returns the tensor's new node, with the flag on its meta tensor, in three cases. A
live tensor that the graph has not used yet gets the flag before the graph runs, as an input that
requires grad. For a used one, the new node is a `detach()`, which shares its memory, and an effect
sets the flag at the exit; it is a graph break if a later backward would reach this leaf. For a
tensor computed in the graph, the new node is an ordinary result.

`bind_data` gives the tensor the memory of another: its new node is a leaf if it requires grad, and
an effect at the exit rebinds the live tensor. Views of the tensor still refer to the old memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ....graph.builder import GraphBuilder
from ....graph.memory import storage_of, storage_under
from ....graph.node_meta import device_of
from ....graph.wrappers.wrapping import is_wrapper
from ....lazy_dataclass import dataclass, replace
from ...breaks import CachedCast, GraphBreak, RefusedTorchCall
from ...graph_notes import GraphNotes, Owner
from ...residual_torch_calls import require_grad
from ...result import Perform
from ..base import Builder, CannotRebuild, Machine
from ..tensor_base import TensorBase

__all__ = [
    "LeafChange",
    "LeafChanges",
    "bind_data",
    "check_leaves",
    "output_leaves",
    "required_grad",
]

_REASON = RefusedTorchCall.of(
    name="Tensor.requires_grad_", why="it changes a leaf of the autograd graph"
)


@dataclass(frozen=True, slots=True)
class LeafChange:
    """A change of `requires_grad` or of a leaf's memory; an early one runs before the graph."""

    owner: Owner
    created_at_step: int
    is_early: bool


class LeafChanges(list[LeafChange]):
    """The changes of leaves in one graph."""


def required_grad(machine: Machine, owner: TensorBase, wanted: object) -> Node:
    """Return the node with the flag: the current one if it has it. `owner` is a TensorValue."""
    graph = machine.graph
    node: Node = owner.node
    meta: torch.Tensor = node.meta["val"]
    if graph.is_transformed:  # eager raises
        raise GraphBreak(_REASON)
    is_so = meta.requires_grad is wanted and not graph.flags_vary(node)
    if is_so and not (wanted and _is_refused(owner)):
        return node
    differentiable = meta.is_floating_point() or meta.is_complex()
    is_inference = graph.inference.is_on or node.meta.get("inference")
    if not isinstance(wanted, bool) or graph.modes_vary or not differentiable or is_inference:
        raise GraphBreak(_REASON)
    if owner.live is not None:
        return _change_input(machine, owner, owner.live, wanted)
    if not wanted:
        raise GraphBreak(_REASON)
    return graph.require_grad(node, machine.lines())


def _is_refused(owner: TensorBase) -> bool:
    """Return whether eager raises although the flag is set: the tensor is an inference tensor."""
    made_there = owner.live is not None and owner.live.is_inference()
    return made_there and not torch.is_inference_mode_enabled()


def _change_input(machine: Machine, owner: TensorBase, live: torch.Tensor, wanted: bool) -> Node:
    notes, graph = machine.notes, machine.graph
    if graph.root is not graph or owner.source is None or not owner.meta.is_leaf:
        raise GraphBreak(_REASON)
    if live.is_inference() or owner.node.meta["spec"] is None:
        raise GraphBreak(_REASON)
    if wanted and any(_is_view_of(owner.meta, node) for node in notes.owners):
        raise GraphBreak(_REASON)  # in eager these views have an autograd history from here on
    if wanted and _is_untouched(notes, owner, live):
        return _flag_before_graph(machine, owner)
    notes.of(LeafChanges).append(LeafChange(owner, machine.step, is_early=False))
    machine.effects.set_attr(owner, "requires_grad", machine.constant(wanted))
    before = next((n for n in graph.inputs if notes.owners.get(n) is owner), None)
    # A step that freezes a network for a while and thaws it again ends with the input itself.
    if before is not None and before.meta["val"].requires_grad is wanted:
        return before  # the flag as at entry
    # The live tensor gets its flag only at the exit; until then a detached alias is the leaf.
    detached: Node = graph.call("detach", (owner.node,), {}, machine.lines())
    return graph.require_grad(detached, machine.lines()) if wanted else detached


def _is_untouched(notes: GraphNotes, owner: TensorBase, live: torch.Tensor) -> bool:
    """Return whether the graph so far would be the same if the input required grad at entry."""
    node: Node = owner.node
    if node not in notes.inputs or node.users or notes.graph.is_output(node):
        return False
    views = [one for one in notes.live_inputs() if one._is_view()]
    return not live._is_view() and all(view._base is not live for view in views)


def _flag_before_graph(machine: Machine, owner: TensorBase) -> Node:
    notes = machine.notes
    node: Node = owner.node
    notes.of(LeafChanges).append(LeafChange(owner, machine.step, is_early=True))
    machine.effects.draw(owner, require_grad, "requires_grad_")
    # A loss that leaves the frame needs an input that requires grad: with the flag set at the exit,
    # a PINN's loss was a break and its rest ran in eager.
    node.meta["val"].requires_grad_()
    spec = node.meta["spec"] = replace(node.meta["spec"], requires_grad=True)
    notes.inputs[node] = replace(notes.inputs[node], spec=spec)
    return node


def _is_view_of(meta: torch.Tensor, node: Node) -> bool:
    """Return whether a node is a view of the tensor, without autograd history."""
    view = node.meta["val"]
    if not isinstance(view, torch.Tensor) or view.requires_grad or not view._is_view():
        return False
    return storage_under(view) == storage_under(meta)


def output_leaves(graph: GraphBuilder) -> None:
    """Output the leaves created in the graph that results depend on, if there are no others.

    A graph's autograd node returns gradients of graph inputs only. As outputs, these leaves become
    inputs of the next subgraph: the graph is split after them. Raises CannotRebuild if one is a
    wrapper, which no subgraph passes to the next.
    """
    outputs = graph.differentiable_outputs() if graph.leaves else []
    reached = set(graph.reachable_leaves(outputs))
    if reached <= set(graph.leaves):
        for leaf in graph.leaves:
            if leaf in reached and is_wrapper(leaf.meta["val"]):
                raise CannotRebuild("a wrapper that is a leaf", leaf.meta["step"], _REASON)
            if leaf in reached:
                graph.output(leaf)


def check_leaves(notes: GraphNotes) -> None:
    """Raise CannotRebuild if a live tensor that became a leaf shows after the exit.

    That is so if a later backward reaches it, since autograd does not see the change while the
    graph runs, or if it has views, whose history changes with it.
    """
    graph, changes = notes.graph, notes.of(LeafChanges)
    if not changes:
        return
    reached = set(graph.reachable_leaves(graph.differentiable_outputs()))
    became = [notes.owners.get(leaf) for leaf in graph.leaves if leaf in reached]
    escaping = [node for node in notes.owners if graph.is_output(node)]
    bases = [live._base for live in notes.live_inputs() if live._is_view()]
    for change in changes:
        owner = change.owner
        views = not change.is_early and any(_is_view_of(owner.meta, n) for n in escaping)
        if owner in became or views or any(base is owner.live for base in bases):
            raise CannotRebuild("a tensor that became a leaf", change.created_at_step, _REASON)


# -- tensor.data = other ---------------------------------------------------------------------------


def bind_data(machine: Machine, owner: TensorBase, value: Any) -> None:
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


def _count_writes(owner: TensorBase, meta: torch.Tensor, builder: Builder) -> None:
    """Add the number of the graph's writes to the tensor's version counter.

    Autograd checks the counter, which `tensor.data = other` does not replace.
    """
    counted = builder.constant(torch.autograd.graph.increment_version)
    for _ in range(meta._version):
        builder.effect(Perform(counted, (builder(owner),)))


def _can_bind(graph: GraphBuilder, owner: TensorBase, source: Node) -> bool:
    """Return whether autograd has no view or history of the tensor, and its gradient still fits."""
    if graph.modes_vary or graph.is_transformed or graph.inference.used:
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
