"""Derives the backward graphs that a call needs from the one of its partition.

`backward_without` reduces it to the tangents that are given: some results may get no gradient.

In: a Partition and the positions of missing tangents. Out: its backward graph without the values
that depend on those alone. A backward is linear in its tangents, so such values are zero; computed
from zeros they would be NaN where a local derivative is infinite. `freed_parts` lists the saved
values that such a backward frees: as in eager, two losses of one call can be differentiated one
after the other only if no part of the backward that reads saved values serves both. `SavedLayouts`
lets kernels choose the strides of values that only the backward reads: results and inputs, which
the user sees, never change.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from operator import or_

import torch
from torch.fx import Graph, GraphModule, Node

from ..graph.lazy_module import copy_node
from ..spec import TensorSpec, contiguous_strides
from .nodes import copy_graph, erase_dead, flows_of, mask_of, module_of, placeholders, runs_once
from .result import Partition

__all__ = ["SavedLayouts", "backward_without", "freed_parts", "stages_of", "tangent_nodes"]

aten = torch.ops.aten


def tangent_nodes(partition: Partition) -> list[Node]:
    """Return the placeholders of the backward graph that take the tangents: its last ones."""
    if partition.backward is None:
        return []
    holders = placeholders(partition.backward)
    return holders[len(holders) - len(partition.tangents) :]


def backward_without(backward: GraphModule, tangents: int, missing: Collection[int]) -> GraphModule:
    """Return the backward graph for these missing tangents, with all placeholders kept. Its last
    placeholders take the `tangents`.
    """
    if not missing:
        return backward
    nodes = list(backward.graph.nodes)
    holders = placeholders(backward)
    gone = _fed_by_missing(nodes, holders[len(holders) - tangents :], missing)
    # After this, the copy below contains neither the missing gradients nor what only they needed.
    gone |= _read_by(nodes, gone)
    graph = Graph()
    made: dict[Node, Node] = {}

    def value(node: Node) -> Node:
        if node not in made:
            made[node] = _zeros(graph, node)
        return made[node]

    for node in nodes:
        if node not in gone:
            copied = copy_node(graph, node, value)
            copied.meta.update(node.meta)
            made[node] = copied
    erase_dead(graph)
    return module_of(graph, dict(backward.named_buffers()), "Backward")


def freed_parts(partition: Partition) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Return the parts of the backward that read saved values: (tangents flowing through, saved
    read).

    Eager's nodes free their saved values after they ran; here nodes with the same tangents form one
    part. A part that reads no saved value can run repeatedly, unless eager's node saved a value
    that is a constant here.
    """
    if partition.backward is None:
        return ()
    flows = flows_of(partition.backward.graph.nodes, tangent_nodes(partition))
    saved: dict[Node, int] = {}  # forward values -> bits of the saved values they are computed from
    parts: dict[int, int] = {}
    for node in partition.backward.graph.nodes:
        if node.op == "output":
            _add_constant(parts, node, partition.reach, saved)
            continue
        reads = functools.reduce(or_, (saved.get(part, 0) for part in node.all_input_nodes), 0)
        if node in flows:
            if reads:
                parts[flows[node]] = parts.get(flows[node], 0) | reads
        elif node.op == "placeholder":
            saved[node] = 1 << len(saved)
        else:
            saved[node] = reads
    # Parts whose saved values are constants of the graph: eager frees them all the same, so a
    # second run must fail here too.
    for flow in partition.freed:
        parts.setdefault(flow, 0)
    return tuple((_bits(flow), _bits(reads)) for flow, reads in parts.items())


def stages_of(backward: GraphModule | None) -> tuple[int, ...]:
    """Return the stage of each gradient, () if there is only one."""
    if backward is None:
        return ()
    stages: tuple[int, ...] = backward.graph.output_node().meta.get("stages", ())
    return stages


def _add_constant(
    parts: dict[int, int], output: Node, reach: Sequence[tuple[int, ...]], saved: dict[Node, int]
) -> None:
    """Add gradients that no tangent flows into but that one has in its history. The gradient of
    `x.sqrt().floor()` is zero times what `sqrt` saved.
    """
    for gradient, reached_by in zip(output.args[0], reach, strict=True):  # type: ignore[arg-type]
        reads = saved.get(gradient, 0)  # type: ignore[call-overload]
        if reads and reached_by:
            flow = mask_of(reached_by)
            parts[flow] = parts.get(flow, 0) | reads


def _bits(mask: int) -> tuple[int, ...]:
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def _fed_by_missing(nodes: list[Node], tangents: list[Node], missing: Collection[int]) -> set[Node]:
    """Return the nodes that depend on missing tangents only, among them those of user-defined
    backwards that no gradient reaches.
    """
    absent = {tangents[i] for i in missing}
    depends = {node: node in absent for node in tangents}  # whether on missing ones alone
    gone: set[Node] = set()
    for node in nodes:
        if node.op in ("placeholder", "output"):
            continue
        below = [depends[part] for part in node.all_input_nodes if part in depends]
        # Data flow would be wrong in both directions here: see recording/custom.py.
        if "tangents" in node.meta:
            below = [i in missing for i in node.meta["tangents"]]
        if below:
            depends[node] = all(below)
            if depends[node]:
                gone.add(node)
    return gone


def _read_by(nodes: list[Node], gone: Collection[Node]) -> set[Node]:
    """Return the nodes computed only for `gone`. They must not run, not even to raise: eager's do
    not, and the saved values they read may be stand-ins.
    """
    idle: set[Node] = set()
    for node in reversed(nodes):
        alone = bool(node.users) and all(user in gone or user in idle for user in node.users)
        if alone and node.op == "call_function" and not runs_once(node):
            idle.add(node)
    return idle


def _zeros(graph: Graph, node: Node) -> Node:
    spec: TensorSpec = node.meta["spec"]
    zeros = graph.call_function(
        aten.full.default,
        (list(spec.shape), 0),
        {"dtype": spec.dtype, "device": spec.device, "pin_memory": False},
    )
    made = TensorSpec(spec.shape, contiguous_strides(spec.shape), spec.dtype, spec.device)
    zeros.meta.update(spec=made, lines=node.meta.get("lines", ()))
    return zeros


# -- strides that kernels choose ------------------------------------------------------------------


class SavedLayouts:
    """The last `count` outputs of a partition's forward, which only its backward reads."""

    __slots__ = ("_parts", "_strides", "count")

    def __init__(self, parts: Partition) -> None:
        self._parts, self.count = parts, parts.saved_intermediates
        self._strides: Mapping[int, tuple[int, ...]] = {}

    def set_strides(self, strides: Mapping[int, tuple[int, ...]]) -> None:
        """Set the strides of forward outputs (by position) that kernels lay out differently."""
        self._strides = strides

    def with_final_strides(self) -> Partition:
        """Return the partition with the backward's placeholders laid out as the forward returns
        them.
        """
        parts = self._parts
        if not self._strides or parts.backward is None:
            return parts
        old = parts.backward.graph
        graph = copy_graph(old)
        graph.output_node().meta.update(old.output_node().meta)
        holders = list(graph.find_nodes(op="placeholder"))
        first = len(parts.saved_inputs) + len(parts.saved_results) - parts.results
        for place, stride in self._strides.items():
            node = holders[first + place]
            spec = node.meta["spec"]
            node.meta.update(traced_stride=spec.stride, spec=replace(spec, stride=stride))
        constants = dict(parts.backward.named_buffers())
        return replace(parts, backward=module_of(graph, constants, "Backward"))
