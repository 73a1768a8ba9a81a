"""Asserts in the graph that operations on numbers read from tensors do not raise.

Input: a number and a requirement: inside an interval, not zero, a finite result. Output: the number
as a symbol with that range, and an assertion in the graph. If the assertion fails, eager runs the
frame from its start (validation.py). A number with a hint needs no assertion: the range of its
symbol is narrowed, and a guard checks the range.
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
from .precomputed_scalars import nonzero_by_check
from .validation import assert_data

__all__ = ["float_result", "is_nonzero", "require_within"]


def require_within(machine: Machine, expr: Expr, node: Any, wanted: Interval, why: str) -> Expr:
    """Return an expression equal to `expr` whose range is within `wanted`. Raises Specialize."""
    try:
        machine.symbols.require(expr, wanted, why)
    except Specialize:
        if not _can_assert(machine, expr, node):
            raise
        assert_data(machine, _is_inside(machine, node, wanted))
        return _known_as(machine, expr, wanted, node)
    return expr


def is_nonzero(machine: Machine, expr: Expr, node: Any) -> bool:
    """Return whether a divisor is not zero, by a guard or an assertion. Raises Specialize."""
    try:
        # For a cosine schedule, narrowing the range of the step would give a variant per period;
        # checking the divisor before the graph runs serves all periods.
        return machine.symbols.decide("!=", expr, Integer(0), ints_by_steps=False)
    except Specialize:
        if nonzero_by_check(machine, expr):
            return True
        if not _can_assert(machine, expr, node):
            raise
    assert_data(machine, _call(machine, operator.ne, node, 0))
    return True


def float_result(machine: Machine, op: str, expr: Expr, made: Node) -> Expr:
    """Return the expression of a float result, asserted to be finite where Python would raise.

    Divisors have been checked by `is_nonzero`. Raises Specialize.
    """
    try:
        machine.symbols.require(expr, ANY_FLOAT, op)
    except Specialize:
        if not _can_assert(machine, expr, made):
            raise
        # Divisors are known to be nonzero here. Python raises OverflowError for powers and exp().
        if op not in ("/", "//", "%"):
            assert_data(machine, _call(machine, torch.isfinite, made))
        return _known_as(machine, expr, ANY_FLOAT, made)
    return expr


def _can_assert(machine: Machine, expr: Expr, node: Any) -> bool:
    """Return whether the number has no hint and no `try` of the program can catch its error.

    Also False in a subgraph, and in a graph with dynamic input sizes, which has no assertions.
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
    """Record the test that a number is in an interval; comparisons are false for nan."""
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
    """Return a new symbol for the asserted expression.

    Its origin is that of a symbol in the expression, so that a later Specialize excludes that one.
    """
    first = next(s for s in symbols_of(expr) if not machine.symbols.has_hints((s,)))
    kind = float if range is ANY_FLOAT else first.kind
    symbol = Symbol(f"{first.name}, asserted", kind, range, first.origin)
    machine.symbols.add(symbol, None)
    machine.symbols.read_from[symbol] = node
    return symbol


def _call(machine: Machine, target: Any, *args: Any) -> Node:
    node: Node = machine.graph.call(target, list(args), {}, machine.lines())
    return node
