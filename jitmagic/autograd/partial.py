"""The backward for the case that some results got no gradient.

In: a backward graph and the positions of the tangents that are missing. Out: the graph without what
hangs on those alone. A backward is linear in its tangents, so what only missing ones flow into is
zero; computed from zeros it would be NaN wherever a local derivative is infinite.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ..spec import TensorSpec
from .nodes import erase_dead, module_of

__all__ = ["backward_without"]

aten = torch.ops.aten


def backward_without(backward: GraphModule, tangents: int, missing: Collection[int]) -> GraphModule:
    """`tangents`: how many of the last placeholders are tangents. All placeholders stay."""
    if not missing:
        return backward
    nodes = list(backward.graph.nodes)
    holders = [node for node in nodes if node.op == "placeholder"]
    gone = _fed_by_missing(nodes, holders[len(holders) - tangents :], missing)
    graph = Graph()
    made: dict[Node, Node] = {}

    def value(node: Node) -> Node:
        if node not in made:
            made[node] = _zeros(graph, node)
        return made[node]

    for node in nodes:
        if node not in gone:
            copied = graph.node_copy(node, value)
            copied.meta.update(node.meta)
            made[node] = copied
    erase_dead(graph)
    return module_of(graph, dict(backward.named_buffers()), "Backward")


def _fed_by_missing(nodes: list[Node], tangents: list[Node], missing: Collection[int]) -> set[Node]:
    """Nodes that depend on missing tangents and on no other."""
    absent = {tangents[i] for i in missing}
    depends = {node: node in absent for node in tangents}  # -> whether on missing ones alone
    gone: set[Node] = set()
    for node in nodes:
        if node.op in ("placeholder", "output"):
            continue
        below = [depends[part] for part in node.all_input_nodes if part in depends]
        if below:
            depends[node] = all(below)
            if depends[node]:
                gone.add(node)
    return gone


def _zeros(graph: Graph, node: Node) -> Node:
    spec: TensorSpec = node.meta["spec"]
    facts: dict[str, Any] = {"dtype": spec.dtype, "device": spec.device, "pin_memory": False}
    zeros = graph.call_function(aten.full.default, (list(spec.shape), 0), facts)
    stride = torch.empty(spec.shape, device="meta").stride()
    made = TensorSpec(spec.shape, stride, spec.dtype, spec.device)
    zeros.meta.update(spec=made, lines=node.meta.get("lines", ()))
    return zeros
