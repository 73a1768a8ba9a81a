"""Computes scalar arithmetic of a graph that runs as Python in Python, as eager does.

Input: a torch-level graph whose numbers are 0-dim nodes with `meta["python"]` (node_meta.py).
Output: the same graph with Python arithmetic in their place. A 0-dim tensor remains only where an
operation other than a product or a sum takes the number. An operation on 0-dim tensors costs a
microsecond, one on floats 50 ns: a step of AdamW has eleven of them for each parameter.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ...operators.operation import operation
from ...torch_types import AnyFunction
from ..lazy_module import copy_node
from ..target_names import target_name

__all__ = ["in_python"]

_BY_PYTHON: Mapping[Any, AnyFunction] = {
    **{one: one for one in (operator.add, operator.sub, operator.mul, operator.truediv,
                            operator.floordiv, operator.mod, operator.pow, operator.neg)},
    torch.pow: operator.pow, torch.abs: operator.abs, torch.sqrt: math.sqrt, torch.exp: math.exp,
    torch.log: math.log, torch.tanh: math.tanh, torch.sin: math.sin, torch.cos: math.cos,
}  # fmt: skip
_WIDE = (torch.float32, torch.float64)


def in_python(gm: GraphModule) -> GraphModule:
    """Return the graph with its numbers computed by Python; the same module if it has none."""
    numbers: set[Node] = set()
    for node in gm.graph.nodes:
        if _is_number(node, numbers):
            numbers.add(node)
    return GraphModule(gm, _Rewriter(numbers).rewrite(gm.graph)) if numbers else gm


def _is_number(node: Node, numbers: set[Node]) -> bool:
    if not node.meta.get("python"):
        is_cast = node.op == "call_method" and node.target == "to" and node.args[0] in numbers
        return is_cast and _is_operand(node)
    if node.target is torch.full:
        return type(node.args[1]) in (int, float)
    return node.target in _BY_PYTHON or _is_read(node)


def _is_read(node: Node) -> bool:
    return node.target == "to" and node.args[1:] == (torch.float64,)


def _is_operand(node: Node) -> bool:
    """Return whether a number has the dtype of all tensors that it is combined with."""
    dtype = node.meta["spec"].dtype
    return dtype in _WIDE and all(_takes(user, node, dtype) for user in node.users)


def _takes(user: Node, number: Node, dtype: torch.dtype) -> bool:
    row = operation(target_name(user.target))  # type: ignore[arg-type]
    if not row.exact_numbers or len(user.args) != 2 or user.kwargs:
        return False
    tensor, other = user.args
    if other is not number or tensor is number or not isinstance(tensor, Node):
        return False
    return tensor.meta["spec"].dtype is dtype


class _Rewriter:
    """Builds the new graph and maps the old nodes to it."""

    def __init__(self, numbers: set[Node]) -> None:
        self.numbers = numbers
        self.graph = Graph()
        self._made: dict[Node, Any] = {}

    def rewrite(self, graph: Graph) -> Graph:
        for node in graph.nodes:
            if node in self.numbers:
                self._made[node] = self._number(node)
            else:
                self._made[node] = copy_node(self.graph, node, self._tensor)
        return self.graph

    def _number(self, node: Node) -> Any:
        if node.target is torch.full:
            return node.args[1]
        if node.target == "to":
            operand = self._operand(node.args[0])
            return operand if _is_cast(node) else self.graph.call_function(float, (operand,))
        operands = tuple(self._operand(arg) for arg in node.args)
        return self.graph.call_function(_BY_PYTHON[node.target], operands)

    def _operand(self, arg: object) -> Any:
        if not isinstance(arg, Node):
            return arg
        made = self._made[arg]
        return made if arg in self.numbers else self.graph.call_method("item", (made,))

    def _tensor(self, node: Node) -> Any:
        """Return the argument of a node that stays: products take the number itself."""
        made = self._made[node]
        if node not in self.numbers or _is_cast(node):
            return made
        spec = node.meta["spec"]
        return self.graph.call_function(
            torch.full, ((), made), {"dtype": spec.dtype, "device": spec.device}
        )


def _is_cast(node: Node) -> bool:
    return node.target == "to" and not node.meta.get("python")
