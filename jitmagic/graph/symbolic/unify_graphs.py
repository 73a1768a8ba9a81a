"""Unifies a program's graphs at two size tuples into one graph for all sizes.

Input: two ATen graphs, of the same calls in the same order. Output: a graph with Sizes where their
numbers differ. It is a conjecture: `fits` checks it against the graph found at other sizes, in
which each argument and each spec has to be equal.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ...spec import TensorSpec
from ...symbols.context import Context
from ...symbols.expr import Expr
from ...symbols.reading import Readings
from ...symbols.size import size_of, value_of
from ..lazy_module import LazyModule

__all__ = ["GraphsDiffer", "fits", "merge_graphs", "same", "unify"]

Join = Callable[[Any, Any], Any]
Counterparts = dict[Node, Node]
_COMPARED = (int, bool, str, complex, torch.dtype, torch.device, torch.layout, torch.memory_format)


_FEW = 4096  # elements of constants that are compared by value


class GraphsDiffer(Exception):
    """Raised if two graphs are not visibly one program's at different sizes."""


def unify(
    first: GraphModule, second: GraphModule, readings: Readings, context: Context
) -> GraphModule:
    """Return the graph with Sizes of `context` for numbers that differ. Raises GraphsDiffer."""

    def join(a: Any, b: Any) -> Any:
        if type(a) is not int or type(b) is not int:
            return same(a, b)
        expr = readings.read(a, b)
        if expr is None:
            raise GraphsDiffer(f"{a} and {b} are not a recognised function of the sizes")
        return size_of(expr, context)

    return merge_graphs(first, second, join, {})


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


def fits(symbolic: GraphModule, concrete: GraphModule, known: dict[Expr, int]) -> bool:
    """Return whether the graph with these values of its symbols equals the concrete one."""

    def join(a: Any, b: Any) -> Any:
        same(value_of(a, known), b)
        return a

    counterparts = Counterparts()
    try:
        for node, other in _pairs(symbolic, concrete):
            counterparts[node] = other
            _joined((node.args, node.kwargs), (other.args, other.kwargs), counterparts, join)
            _joined(node.meta.get("spec"), other.meta.get("spec"), counterparts, join)
    except GraphsDiffer:
        return False
    return True


def _pairs(first: GraphModule, second: GraphModule) -> list[tuple[Node, Node]]:
    """Return pairs of corresponding nodes. Raises GraphsDiffer if their calls differ."""
    pairs = list(zip(first.graph.nodes, second.graph.nodes, strict=False))
    if len(pairs) != max(len(first.graph.nodes), len(second.graph.nodes)):
        raise GraphsDiffer("the graphs have different nodes")
    for a, b in pairs:
        if a.op != b.op or (a.op == "call_function" and a.target is not b.target):
            raise GraphsDiffer(f"{a.target} is {b.target} at other sizes")
        if a.op == "get_attr" and not _is_one(_attribute(first, a), _attribute(second, b)):
            raise GraphsDiffer(f"the constant {a.target} differs at other sizes")
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
            return _joined_spec(a, b, counterparts, join)
        case (tuple(), tuple()) | (list(), list()) if len(a) == len(b):
            made = [_joined(x, y, counterparts, join) for x, y in zip(a, b, strict=True)]
            return made if isinstance(a, list) else tuple(made)
        case dict(), dict() if a.keys() == b.keys():
            return {key: _joined(a[key], b[key], counterparts, join) for key in a}
    return join(a, b)


def _joined_spec(
    a: TensorSpec, b: TensorSpec, counterparts: Counterparts, join: Join
) -> TensorSpec:
    sizes = {
        name: _joined(getattr(a, name), getattr(b, name), counterparts, join)
        for name in ("shape", "stride", "storage_offset")
    }
    made = replace(a, **sizes)
    if replace(b, **sizes) != made:
        raise GraphsDiffer(f"{a} is {b}")
    return made


def same(a: Any, b: Any) -> Any:
    """Return the value if both are indistinguishable, else raise GraphsDiffer. Objects of other
    types are compared by identity.
    """
    if a is b or (type(a) is type(b) and _equal(a, b)):
        return a
    raise GraphsDiffer(f"{a!r} is {b!r}")


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float):  # == would equate 0.0 with -0.0, and distinguish nan from nan
        return bool(a.hex() == b.hex())
    return isinstance(a, _COMPARED) and bool(a == b)
