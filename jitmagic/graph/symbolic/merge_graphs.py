"""Merges two traces of one program, made with other numbers, into one graph.

Input: two ATen graphs, of the same calls in the same order. Output: the graph with what the caller
puts where their numbers differ. Raises GraphsDiffer for graphs that differ otherwise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ...spec import TensorSpec
from ...symbols.size import Size, is_same
from ..lazy_module import LazyModule

__all__ = ["GraphsDiffer", "merge_graphs", "same"]

Join = Callable[[object, object], object]
Counterparts = dict[Node, Node]
_COMPARED = (int, bool, str, complex, torch.dtype, torch.device, torch.layout, torch.memory_format)
_FEW = 4096  # elements of constants that are compared by value


class GraphsDiffer(Exception):
    """Raised if two graphs are not visibly traces of one program."""


def merge_graphs(
    first: GraphModule, second: GraphModule, join: Join, copies: dict[Node, Node]
) -> GraphModule:
    """Return the graph with `join(a, b)` of values that differ; nodes that `join` adds come before
    the node that it is called for. `copies` receives the node for each of the first graph's.
    """
    graph, counterparts = Graph(), Counterparts()
    for node, other in _pairs(first, second):
        copy = copies[node] = graph.node_copy(node, copies.__getitem__)
        with graph.inserting_before(copy):
            _join_node(copy, other, counterparts, join)
    return LazyModule(first, graph)


def _pairs(first: GraphModule, second: GraphModule) -> list[tuple[Node, Node]]:
    """Return pairs of corresponding nodes. Raises GraphsDiffer if their calls differ."""
    pairs = list(zip(first.graph.nodes, second.graph.nodes, strict=False))
    if len(pairs) != max(len(first.graph.nodes), len(second.graph.nodes)):
        raise GraphsDiffer("the graphs have different nodes")
    for a, b in pairs:
        if a.op != b.op or (a.op == "call_function" and a.target is not b.target):
            raise GraphsDiffer(f"{a.target} is {b.target} in the other trace")
        if a.op == "get_attr" and not _is_one(_attribute(first, a), _attribute(second, b)):
            raise GraphsDiffer(f"the constant {a.target} differs in the other trace")
    return pairs


def _attribute(gm: GraphModule, node: Node) -> Any:
    return operator.attrgetter(str(node.target))(gm)


def _is_one(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two traces have the same constant; literals are compared by value."""
    if a is b:
        return True
    if (a.dtype, a.shape, a.stride(), a.device) != (b.dtype, b.shape, b.stride(), b.device):
        return False
    if a.data_ptr() == b.data_ptr():
        return a.numel() > 0
    few = a.numel() <= _FEW and a.device.type == "cpu"
    return few and repr(a.tolist()) == repr(b.tolist())


def _join_node(node: Node, other: Node, counterparts: Counterparts, join: Join) -> None:
    counterparts[node] = other
    spec = _joined(node.meta.get("spec"), other.meta.get("spec"), counterparts, join)
    node.meta = {**node.meta, "spec": spec}
    if node.op in ("call_function", "output"):
        node.args = _joined(tuple(node.args), tuple(other.args), counterparts, join)
        node.kwargs = _joined(dict(node.kwargs), dict(other.kwargs), counterparts, join)


def _joined(a: Any, b: Any, counterparts: Counterparts, join: Join) -> Any:
    match a, b:
        case Node(), _:
            if counterparts[a] is not b:
                raise GraphsDiffer(f"{a.name} is used elsewhere")
            return a
        case TensorSpec(), TensorSpec():
            for field in fields(a):
                _joined(getattr(a, field.name), getattr(b, field.name), counterparts, join)
            return a
        case (tuple(), tuple()) | (list(), list()) if len(a) == len(b):
            made = [_joined(x, y, counterparts, join) for x, y in zip(a, b, strict=True)]
            return made if isinstance(a, list) else tuple(made)
        case dict(), dict() if a.keys() == b.keys():
            return {key: _joined(a[key], b[key], counterparts, join) for key in a}
    return join(a, b)


def same(a: object, b: object) -> Any:
    """Return the value if both are indistinguishable, else raise GraphsDiffer. Objects of other
    types are compared by identity.
    """
    if a is b or (type(a) is type(b) and _equal(a, b)):
        return a
    raise GraphsDiffer(f"{a!r} is {b!r}")


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float):  # == would equate 0.0 with -0.0, and distinguish nan from nan
        return bool(a.hex() == b.hex())
    if isinstance(a, Size):
        return is_same(a, b)
    return isinstance(a, _COMPARED) and bool(a == b)
