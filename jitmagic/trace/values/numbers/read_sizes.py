"""Uses a number read from a tensor as a size: `zeros(n)`, `x[:n]`, `split(x, lengths.tolist())`.

Input: an expression over symbols of such numbers. Output: a Size over unbacked symbols, which are
read from the graph's tensors where calls need them (graph/symbolic/size_nodes.py). The trace
assumes that the numbers are valid sizes. For an invalid one the graph raises, and eager runs the
frame from its start; if the frame cannot be restarted, the graph breaks before the read.
"""

from __future__ import annotations

from typing import Any

from ....graph.symbolic.size_nodes import LARGEST_SIZE
from ....symbols.expr import Expr
from ....symbols.polynomial import is_integral, normal
from ....symbols.scalar import Symbol, evaluate, symbols_of
from ....symbols.size import Dimension, Size, size_of
from ...breaks import TensorItem
from ...residual.undo import can_be_copied
from ..base import Machine
from .speculation import require_restart

__all__ = ["size_from_data"]


def size_from_data(machine: Machine, expr: Expr) -> Dimension | None:
    """Return the expression as a size; None if a symbol is not a number in the graph."""
    known: dict[Expr, Any] = {}
    for symbol in symbols_of(expr):
        if machine.symbols.are_sizes((symbol,)):
            known[symbol] = size_of(symbol, machine.symbols)
        elif (size := _size_of_number(machine, symbol)) is not None:
            known[symbol] = size
        else:
            return None
    if not is_integral(normal(expr)):
        return None
    made: Dimension = evaluate(expr, known)
    return made


def _size_of_number(machine: Machine, symbol: Symbol) -> Size | None:
    symbols, graph = machine.symbols, machine.graph
    if symbol in symbols.read_sizes:
        known: Size = symbols.read_sizes[symbol]
        return known
    node = symbols.read_from.get(symbol)
    if node is None or graph.fresh_size is None or symbol.range.high < 0:
        return None
    low, high = max(symbol.range.low, 0), min(symbol.range.high, LARGEST_SIZE)
    size: Size | None = graph.fresh_size(int(low), int(high))
    if size is not None:
        # A drawn number: partitions begin with a call, not an input (graph/symbolic/data_split.py).
        if node.op == "placeholder":
            node = graph.call("clone", (node,), {}, machine.lines())
        symbols.read_sizes[symbol] = size
        graph.sizes.add_number(node, size.expr)
        # For an invalid size eager runs the frame from its start, so inputs that the graph may have
        # written by then are restored from copies.
        why = TensorItem.of(what="a tensor used as a size")
        require_restart(machine, graph, can_be_copied, "a size read from data", why)
    return size
