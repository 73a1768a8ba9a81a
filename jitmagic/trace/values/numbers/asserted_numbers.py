"""Asserts in the graph that operations on numbers read from tensors do not raise.

Input: a number and a requirement: inside an interval, not zero, a finite result. Output: the number
as a symbol with that range, and an assertion in the graph. If the assertion fails, eager runs the
frame from its start (validation.py). A number whose value is known while tracing needs no
assertion: its symbol is narrowed, and a guard checks that.
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
    """Return an expression of the same value that stays in an interval. Raises Specialize."""
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
        # Narrowing the steps would fit one period of a cosine schedule; a check of the divisor
        # before the graph fits all of them.
        return machine.symbols.decide("!=", expr, Integer(0), ints_by_steps=False)
    except Specialize:
        if nonzero_by_check(machine, expr):
            return True
        if not _can_assert(machine, expr, node):
            raise
    assert_data(machine, _call(machine, operator.ne, node, 0))
    return True


def float_result(machine: Machine, op: str, expr: Expr, made: Node) -> Expr:
    """Return the expression of a float result. The operation divides by a nonzero number, or Python
    raises where the result is not finite, which is asserted. Raises Specialize.
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
    """Return whether only the graph knows the number and user code catches no error of it. A graph
    that serves all sizes of its inputs has no assertions.
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
