"""Makes a torch-level graph take its symbolic sizes as inputs, as the graphs of torch.compile do.

Input: a graph that reads sizes from its inputs, and where each symbol is read. Output: the same
graph with a placeholder for each symbol, which torch.fx types as SymInt, before the first input
that has it, and the order of all its inputs. An input that was read only for its sizes is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ...symbols.expr import Expr
from ...symbols.size import Dimension, Size
from ...symbols.symbolic_numbers import Symbol
from ..lazy_module import LazyModule

__all__ = ["Order", "is_size", "size_in_order", "with_size_inputs"]

Order = tuple[int, ...]  # for each input: the position n of a tensor, or ~n of a symbol


def is_size(place: int) -> bool:
    """Return whether an item of an Order is a symbol."""
    return place < 0


def size_in_order(place: int) -> int:
    """Return the position of the symbol that an item of an Order is."""
    return ~place


def with_size_inputs(
    gm: GraphModule, places: Mapping[Symbol, tuple[int, int]], known: Sequence[Dimension]
) -> tuple[GraphModule, Order]:
    """Return the graph that takes each of these symbols as an int, and the order of its inputs.

    `places`: (input, dimension) of each symbol. Symbols that are ints in `known` become constants.
    """
    made: dict[Node, Any] = {}
    pairs = zip(places, known, strict=True)
    sizes: dict[Expr, Any] = {symbol: size for symbol, size in pairs if type(size) is int}
    order: dict[Node, int] = {}
    graph = Graph()
    positions = {symbol: position for position, symbol in enumerate(places)}
    for place, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        for symbol, (first, _) in places.items():
            if first == place and symbol not in sizes:
                sizes[symbol] = _size_input(graph, symbol)
                order[sizes[symbol]] = ~positions[symbol]
        made[node] = _copy(graph, node, made)
        order[made[node]] = place
    for node in gm.graph.nodes:
        size = node.meta.get("val")
        if isinstance(size, Size) and size.expr in sizes:
            made[node] = sizes[size.expr]
        elif node.op != "placeholder":
            made[node] = _copy(graph, node, made)
    for node in [one for one, place in order.items() if not is_size(place) and not one.users]:
        graph.erase_node(node)
        del order[node]
    return LazyModule(gm, graph), tuple(order.values())


def _size_input(graph: Graph, symbol: Symbol) -> Node:
    node = graph.placeholder(symbol.name, type_expr=torch.SymInt)
    node.target = node.name  # fx makes node names unique, not parameters
    return node


def _copy(graph: Graph, node: Node, made: Mapping[Node, Any]) -> Node:
    """Copy a node without the specs of the trace, whose sizes belong to another Context."""
    copy = graph.node_copy(node, made.__getitem__)
    if copy.op == "placeholder":
        copy.target = copy.name
    copy.meta = {"lines": node.meta.get("lines", ())}
    return copy
