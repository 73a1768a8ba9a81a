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
from .values.base import Builder, Machine

__all__ = ["check_written_inputs"]


def check_written_inputs(machine: Machine, graph: GraphBuilder) -> None:
    """Break if a write so far, or an input read since, is not a plain change of one tensor's
    values.
    """
    for node in graph.mutated_inputs:
        meta, spec = node.meta["val"], node.meta["spec"]
        if meta.requires_grad and graph.differentiates:
            raise GraphBreak(MutatedInput.of(why="the tensor takes part in autograd"))
        if (tuple(meta.shape), tuple(meta.stride())) != (spec.shape, spec.stride):
            raise GraphBreak(MutatedInput.of(why="its shape changes in place"))
        if meets_itself(meta):  # a part was written: writing back the whole would undo it
            raise GraphBreak(MutatedInput.of(why="its elements share memory"))
        live = graph.owners[node].live
        if live.is_inference() and not torch.is_inference_mode_enabled():
            raise GraphBreak(MutatedInput.of(why="it is an inference tensor"))
        for other in _tensors(graph):
            if other is not node and _overlap(live, graph.owners[other].live):
                why = "another tensor that is used shares its memory"
                raise GraphBreak(MutatedInput.of(why=why))
    if "no overlap" not in graph.noted:
        graph.noted.add("no overlap")
        machine.at_exit(lambda builder: _guard_separate(machine, graph, builder))


def _guard_separate(machine: Machine, graph: GraphBuilder, builder: Builder) -> None:
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
    live = graph.owners[node].live
    return any(_overlap(live, graph.owners[other].live) for other in group)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the byte ranges that two tensors span have a byte in common."""
    if one.device != other.device or not one.numel() or not other.numel():
        return False
    (start, end), (begin, stop) = _span(one), _span(other)
    return start < stop and begin < end


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (reach + 1) * tensor.element_size()
