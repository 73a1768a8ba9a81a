"""Queries on ATen nodes and small graph operations shared by joint and partition.

Nodes are those of Recorder: placeholders, get_attr, ATen overloads, getitem on their tuples,
output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import torch
from torch.fx import Graph, GraphModule, Node

from ..graph.lazy_module import LazyModule
from ..graph.operators.foreign import has_side_effects
from ..graph.operators.raising import may_raise_on_data
from ..spec import TensorSpec
from ..torch_types import OpOverload

__all__ = [
    "alias_root",
    "copy_graph",
    "erase_dead",
    "flat_outputs",
    "flows_of",
    "is_view",
    "is_view_op",
    "mask_of",
    "module_of",
    "node_spec",
    "placeholders",
    "result_nodes",
    "runs_once",
]

aten = torch.ops.aten


def placeholders(gm: GraphModule) -> list[Node]:
    """Return the nodes that take the inputs, in order."""
    return list(gm.graph.find_nodes(op="placeholder"))


def flat_outputs(gm: GraphModule) -> Sequence[Node | None]:
    """Return the nodes that the graph returns."""
    flat: Sequence[Node | None] = gm.graph.output_node().args[0]  # type: ignore[assignment]
    return flat


def result_nodes(gm: GraphModule) -> list[Node]:
    """Return the nodes that the graph returns, none of which is missing."""
    found = [node for node in flat_outputs(gm) if node is not None]
    assert len(found) == len(flat_outputs(gm))
    return found


def copy_graph(graph: Graph, known: dict[Node, Node] | None = None) -> Graph:
    """Return a copy; `known` gets the copy of each node."""
    copied = Graph()
    copied.output(copied.graph_copy(graph, {} if known is None else known))
    return copied


def node_spec(node: Node) -> TensorSpec:
    """Return the spec of a tensor node."""
    spec: TensorSpec = node.meta["spec"]
    return spec


@lru_cache(maxsize=4096)
def is_view_op(op: object) -> bool:
    """Return whether the functional operation returns a view of its first argument."""
    if not isinstance(op, OpOverload) or op._schema.is_mutable or not op._schema.returns:
        return False
    # Mutable schemas return their argument, which is an alias too but no view: excluded above.
    return op._schema.returns[0].alias_info is not None


def is_view(node: Node) -> bool:
    """Return whether the node shares the memory of its first argument."""
    return node.op == "call_function" and is_view_op(node.target)


def mask_of(tangents: Iterable[int]) -> int:
    """Return a bit mask of tangent positions."""
    return sum(1 << place for place in set(tangents))


def flows_of(nodes: Iterable[Node], tangents: Sequence[Node]) -> dict[Node, int]:
    """Return the nodes that depend on tangents, each with a bit mask of these. For some the
    dependency is in the autograd history and not in data (`meta["tangents"]`).
    """
    flows = {node: 1 << i for i, node in enumerate(tangents)}
    for node in nodes:
        flow = flows.get(node, 0) | mask_of(node.meta.get("tangents", ()))
        for part in node.all_input_nodes:
            flow |= flows.get(part, 0)
        if flow and node.op != "output":
            flows[node] = flow
    return flows


def runs_once(node: Node) -> bool:
    """Return whether the node draws from a generator or has effects that only its kernel knows. It
    must run once, in order, even if its result is unused.
    """
    return node.op == "call_function" and has_side_effects(node.target)


def alias_root(node: Node) -> Node:
    """Return the base of a view, through all views in between; any other node itself."""
    # Views of views form chains as long as the program makes them: no recursion.
    while is_view(node):
        base = node.args[0]
        assert isinstance(base, Node)
        node = base
    return node


def erase_dead(graph: Graph) -> None:
    """Drop nodes without users. Placeholders, nodes with effects and readers of numbers
    (numbers_read_at_run_time.py) stay.
    """
    # From the end, so that a node whose only reader was dead is dead when it is reached.
    for node in reversed(graph.nodes):
        if node.users or node.op in ("placeholder", "output") or "traced_float" in node.meta:
            continue
        if not (node.target is aten.copy_.default or runs_once(node) or may_raise_on_data(node)):
            graph.erase_node(node)


def module_of(graph: Graph, constants: Mapping[str, torch.Tensor], name: str) -> LazyModule:
    """Return a module that runs `graph`, with the constants it reads."""
    module = torch.nn.Module()
    for node in graph.nodes:
        if node.op == "get_attr":
            module.register_buffer(node.target, constants[node.target], persistent=False)
    return LazyModule(module, graph, class_name=name)
