"""`tensor.item()` of a counter: a number that an optimizer keeps in a tensor, as data.

Comes in: a 0-dim CPU input of the graph that the trace only added to. Goes out: a ScalarValue whose
symbol has no hint: nothing is decided by it that its range does not decide.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ...graph.builder import GraphBuilder
from ...graph.node_meta import device_of
from ...guards.guard import InRange
from ...guards.source import Source, describe
from ...symbols.interval import Interval
from ...symbols.scalar import Symbol
from ..breaks import GraphBreak, UnsupportedOperation
from .base import Machine, Value
from .scalars import ScalarValue

__all__ = ["read_counter"]

_LARGEST = 2.0**40  # of what is counted in tensors
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Count:
    """The origin of such a symbol: the counter, after so much was added to it."""

    source: Source
    added: int


def read_counter(
    machine: Machine, node: Node, live: torch.Tensor | None, source: Source | None
) -> Value | None:
    """`tensor.item()`; None: break."""
    graph: GraphBuilder = machine.graph
    if machine.symbols.varying is None or live is None or source is None or live.dim():
        return None
    if device_of(node) != _CPU or live.dtype not in (torch.float32, torch.float64):
        return None
    added = _added(graph, node)
    if added is None or not 0 <= live.item() <= _LARGEST:
        return None
    origin = Count(source, added)
    if (asked := machine.symbols.constants.get(origin)) is not None:
        broken = GraphBreak(UnsupportedOperation.of(what=asked.why, types="number from a tensor"))
        broken.where = asked.where
        raise broken
    machine.guard(InRange(source, 0.0, _LARGEST))
    value = graph.call("to", [node, torch.float64], {"copy": True}, machine.lines())
    symbol = Symbol(describe(source), float, Interval(float(added), 2 * _LARGEST), origin)
    machine.symbols.add(symbol, None)
    return ScalarValue(float, symbol, value)


def _added(graph: GraphBuilder, node: Node) -> int | None:
    """The sum of small natural numbers that the trace added to an input; None: it did more."""
    total = 0
    for each in graph.writers.get(node.meta["val"].untyped_storage()._cdata, ()):
        amount = _amount(each, node)
        if amount is None or amount not in range(1 << 16):
            return None
        total += int(amount)
    return total


def _amount(each: Node, node: Node) -> float | None:
    """What a node adds to the counter: `count += n`, or for many _foreach_add_(counts, n)."""
    if each.target is operator.iadd and each.args[0] is node:
        factor: Any = 1
    elif each.target is torch._foreach_add_ and node in each.args[0]:  # type: ignore[operator]
        factor = each.kwargs.get("alpha", 1)
    else:
        return None
    added: Any = each.args[1]
    if isinstance(added, Node) and added.target is torch.tensor and not added.users.keys() - {each}:
        added = added.args[0]
    numbers = isinstance(added, int | float) and isinstance(factor, int | float)
    return added * factor if numbers else None
