"""`requires_grad_()` of a tensor: a leaf of the autograd graph, or none any more.

Comes in: the tensor's value, and the flag asked for. Goes out: the node that the tensor has from
there on, for autograd's later questions. A tensor from outside that nothing was computed of yet is
given the flag before the graph runs, which then has an input that requires grad. Later on it keeps
its memory: its node is one of `detach()`, and an effect sets the flag at the exit; break where a
later backward would have to lead to such a leaf. One that the program made is a result like others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from ....graph.builder import GraphBuilder
from ....graph.memory import storage_under
from ...breaks import GraphBreak, RefusedTorchCall
from ...graph_notes import GraphNotes, Owner
from ..base import Machine, Unrestorable

__all__ = ["Switch", "Switched", "check_leaves", "keep_leaves", "required_grad"]

_REASON = RefusedTorchCall.of(
    name="Tensor.requires_grad_", why="it makes a leaf of the autograd graph"
)


@dataclass(frozen=True, slots=True)
class Switch:
    """Of `requires_grad`, or of the memory of a leaf; `is_early`: done before the graph runs."""

    owner: Owner
    born: int
    is_early: bool


class Switched(list[Switch]):
    """The switches of one graph."""


def required_grad(machine: Machine, owner: Any, wanted: object) -> Node:
    """The same node where nothing changes. `owner` is a TensorValue."""
    graph = machine.graph
    node: Node = owner.node
    meta: torch.Tensor = node.meta["val"]
    is_so = meta.requires_grad is wanted and not graph.flags_vary(node)
    if is_so and not (wanted and _is_refused(owner)):
        return node
    differentiable = meta.is_floating_point() or meta.is_complex()
    is_inference = graph.inference.is_on or node.meta.get("inference")
    if not isinstance(wanted, bool) or graph.modes_vary or not differentiable or is_inference:
        raise GraphBreak(_REASON)
    if owner.live is not None:
        return _of_an_input(machine, owner, wanted)
    if not wanted:
        raise GraphBreak(_REASON)
    return graph.require_grad(node, machine.lines())


def _is_refused(owner: Any) -> bool:
    """Whether eager refuses although it is so: what was made in inference mode is for that."""
    made_there = owner.live is not None and owner.live.is_inference()
    return made_there and not torch.is_inference_mode_enabled()


def _of_an_input(machine: Machine, owner: Any, wanted: bool) -> Node:
    notes, graph = machine.notes, machine.graph
    live: torch.Tensor = owner.live
    if graph.root is not graph or owner.source is None or not owner.meta.is_leaf:
        raise GraphBreak(_REASON)
    if live.is_inference() or owner.node.meta["spec"] is None:
        raise GraphBreak(_REASON)
    if wanted and any(_is_view_of(owner.meta, node) for node in notes.owners):
        raise GraphBreak(_REASON)  # they have a history from then on, in eager
    if wanted and _is_untouched(notes, owner):
        return _flagged_early(machine, owner)
    notes.of(Switched).append(Switch(owner, machine.step, is_early=False))
    machine.effects.set_attr(owner, "requires_grad", machine.constant(wanted))
    before = next((n for n in graph.inputs if notes.owners.get(n) is owner), None)
    if before is not None and before.meta["val"].requires_grad is wanted:
        return before  # as it came
    detached: Node = graph.call("detach", (owner.node,), {}, machine.lines())
    return graph.require_grad(detached, machine.lines()) if wanted else detached


def _is_untouched(notes: GraphNotes, owner: Any) -> bool:
    """Whether the graph so far is the same for a leaf that requires grad."""
    node: Node = owner.node
    if node not in notes.inputs or node.users or notes.graph.is_output(node):
        return False
    views = [live for live in notes.live_inputs() if live._is_view()]
    return not owner.live._is_view() and all(view._base is not owner.live for view in views)


def _flagged_early(machine: Machine, owner: Any) -> Node:
    notes = machine.notes
    node: Node = owner.node
    notes.of(Switched).append(Switch(owner, machine.step, is_early=True))
    machine.effects.draw(owner, _require_grad, "requires_grad_")
    node.meta["val"].requires_grad_()
    spec = node.meta["spec"] = replace(node.meta["spec"], requires_grad=True)
    notes.inputs[node] = replace(notes.inputs[node], spec=spec)
    return node


def _require_grad(tensor: torch.Tensor) -> None:
    tensor.requires_grad_()


def _is_view_of(meta: torch.Tensor, node: Node) -> bool:
    """One without a history, to autograd."""
    view = node.meta["val"]
    if not isinstance(view, torch.Tensor) or view.requires_grad or not view._is_view():
        return False
    return storage_under(view) == storage_under(meta)


def keep_leaves(graph: GraphBuilder) -> None:
    """Hand out the leaves of the program's own that results lead to, if they lead to nothing else.
    A graph has an autograd node for the sake of its inputs: the graph is split behind such leaves.
    """
    outputs = graph.differentiable_outputs() if graph.leaves else []
    behind = set(graph.reachable_leaves(outputs))
    if behind <= set(graph.leaves):
        for leaf in graph.leaves:
            if leaf in behind:
                graph.output(leaf)


def check_leaves(notes: GraphNotes) -> None:
    """Raise Unrestorable where a later backward leads to a tensor from outside that became a leaf,
    which to autograd is none while the graph runs; and where there are views of it, whose history
    changes with it.
    """
    graph, switched = notes.graph, notes.of(Switched)
    if not switched:
        return
    behind = set(graph.reachable_leaves(graph.differentiable_outputs()))
    became = [notes.owners.get(leaf) for leaf in graph.leaves if leaf in behind]
    handed_out = [node for node in notes.owners if graph.is_output(node)]
    bases = [live._base for live in notes.live_inputs() if live._is_view()]
    for switch in switched:
        owner = switch.owner
        views = not switch.is_early and any(_is_view_of(owner.meta, n) for n in handed_out)
        if owner in became or views or any(base is owner.live for base in bases):
            raise Unrestorable("a tensor that became a leaf", switch.born, _REASON)
