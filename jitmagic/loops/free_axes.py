"""Computes free axes: the axes that a value depends on and no reduction inside it binds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .expr import Axis, axes_of
from .ir import IndexValue, Load, Pick, Reduction, Scan, Value

__all__ = ["value_axes"]


_NOWHERE: frozenset[Axis] = frozenset()


def value_axes(
    nodes: Iterable[Value], moves: Mapping[str, frozenset[Axis]] = {}
) -> dict[Value, frozenset[Axis]]:
    """Return the free axes of every node; `nodes` come operands first, as from `ir.walk`. `moves`:
    axes along which a buffer itself is in another place.
    """
    free: dict[Value, frozenset[Axis]] = {}
    for node in nodes:
        axes: frozenset[Axis] = frozenset().union(*(free[part] for part in node.operands))
        match node:
            case Load(buffer=name, index=index):
                axes = axes.union(moves.get(name, _NOWHERE), *(axes_of(part) for part in index))
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
