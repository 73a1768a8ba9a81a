"""Models `tensor.item()` of a step counter, which an optimizer stores in a tensor.

Input: a 0-dim CPU input of the graph that the trace only added to. Output: a ScalarValue whose
symbol has no hint, so that only its range decides branches. If a branch needs more, the next
attempt at the trace uses this call's value as a hint, and guards the branches that it decides.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from ....graph.builder import GraphBuilder
from ....graph.node_meta import device_of
from ....guards.guard import InRange
from ....guards.source import Source, describe
from ....symbols.interval import Interval
from ....symbols.scalar import Symbol
from ...breaks import GraphBreak, UnsupportedOperation
from ...varying.symbolic import Count, KnownCount
from ..base import Machine, Value
from ..objects.class_facts import belongs_to_torch
from .scalars import ScalarValue

__all__ = ["read_counter"]

_LARGEST = 2.0**40  # the largest count that is modelled
_EXACT_IN_TENSORS = 2**24  # integers up to it are float32
_CPU = torch.device("cpu")


def read_counter(
    machine: Machine, node: Node, live: torch.Tensor | None, source: Source | None
) -> Value | None:
    """Return the value of `tensor.item()`, or None for a graph break.

    torch's optimizers read their step count this way, and their code is inlined.
    """
    graph: GraphBuilder = machine.graph
    by_torch = belongs_to_torch(str(machine.frame.globals.store.live.get("__name__")))
    if by_torch and live is None and (count := _count_from(graph, node)) is not None:
        counted: Value = machine.constant(count)
        return counted
    if live is None or source is None or live.dim():
        return None
    if machine.symbols.varying is None and not by_torch:
        return None
    if graph is not graph.root:  # the number may outlive the region that is being traced
        return None
    if device_of(node) != _CPU or live.dtype not in (torch.float32, torch.float64):
        return None
    added = _added(graph, node)
    if added is None or not 0 <= live.item() <= _LARGEST:
        return None
    # All parameters' counters are read by the same code: if one needed a hint, all need one. A
    # counter in user code gets none: a program that acts at every tenth step would be compiled once
    # for each count.
    known = by_torch and any(isinstance(one, Count) for one in machine.symbols.constants)
    origin = KnownCount(source, added) if known else Count(source, added)
    if (refused := machine.symbols.constants.get(origin)) is not None:
        broken = GraphBreak(UnsupportedOperation.of(what=refused.why, types="number from a tensor"))
        broken.where = refused.where
        raise broken
    count = float(live.item() + added)
    whole = known and count.is_integer() and count <= _EXACT_IN_TENSORS
    largest = float(_EXACT_IN_TENSORS) if whole else _LARGEST
    machine.guard(InRange(source, 0.0, largest - added, whole))
    value = graph.call("to", [node, torch.float64], {"copy": True}, machine.lines())
    # backend="eager" computes marked nodes by Python's arithmetic: a step of AdamW has eleven for
    # each parameter, and as tensor operations they made it 1.7x eager (0.84x with Python's).
    value.meta["python"] = True
    # Up to 2**24, float32 adds whole numbers without rounding.
    limits = Interval(float(added), largest if whole else 2 * _LARGEST)
    symbol = Symbol(describe(source), float, limits, origin, whole)
    machine.symbols.add(symbol, count if known else None)
    return ScalarValue(float, symbol, value)


def _count_from(graph: GraphBuilder, node: Node) -> float | None:
    """Return the value of a counter that the trace created: its start plus the additions."""
    start = 0.0 if node.target is torch.zeros else node.target is torch.tensor and node.args[0]
    added = _added(graph, node)
    counts = node.meta["val"].dtype in (torch.float32, torch.float64)
    if type(start) is not float or not start.is_integer() or not counts or added is None:
        return None
    return start + added if start >= 0 and start + added <= _EXACT_IN_TENSORS else None


def _added(graph: GraphBuilder, node: Node) -> int | None:
    """Return the sum of small natural numbers added to an input; None if other writes exist."""
    total = 0
    for each in graph.writes.to(node):
        amount = _amount(each, node)
        if amount is None or amount not in range(1 << 16):
            return None
        total += int(amount)
    return total


def _amount(each: Node, node: Node) -> float | None:
    """Return what a node adds to the counter by `count += n` or _foreach_add_(counts, n)."""
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
