"""Queries on ATen nodes and small graph operations shared by joint and partition.

Nodes are those of Recorder: placeholders, get_attr, ATen overloads, getitem on their tuples,
output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Graph, Node

from ..graph.lazy_module import LazyModule
from ..graph.operators.foreign import has_side_effects
from ..graph.operators.raising import may_raise_on_data

__all__ = [
    "alias_root",
    "erase_dead",
    "flows_of",
    "is_view",
    "is_view_op",
    "mask_of",
    "module_of",
    "runs_once",
]

aten = torch.ops.aten


@lru_cache(maxsize=4096)
def is_view_op(op: Any) -> bool:
    """Return whether the functional operation returns a view of its first argument."""
    schema = getattr(op, "_schema", None)
    if schema is None or schema.is_mutable or not schema.returns:
        return False
    # Mutable schemas return their argument, which is an alias too but no view: excluded above.
    return schema.returns[0].alias_info is not None


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
    (varying_numbers.py) stay.
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
