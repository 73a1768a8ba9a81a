"""Numbers read from tensors, where only the graph can tell that an operation does not raise.

Comes in: a number, and what it has to be for the program to go on as it does: inside an interval,
not zero, a finite result. Goes out: the number as a symbol with that range, and an assertion in the
graph; where it fails, eager runs the frame from its start (validation.py). Numbers whose value is
known in this call narrow their symbols instead, which is guarded.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.fx import Node

from ....symbols.context import Specialize
from ....symbols.expr import Expr, Integer
from ....symbols.interval import ANY_FLOAT, Interval
from ....symbols.scalar import Symbol, symbols_of
from ..base import Machine
from .precomputed_scalars import keeps_off_zero
from .validation import assert_data

__all__ = ["float_result", "is_nonzero", "within"]


def within(machine: Machine, expr: Expr, node: Any, wanted: Interval, why: str) -> Expr:
    """An expression of the same value that keeps to an interval. Raises Specialize."""
    try:
        machine.symbols.require(expr, wanted, why)
    except Specialize:
        if not _can_assert(machine, expr, node):
            raise
        assert_data(machine, _is_inside(machine, node, wanted))
        return _known_as(machine, expr, wanted, node)
    return expr


def is_nonzero(machine: Machine, expr: Expr, node: Any) -> bool:
    """Whether a divisor is not zero; Python would raise where it is. Raises Specialize."""
    try:
        # A check before the graph serves all periods of a cosine, a range of counts only one.
        return machine.symbols.decide("!=", expr, Integer(0), ints_by_steps=False)
    except Specialize:
        if keeps_off_zero(machine, expr):
            return True
        if not _can_assert(machine, expr, node):
            raise
    assert_data(machine, _call(machine, operator.ne, node, 0))
    return True


def float_result(machine: Machine, op: str, expr: Expr, made: Node) -> Expr:
    """A float that an operation gives, by a divisor that is not zero, or which it raises for where
    it is not finite. Raises Specialize.
    """
    try:
        machine.symbols.require(expr, ANY_FLOAT, op)
    except Specialize:
        if not _can_assert(machine, expr, made):
            raise
        if op not in ("/", "//", "%"):
            assert_data(machine, _call(machine, torch.isfinite, made))
        return _known_as(machine, expr, ANY_FLOAT, made)
    return expr


def _can_assert(machine: Machine, expr: Expr, node: Any) -> bool:
    """Whether nobody but the graph knows a number, and the program handles no error of it. A graph
    for all sizes of its inputs has no assertions.
    """
    graph = machine.graph
    if (
        not isinstance(node, Node)
        or graph.root is not graph
        or not graph.sizes.are_data_dependent()
    ):
        return False
    return not machine.symbols.has_hints((expr,)) and not machine.catches()


def _is_inside(machine: Machine, node: Node, wanted: Interval) -> Node:
    """Comparisons are false for nan."""
    low, high = wanted.low, wanted.high
    above = None if low == -math.inf else _call(machine, operator.ge, node, low)
    below = None if high == math.inf else _call(machine, operator.le, node, high)
    if above is None or below is None:
        inside = above or below or _call(machine, operator.eq, node, node)
    else:
        inside = _call(machine, torch.logical_and, above, below)
    if wanted.nan:
        nan = _call(machine, operator.ne, node, node)
        inside = _call(machine, torch.logical_or, inside, nan)
    return inside


def _known_as(machine: Machine, expr: Expr, range: Interval, node: Node) -> Symbol:
    """Where it cannot be a symbol after all, what it was computed from cannot."""
    first = next(s for s in symbols_of(expr) if not machine.symbols.has_hints((s,)))
    kind = float if range is ANY_FLOAT else first.kind
    symbol = Symbol(f"{first.name}, asserted", kind, range, first.origin)
    machine.symbols.add(symbol, None)
    machine.symbols.read_from[symbol] = node
    return symbol


def _call(machine: Machine, target: Any, *args: Any) -> Node:
    node: Node = machine.graph.call(target, list(args), {}, machine.lines())
    return node
