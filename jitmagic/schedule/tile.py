"""Brings a fused nest into canonical form: axes named by their role, in memory order.

In: a group's outer axes and stores. Out: a Nest in which
  - the outer axes are i0, i1, .. ordered so that the biggest store walks through memory forwards;
  - reductions and inner loops of equal extents bind the same axes j0, j1, .., so that equal work
    is one shared value (softmax's exp is one node, used by the sum and by the store).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from ..loops.expr import (
    Apply,
    Axis,
    AxisVar,
    Expr,
    Integer,
    coefficients,
    dimension,
    linear,
    position,
    substitute,
)
from ..loops.free_axes import value_axes
from ..loops.ir import (
    Buffer,
    Cast,
    Compute,
    Constant,
    IndexValue,
    Nest,
    Reduction,
    Scan,
    Store,
    Value,
    binders,
    store_values,
    walk,
)
from ..loops.values import FLOATS, HALVES, compute, number, where
from ..symbols.size import Dimension, hint_of, is_same
from .substitution import Rebuilder, free_axes

__all__ = ["drop_unit_axes", "final_nest", "without_one_hot_sums", "without_roundings"]

Extents = tuple[Dimension, ...]


def drop_unit_axes(nest: Nest) -> Nest:
    """Replace axes of extent 1 by 0, so that all size-1 dimensions have equal indexes."""
    units = _unit_axes(nest)
    if not units:
        return nest
    zero: dict[Axis, Expr] = {axis: Integer(0) for axis in units}

    def without_units(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(axis for axis in axes if not is_same(axis.extent, 1))

    rebuild = Rebuilder(
        on_axes=without_units,
        on_expr=lambda expr: substitute(expr, zero),
        on_reduction=_without_loop,
        on_value=_without_scan_of_one,
    )
    stores = tuple(map(rebuild.store, nest.stores))
    return Nest(nest.name, without_units(nest.outer), stores, nest.origins)


def _without_loop(node: Reduction) -> Value:
    """Replace a reduction over no axes by its value."""
    if node.axes:
        return node
    if node.op in ("argmax", "argmin"):
        return Constant(0, node.dtype)
    return node.value if node.value.dtype == node.dtype else Cast(node.value, node.dtype)


def _without_scan_of_one(node: Value) -> Value:
    return node.value if isinstance(node, Scan) and is_same(node.axis.extent, 1) else node


def _unit_axes(nest: Nest) -> list[Axis]:
    return [axis for axes in binders(nest) for axis in axes if is_same(axis.extent, 1)]


def without_roundings(stores: Sequence[Store]) -> tuple[Store, ...]:
    """Drop casts to 16 bits and back, which keep the rounding of eager's intermediate tensors."""

    def unrounded(cast: Cast) -> Value:
        match cast.value:
            case Cast(value=wide) if cast.value.dtype in HALVES and wide.dtype == cast.dtype:
                return wide
        return cast

    rebuild = Rebuilder(on_cast=unrounded)
    return tuple(rebuild.store(store) for store in stores)


def without_one_hot_sums(
    outer: tuple[Axis, ...], stores: Sequence[Store]
) -> tuple[tuple[Axis, ...], tuple[Store, ...]]:
    """Replace sums of one-hot rows by their one term: the gradient of a cross-entropy sums
    `where(j == target, g, 0)` over all classes j. A nest without sums then is pointwise.
    """
    rebuild = Rebuilder(on_reduction=_one_term)
    made = tuple(rebuild.store(store) for store in stores)
    if all(new.value is old.value for new, old in zip(made, stores, strict=True)):
        return outer, made
    inner = made[0].inner
    has_sums = any(isinstance(node, Reduction) for node in walk(store_values(made)))
    if has_sums or not all(_are_alike(store.inner, inner) for store in made):
        return outer, made
    return (*outer, *inner), tuple(_with_outer_loop(store, inner) for store in made)


def _are_alike(some: Sequence[Axis], others: Sequence[Axis]) -> bool:
    if len(some) != len(others):
        return False
    return all(is_same(a.extent, b.extent) for a, b in zip(some, others, strict=True))


def _with_outer_loop(store: Store, axes: tuple[Axis, ...]) -> Store:
    """Return the store without its inner loop, over these axes of the nest."""
    bind = {old: AxisVar(new) for old, new in zip(store.inner, axes, strict=True)}
    return Rebuilder(bind).store(replace(store, inner=()))


def _one_term(node: Reduction) -> Value:
    match node:
        case Reduction("sum", (axis,), Compute("where", (condition, chosen, Constant(value=0)))):
            index = _equal_to(axis, condition)
            if index is None or axis in free_axes(chosen) or node.dtype not in FLOATS:
                return node
            size = number(axis.extent, index.dtype)
            inside = compute("logical_and", compute("ge", index, 0), compute("lt", index, size))
            return where(inside, compute("add", chosen, 0.0), 0.0)  # a sum with zeros is never -0.0
    return node


def _equal_to(axis: Axis, condition: Value) -> Value | None:
    """Return the value that a condition compares the axis's position with, the same for all."""
    match condition:
        case Compute("eq", (IndexValue(AxisVar(one)), index)) if one is axis:
            return None if axis in free_axes(index) else index
        case Compute("eq", (index, IndexValue(AxisVar(one)))) if one is axis:
            return None if axis in free_axes(index) else index
    return None


def final_nest(
    name: str,
    outer: Sequence[Axis],
    stores: Sequence[Store],
    origins: tuple[str, ...],
    buffers: Mapping[str, Buffer],
) -> Nest:
    """Order and name the axes; share the inner ones."""
    ordered = _in_memory_order(outer, stores, buffers)
    names = {axis: Axis(f"i{n}", axis.extent) for n, axis in enumerate(ordered)}
    rebuild = Rebuilder({axis: AxisVar(new) for axis, new in names.items()})
    renamed = tuple(rebuild.store(store) for store in stores)
    return Nest(name, tuple(names.values()), _share_inner(renamed), origins)


def _in_memory_order(
    outer: Sequence[Axis], stores: Sequence[Store], buffers: Mapping[str, Buffer]
) -> list[Axis]:
    """Order the outer axes by falling stride in the biggest store; stable for equal strides."""
    # The biggest store causes most of the memory traffic.
    biggest = max(stores, key=lambda store: prod(map(hint_of, buffers[store.buffer].shape)))
    stride = buffers[biggest.buffer].stride
    steps = _steps(position(biggest.index, stride), stride)
    # The offset is not a sum of one term per axis, so no order is known to be better.
    if any(axis not in steps for axis in outer):
        return list(outer)
    return sorted(outer, key=lambda axis: -abs(steps[axis]))


def _steps(offset: Expr, near: Sequence[Dimension]) -> dict[Axis, int]:
    """Return the change of the offset along each axis that occurs alone in a term."""
    steps: dict[Axis, int] = {}
    for atom, n in linear(offset)[1].items():
        if isinstance(atom, AxisVar):
            steps[atom.axis] = n
        elif isinstance(atom, Apply) and (found := coefficients(atom)) is not None:
            for axis, step in found[1].items():
                steps[axis] = n * hint_of(dimension(step, near))
    return steps


def _inside(node: Reduction) -> frozenset[Axis]:
    """Return the axes of the loops inside a reduction's loop."""
    # Reductions that depend on its axes, or on the axes of one that does, run inside its loop; the
    # others run before it.
    free = value_axes(walk((node.value,)))
    left = [inner for inner in free if isinstance(inner, Reduction)]
    axes = set(node.axes)
    while found := [inner for inner in left if not axes.isdisjoint(free[inner])]:
        left = [inner for inner in left if inner not in found]
        axes.update(axis for inner in found for axis in inner.axes)
    # Loops inside each other need different axes: in a chain of products that was written as loops,
    # the first product's loop had the name of the third's and computed wrong numbers.
    return frozenset(axes.difference(node.axes))


class _Shared:
    """Allocates inner axes by extents; a second set if an enclosing or inner loop has the first."""

    def __init__(self) -> None:
        self._sets: dict[Extents, list[tuple[Axis, ...]]] = {}
        self._count = 0

    def axes(self, bound: tuple[Axis, ...], taken: frozenset[Axis]) -> tuple[Axis, ...]:
        sets = self._sets.setdefault(tuple(axis.extent for axis in bound), [])
        for candidate in sets:
            if taken.isdisjoint(candidate):
                return candidate
        made = tuple(Axis(f"j{self._count + n}", axis.extent) for n, axis in enumerate(bound))
        self._count += len(bound)
        sets.append(made)
        return made


def _share_inner(stores: tuple[Store, ...]) -> tuple[Store, ...]:
    """Rename the axes of every store's inner loop and of every reduction to shared ones."""
    shared = _Shared()
    opened = []
    for store in stores:
        inner = shared.axes(store.inner, frozenset()) if store.inner else ()
        bind = {a: AxisVar(b) for a, b in zip(store.inner, inner, strict=True)}
        moved = Rebuilder(bind)
        index = tuple(moved.expr(part) for part in store.index)
        opened.append(Store(store.buffer, inner, index, moved.value(store.value), store.mode))
    return tuple(_share_reductions(opened, shared))


def _share_reductions(stores: Sequence[Store], shared: _Shared) -> list[Store]:
    def renamed(node: Reduction) -> Value:
        axes = shared.axes(node.axes, free_axes(node) | _inside(node))
        bind = {a: AxisVar(b) for a, b in zip(node.axes, axes, strict=True)}
        return Reduction(node.op, axes, Rebuilder(bind).value(node.value), node.dtype)

    rebuild = Rebuilder(on_reduction=renamed)
    return [rebuild.store(store) for store in stores]
