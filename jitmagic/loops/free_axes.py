"""Computes free axes: the axes that a value depends on and no reduction inside it binds."""

from __future__ import annotations

from collections.abc import Iterable

from .expr import Axis, axes_of
from .ir import IndexValue, Load, Pick, Reduction, Scan, Value

__all__ = ["value_axes"]


def value_axes(nodes: Iterable[Value]) -> dict[Value, frozenset[Axis]]:
    """Return the free axes of every node; `nodes` come operands first, as from `ir.walk`."""
    free: dict[Value, frozenset[Axis]] = {}
    for node in nodes:
        axes: frozenset[Axis] = frozenset().union(*(free[part] for part in node.operands))
        match node:
            case Load(index=index):
                axes = axes.union(*(axes_of(part) for part in index))
            case IndexValue(expr=expr):
                axes |= axes_of(expr)
            case Reduction(axes=bound):
                axes -= frozenset(bound)
            case Scan(axis=axis):
                axes |= {axis}
            case Pick(rank=rank):
                axes |= axes_of(rank)
        free[node] = axes
    return free
