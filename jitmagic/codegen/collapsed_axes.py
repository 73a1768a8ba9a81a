"""Merges axes of a nest that are one in memory, as those of a contiguous matrix are.

In: a Nest whose loads and stores have one flat offset each. Out: the same computation over fewer
axes.
"""

from __future__ import annotations

import itertools

from ..lazy_dataclass import replace
from ..loops.expr import (
    Apply,
    AxisVar,
    Expr,
    Integer,
    add,
    axes_of,
    coefficient,
    linear,
    mul,
    substitute,
)
from ..loops.ir import Axis, IndexValue, Load, Nest, Scan, binders, walk
from ..schedule.dependencies import store_values
from ..schedule.substitution import Rebuilder
from ..symbols.polynomial import product
from ..symbols.size import expr_of

__all__ = ["with_collapsed_axes"]


def with_collapsed_axes(nest: Nest) -> Nest:
    """Merge neighbouring axes (a, b) into one wherever every offset moves along them as one."""
    while (pair := _collapsible(nest)) is not None:
        nest = _merge_axes(nest, *pair)
    return nest


def _collapsible(nest: Nest) -> tuple[Axis, Axis] | None:
    together = {axes for axes in binders(nest) if axes}
    pairs = {(a, b) for binder in together for a, b in itertools.pairwise(binder)}
    if not pairs:
        return None
    nodes = walk(store_values(nest.stores))
    offsets = {part for node in nodes if isinstance(node, Load) for part in node.index}
    offsets.update(part for store in nest.stores for part in store.index)
    values = {axis for n in nodes if isinstance(n, IndexValue) for axis in axes_of(n.expr)}
    values |= {node.axis for node in nodes if isinstance(node, Scan)}
    for a, b in sorted(pairs, key=lambda pair: (pair[0].name, pair[1].name)):
        if a in values or b in values or not _always_together(a, b, together):
            continue
        if all(_moves_as_one(offset, a, b) for offset in offsets):
            return a, b
    return None


def _always_together(a: Axis, b: Axis, binders: set[tuple[Axis, ...]]) -> bool:
    for binder in binders:
        if (a in binder or b in binder) and (a, b) not in itertools.pairwise(binder):
            return False
    return True


def _moves_as_one(offset: Expr, a: Axis, b: Axis) -> bool:
    step, wide = coefficient(offset, b), coefficient(offset, a)
    if step is None or wide is None:
        return False
    return product(_as_expr(step), expr_of(b.extent)) is _as_expr(wide)


def _merge_axes(nest: Nest, a: Axis, b: Axis) -> Nest:
    both = Axis(f"{a.name}_{b.name}", a.extent * b.extent)
    joined: dict[Axis, Expr] = {a: Integer(0), b: AxisVar(both)}

    def bind(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(both if axis == b else axis for axis in axes if axis != a)

    def offset(expr: Expr) -> Expr:
        constant, terms = linear(expr)
        merged: Expr = Integer(constant)
        for atom, factor in terms.items():
            if isinstance(atom, Apply):
                merged = add(merged, mul(substitute(atom, joined), factor))
            elif atom != AxisVar(a):
                merged = add(merged, mul(AxisVar(both) if atom == AxisVar(b) else atom, factor))
        return merged

    rebuild = Rebuilder(on_expr=offset, on_axes=bind)
    return replace(nest, outer=bind(nest.outer), stores=tuple(map(rebuild.store, nest.stores)))


def _as_expr(step: int | Expr) -> Expr:
    return step if isinstance(step, Expr) else Integer(step)
