"""Nodes of a graph for the sizes that its calls take.

Comes in: arguments of a call with Sizes (or SymInts) in them. Goes out: the arguments with nodes in
their place: `aten.sym_size.int` of an input for a symbol, calls of `operator` for arithmetic. One
node for each expression; its meta `val` is the Size.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from ..errors import UserLine
from ..symbols.context import Context, Specialize
from ..symbols.expr import Expr, Integer
from ..symbols.polynomial import operation
from ..symbols.scalar import Symbol, symbols_of
from ..symbols.size import Size, size_of
from .sym_node import as_dimension, sizes_in

__all__ = ["SizeNodes", "refuse_sizes"]

aten = torch.ops.aten
_CALLS: dict[str, Callable[..., Any]] = {
    "+": operator.add, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip


def refuse_sizes(*values: Any) -> None:
    """What has graphs of its own is made for ints: raises Specialize where there are others."""
    sizes = dict.fromkeys(size.expr for size in sizes_in(values))
    if sizes:
        symbols = dict.fromkeys(symbol for expr in sizes for symbol in symbols_of(expr))
        raise Specialize(symbols, "a function with a graph of its own")


class SizeNodes:
    """Those of one graph. `inputs`: where each symbol is read."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._made: dict[Expr, Node] = {}
        self.inputs: dict[Expr, tuple[Node, int]] = {}

    def add_input(self, node: Node, shape: Sequence[Any]) -> None:
        """An input; symbols that it is the first to have are read off it."""
        for dim, size in enumerate(shape):
            if isinstance(size, Size) and isinstance(size.expr, Symbol):
                self.inputs.setdefault(size.expr, (node, dim))

    def in_arguments(self, value: Any, lines: tuple[UserLine, ...], step: int) -> Any:
        """The nested arguments with a node for each size."""
        if isinstance(value, torch.SymInt):
            value = as_dimension(value)
        if isinstance(value, Size):
            return self._node(value.expr, value.context, lines, step)
        if isinstance(value, dict):
            return {key: self.in_arguments(item, lines, step) for key, item in value.items()}
        if type(value) in (tuple, list, torch.Size):
            items = [self.in_arguments(item, lines, step) for item in value]
            return items if type(value) is list else tuple(items)
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return slice(*(self.in_arguments(part, lines, step) for part in parts))
        return value

    def _node(self, expr: Expr, context: Context, lines: tuple[UserLine, ...], step: int) -> Any:
        if isinstance(expr, Integer):
            return expr.value
        if (known := self._made.get(expr)) is not None:
            return known
        target: Any = aten.sym_size.int
        if isinstance(expr, Symbol):
            args: tuple[Any, ...] = self.inputs[expr]
        else:
            op, *operands = operation(expr)
            target = _CALLS[op]
            args = tuple(self._node(one, context, lines, step) for one in operands)
        node = self._made[expr] = self._graph.call_function(target, args)
        node.meta.update(val=size_of(expr, context), spec=None, lines=lines, step=step)
        return node
