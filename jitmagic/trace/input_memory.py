"""Checks in-place writes to graph inputs, and guards that written inputs are not aliased.

A write that changes more than a tensor's values (its shape, its autograd history) is a graph break.
The graph assumes that a written input shares memory with no other input, so the exit of the trace
adds NoOverlap guards.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import islice
from operator import itemgetter

import torch
from torch.fx import Node

from ..graph.builder import GraphBuilder
from ..graph.gradients import is_stale
from ..graph.operators.overlap import overlaps_itself
from ..graph.symbolic.sym_node import as_dimensions
from ..guards.guard import NoOverlap
from ..lazy_dataclass import dataclass, field
from ..spec import TensorSpec
from .breaks import GraphBreak, MutatedInput
from .graph_notes import GraphNotes
from .values.base import CannotRebuild, Machine
from .values.tensors.leaves import check_leaves
from .values.tensors.tensor_hooks import check_hooks

__all__ = ["check_histories", "check_written_inputs"]

Span = tuple[str, int, int]  # device, first byte, end


def check_written_inputs(machine: Machine, notes: GraphNotes) -> None:
    """Break if a write changes more than values, or if a written input overlaps another input.

    Only checks what is new since the last call: optimizers write to hundreds of inputs.
    """
    known, writes = notes.of(_Compared), notes.graph.input_writes
    for node in dict.fromkeys(islice(writes, known.writes, None)):
        _check_change(node, notes.live(node))
    known.writes = len(writes)
    if notes.graph.is_transformed:
        return  # the graph runs operation by operation, and wrapped tensors have no address
    _check_apart(notes)
    if "no overlap" not in notes.marks:
        notes.marks.add("no overlap")
        machine.at_exit(lambda builder: _guard_separate(machine, notes))


def check_histories(notes: GraphNotes) -> None:
    """Raise CannotRebuild where the graph writes to a tensor that autograd has saved before.

    Eager raises when it differentiates a saved tensor that was written to; inside one compiled
    graph that error would be lost, so the write goes into the next graph. New leaves and hooks are
    checked too, because autograd does not see those inside a graph.
    """
    check_leaves(notes)
    check_hooks(notes)
    graph = notes.graph
    if graph.is_transformed:
        return  # autograd sees each operation of a graph that writes
    outputs = graph.differentiable_outputs()
    written = [node for node in graph.mutated_inputs if node.meta["val"].requires_grad]
    if not written:
        return
    reason = MutatedInput.of(why="the tensor takes part in autograd")
    # A non-leaf was computed before the call, so the write may be part of its own history.
    met = [node for node in written if not _is_leaf(node.meta["spec"])]
    if not met and any(map(is_stale, graph.history(outputs))):
        met = written
    if met:
        raise CannotRebuild("a tensor written to", _step_between(graph, met), reason)


def _step_between(graph: GraphBuilder, written: list[Node]) -> int:
    """Return the step to break at, so that writes and histories are in two graphs.

    That is the first write to something that a history has read by then, else the first write.
    """
    steps = [step for node in written if (step := _overwrites(graph, node)) is not None]
    return min(steps, default=min(graph.mutated_inputs[node] for node in written))


def _overwrites(graph: GraphBuilder, node: Node) -> int | None:
    """Return the step of the first write to an input's memory after a differentiable read."""
    writers = graph.writes.to(node)
    read = False
    for user in graph.graph.nodes:
        if user in writers and read:
            step: int = user.meta["step"]
            return step
        read = read or (node in user.all_input_nodes and graph.has_history(user))
    return None


def _is_leaf(spec: TensorSpec) -> bool:
    return spec.requires_grad and spec.is_leaf


def _check_change(node: Node, live: torch.Tensor | None) -> None:
    meta, spec = node.meta["val"], node.meta["spec"]
    layout = as_dimensions(meta.shape), as_dimensions(meta.stride())
    if layout != (spec.shape, spec.stride):
        raise GraphBreak(MutatedInput.of(why="its shape changes in place"))
    # Elements of an expanded tensor share memory: writing all of them back would undo some writes.
    if overlaps_itself(meta):
        raise GraphBreak(MutatedInput.of(why="its elements share memory"))
    is_inference = live is not None and live.is_inference()
    if is_inference and not torch.is_inference_mode_enabled():
        raise GraphBreak(MutatedInput.of(why="it is an inference tensor"))


@dataclass(slots=True)
class _Spans:
    """Byte ranges of inputs, sorted and merged where they overlap, for fast lookups.

    Each range names its input, or None if it has several.
    """

    _ranges: list[tuple[str, int, int, Node | None]] = field(default_factory=list)

    def _met(self, span: Span) -> slice:
        """Return the slice of the ranges that overlap `span`."""
        device, start, end = span
        if start >= end:
            return slice(0, 0)
        first = bisect_right(self._ranges, (device, start), key=itemgetter(0, 1))
        if first and self._ranges[first - 1][0] == device and self._ranges[first - 1][2] > start:
            first -= 1
        return slice(first, bisect_left(self._ranges, (device, end), key=itemgetter(0, 1)))

    def meet(self, span: Span, node: Node | None = None) -> bool:
        """Return whether a range that does not belong to `node` alone overlaps `span`."""
        return any(one[3] is None or one[3] is not node for one in self._ranges[self._met(span)])

    def add(self, node: Node, span: Span) -> None:
        """Add the byte range of an input."""
        device, start, end = span
        if start >= end:
            return
        index = self._met(span)
        met = self._ranges[index]
        if met:
            start, end = min(start, met[0][1]), max(end, met[-1][2])
        self._ranges[index] = [(device, start, end, None if met else node)]


@dataclass(slots=True)
class _Compared:
    """State of the overlap checks of a graph: byte ranges, and how much has been checked so far."""

    at: dict[Node, Span] = field(default_factory=dict)  # byte ranges of inputs, read once
    inputs: int = 0  # number of inputs checked
    written: int = 0  # number of written inputs checked
    writes: int = 0  # number of writes checked
    spans: _Spans = field(default_factory=_Spans)
    apart: _Spans = field(default_factory=_Spans)  # ranges of written inputs

    def read(self, node: Node, span: Span) -> None:
        """Check another input against the written ones."""
        self.spans.add(node, span)
        if self.apart.meet(span):
            raise _shared()

    def write(self, node: Node, span: Span) -> None:
        """Check a written input against all others."""
        if self.spans.meet(span, node):
            raise _shared()
        self.apart.add(node, span)


def _check_apart(notes: GraphNotes) -> None:
    """Break if a written input overlaps any other input; there may be hundreds of both."""
    known, written = notes.of(_Compared), notes.graph.mutated_inputs
    for node, entry in islice(notes.inputs.items(), known.inputs, None):
        if entry.is_memory:
            known.read(node, _span(notes, node))
    known.inputs = len(notes.inputs)
    for node in islice(written, known.written, None):
        known.write(node, _span(notes, node))
    known.written = len(written)


def _shared() -> GraphBreak:
    return GraphBreak(MutatedInput.of(why="another tensor that is used shares its memory"))


def _guard_separate(machine: Machine, notes: GraphNotes) -> None:
    """Guard that no input overlaps a written one; inputs that are only read may overlap."""
    written = list(notes.graph.mutated_inputs)
    # Inputs that overlap each other, such as views of one buffer, go into different groups, because
    # NoOverlap requires all of its members to be apart.
    groups: list[tuple[_Spans, list[Node]]] = [(_Spans(), [])]
    for node in _tensors(notes):
        if node in notes.graph.mutated_inputs:
            continue
        span = _span(notes, node)
        group = next((one for one in groups if not one[0].meet(span)), None)
        if group is None:
            groups.append(group := (_Spans(), []))
        group[0].add(node, span)
        group[1].append(node)
    for _, group_nodes in groups:
        members = [*written, *group_nodes]
        if len(members) > 1:
            machine.guard(NoOverlap(tuple(notes.inputs[node].source for node in members)))


def _tensors(notes: GraphNotes) -> Iterable[Node]:
    """Return the input nodes that are memory of the caller's, which excludes numbers and draws."""
    return (node for node, entry in notes.inputs.items() if entry.is_memory)


def _span(notes: GraphNotes, node: Node) -> Span:
    """Return the byte range of a live input; an empty tensor has an empty range."""
    known = notes.of(_Compared).at
    if node not in known:
        live = notes.live(node)
        assert live is not None
        # From the first to the last element. Two interleaved views (x[::2], x[1::2]) count as
        # overlapping.
        reach = sum((size - 1) * step for size, step in zip(live.shape, live.stride(), strict=True))
        start = live.data_ptr() if live.numel() else 0
        end = start + (reach + 1) * live.element_size() if live.numel() else 0
        known[node] = str(live.device), start, end
    return known[node]
