"""Models the number in a one-element input: flags and counters that modules hold in buffers.

Input: a live CPU tensor, not written to so far, read as a number or for its truth. Output: a symbol
whose hint is the tensor's value, so that a branch on it is decided and guarded (InRange) like one
on a Python number. If a use needs a constant, the next attempt at the trace breaks at the read.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from ....graph.memory import storage_of
from ....graph.node_meta import device_of
from ....guards.guard import READ_BY_GUARDS
from ....guards.source import describe
from ....symbols.expr import Integer
from ....symbols.interval import ANY_FLOAT, Interval
from ....symbols.scalar import Symbol, constant
from ...varying.symbolic import InputNumber
from ..base import Machine

__all__ = ["decided_by_input", "symbol_of_input"]

_COMPARISONS: Mapping[Any, str] = {
    operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<=",
    operator.gt: ">", operator.ge: ">=",
}  # fmt: skip
_EXACT_IN_FLOAT = 2**24  # float32 holds integers exactly up to here
_VIEWS = (operator.getitem, "view", "reshape", "squeeze", "flatten", "detach", "select")


def symbol_of_input(machine: Machine, node: Node) -> Symbol | None:
    """Return the symbol of the number in an input; None if guards cannot read it."""
    graph = machine.graph
    node = _whole(node)
    owner = machine.notes.owners.get(node) if node.op == "placeholder" else None
    if owner is None or owner.live is None or graph.writes.to(node):
        return None
    source, live, symbols = owner.source, owner.live, machine.symbols
    if source is None or device_of(node).type != "cpu":
        return None
    origin = InputNumber(source)
    is_read = live.numel() == 1 and live.dtype in READ_BY_GUARDS
    if origin in symbols.constants or not is_read:
        return None
    symbol: Symbol | None = symbols.values.get(source)
    hint, limits = live.item(), _limits(live.dtype)
    if symbol is None and limits.has(hint):
        kind = float if live.dtype.is_floating_point else int
        symbol = symbols.values[source] = Symbol(describe(source), kind, limits, origin)
        symbols.add(symbol, hint)
    return symbol


def _whole(node: Node) -> Node:
    """Return the tensor that a one-element view was taken from: `flag[0]`, `flag.squeeze()`."""
    while node.target in _VIEWS and isinstance(source := node.args[0], Node):
        whole, part = source.meta["val"], node.meta["val"]
        if not (isinstance(whole, torch.Tensor) and isinstance(part, torch.Tensor)):
            return node
        if whole.numel() != 1 or part.numel() != 1 or storage_of(source) != storage_of(node):
            return node
        node = source
    return node


def decided_by_input(machine: Machine, node: Node) -> bool | None:
    """Return the guarded `bool(tensor)` of an input, or of its comparison with a number."""
    op, operand, number = "!=", node, 0
    if node.op == "call_function" and node.target in _COMPARISONS and not node.kwargs:
        op = _COMPARISONS[node.target]
        operand, number = node.args  # type: ignore[assignment]
    if not isinstance(operand, Node) or type(number) not in (bool, int, float):
        return None
    symbol = symbol_of_input(machine, operand) if _is_exact(operand, number) else None
    if symbol is None:
        return None
    other = constant(number) if symbol.kind is float else Integer(int(number))
    return machine.symbols.decide(op, symbol, other)


def _limits(dtype: torch.dtype) -> Interval:
    if dtype is torch.bool:
        return Interval(0, 1)
    if dtype.is_floating_point:
        return ANY_FLOAT._replace(nan=False)
    info = torch.iinfo(dtype)
    return Interval(info.min, info.max)


def _is_exact(node: Node, number: float) -> bool:
    """Return whether tensors compare with the number as Python does, without rounding it."""
    meta = node.meta["val"]
    if not isinstance(meta, torch.Tensor) or abs(number) > _EXACT_IN_FLOAT:
        return False
    if meta.dtype is torch.float32:
        return float(torch.tensor(number, dtype=torch.float32)) == number
    return meta.dtype is torch.float64 or float(number).is_integer()
