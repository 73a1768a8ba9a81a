"""Index arithmetic: the integer expressions that address buffers.

The arithmetic is that of symbols/expr.py; its leaves here are axes (0 <= axis < extent) and indexes
computed at run time (ir.py). This is the import site of both for the stages after lowering.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..symbols.expr import (
    Add,
    Expr,
    FloorDiv,
    Integer,
    Mod,
    Mul,
    add,
    bounds,
    floordiv,
    leaves,
    linear,
    mod,
    mul,
    rebuild,
)
from .ir import Axis, AxisVar, ValueIndex

__all__ = [
    "Add",
    "Axis",
    "AxisVar",
    "Expr",
    "FloorDiv",
    "Integer",
    "Mod",
    "Mul",
    "ValueIndex",
    "add",
    "axes_of",
    "bounds",
    "floordiv",
    "leaves",
    "linear",
    "mod",
    "mul",
    "rebuild",
    "substitute",
]


def substitute(expr: Expr, bindings: Mapping[Axis, Expr]) -> Expr:
    """Replace axes by expressions, re-simplifying. Values inside a ValueIndex are left alone."""
    if isinstance(expr, AxisVar):
        return bindings.get(expr.axis, expr)
    return rebuild(
        expr, lambda leaf: bindings.get(leaf.axis, leaf) if isinstance(leaf, AxisVar) else leaf
    )


def axes_of(expr: Expr) -> frozenset[Axis]:
    """The axes an expression reads directly (not those inside a ValueIndex's value)."""
    if isinstance(expr, AxisVar):  # most are
        return frozenset((expr.axis,))
    return frozenset(leaf.axis for leaf in leaves(expr) if isinstance(leaf, AxisVar))
