"""Graph inputs that the traced code writes in place: which of them may share memory with which.

Comes in: the graph after a write to an input, or a new input after such a write.  Goes out: a break
where the write cannot be replayed as a change of values alone; NoOverlap guards at the exit,
because the graph takes a written tensor and every other one for separate memory.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.fx import Node

from ..graph.builder import GraphBuilder
from ..graph.overlap import meets_itself
from ..guards.guard import NoOverlap
from .breaks import GraphBreak, MutatedInput
from .values.base import Machine

__all__ = ["check_written_inputs"]


def check_written_inputs(machine: Machine, graph: GraphBuilder) -> None:
    """Break if a write so far, or an input read since, is not a plain change of one tensor's
    values. Looks at what is new since it was last asked: optimizers write to hundreds of inputs.
    """
    if graph.differentiates and any(n.meta["val"].requires_grad for n in graph.mutated_inputs):
        raise GraphBreak(MutatedInput.of(why="the tensor takes part in autograd"))
    for node in graph.latest_writes:
        _check_change(graph, node)
    graph.latest_writes.clear()
    _check_apart(graph)
    if "no overlap" not in graph.noted:
        graph.noted.add("no overlap")
        machine.at_exit(lambda builder: _guard_separate(machine, graph))


def _check_change(graph: GraphBuilder, node: Node) -> None:
    meta, spec = node.meta["val"], node.meta["spec"]
    if (tuple(meta.shape), tuple(meta.stride())) != (spec.shape, spec.stride):
        raise GraphBreak(MutatedInput.of(why="its shape changes in place"))
    if meets_itself(meta):  # a part was written: writing back the whole would undo it
        raise GraphBreak(MutatedInput.of(why="its elements share memory"))
    if graph.owners[node].live.is_inference() and not torch.is_inference_mode_enabled():
        raise GraphBreak(MutatedInput.of(why="it is an inference tensor"))


def _check_apart(graph: GraphBuilder) -> None:
    """Every written input against every other; `graph.compared`: with how many it was already."""
    if graph.compared == (counts := (len(graph.inputs), len(graph.mutated_inputs))):
        return
    inputs, written = graph.compared
    tensors = list(graph.inputs)
    for number, node in enumerate(graph.mutated_inputs):
        for other in tensors[inputs if number < written else 0 :]:
            if graph.inputs[other].is_number or other is node:
                continue
            if _overlap(graph, node, other):
                why = "another tensor that is used shares its memory"
                raise GraphBreak(MutatedInput.of(why=why))
    graph.compared = counts


def _guard_separate(machine: Machine, graph: GraphBuilder) -> None:
    """Guard that nothing shares memory with what is written; the others may do so."""
    written = list(graph.mutated_inputs)
    groups: list[list[Node]] = [[]]
    for node in _tensors(graph):
        if node in graph.mutated_inputs:
            continue
        group = next((g for g in groups if not _meets(graph, node, g)), None)
        if group is None:
            groups.append(group := [])
        group.append(node)
    for group in groups:
        members = [*written, *group]
        if len(members) > 1:
            machine.guard(NoOverlap(tuple(graph.inputs[node].source for node in members)))


def _tensors(graph: GraphBuilder) -> Iterable[Node]:
    """The inputs that are memory of the caller's: numbers are not."""
    return (node for node, entry in graph.inputs.items() if not entry.is_number)


def _meets(graph: GraphBuilder, node: Node, group: Iterable[Node]) -> bool:
    return any(_overlap(graph, node, other) for other in group)


def _overlap(graph: GraphBuilder, one: Node, other: Node) -> bool:
    """Whether the byte ranges that two inputs span have a byte in common."""
    device, start, end = _span(graph, one)
    elsewhere, begin, stop = _span(graph, other)
    return start < stop and begin < end and device == elsewhere


def _span(graph: GraphBuilder, node: Node) -> tuple[torch.device, int, int]:
    """Where a live input begins and ends, read once; nowhere if it is empty."""
    span: tuple[torch.device, int, int] | None = node.meta.get("span")
    if span is None:
        live: torch.Tensor = graph.owners[node].live
        reach = sum((size - 1) * step for size, step in zip(live.shape, live.stride(), strict=True))
        start = live.data_ptr() if live.numel() else 0
        end = start + (reach + 1) * live.element_size() if live.numel() else 0
        span = node.meta["span"] = live.device, start, end
    return span
