"""Decides whether two groups of stores may share one nest, and aligns their axes.

In: a producer group, a consumer group, the loads by which the consumer reads the producer. Out: an
Alignment (how to rename both sides' axes into the shared nest) or the sentence that says why not.
Profit is not considered here; that is score.py.

A group is *rigid* when it contains a reduction or inner axes: its outer axes are then the rows, and
the work of one row must stay in one point of the nest. A flexible group is pointwise: any of its
axes may become inner axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from ..lazy_dataclass import dataclass
from ..loops.expr import (
    Axis,
    AxisVar,
    Expr,
    FloorDiv,
    Integer,
    Mod,
    add,
    axes_of,
    bounds,
    coefficients,
    dimension,
    floordiv,
    linear,
    mod,
    mul,
    substitute,
)
from ..loops.free_axes import value_axes
from ..loops.ir import (
    Compute,
    Constant,
    Load,
    Pick,
    Reduction,
    Scan,
    Store,
    Value,
    landmarks,
    walk,
)
from ..symbols.polynomial import product
from ..symbols.size import Dimension, Size, expr_of, hint_of, is_same
from .substitution import Rebuilder, expr_axes, free_axes, fresh_axis

__all__ = ["Alignment", "Shape", "align", "inline_load", "mixed_radix", "overwrites_reads", "solve"]

_TWO_PLACES = "it is read at two different points at once"
_NOT_A_ROW = "its scan or order is not read row by row"


@dataclass(frozen=True, slots=True)
class Shape:
    """Holds the facts about a group that the alignment of axes needs."""

    outer: tuple[Axis, ...]
    stores: tuple[Store, ...]
    loads: tuple[Load, ...]
    rigid: bool
    binders: tuple[tuple[Axis, ...], ...]  # axes of its reductions and inner loops
    scans: bool = False


@dataclass(frozen=True, slots=True)
class Alignment:
    """Holds the shared outer axes, the expressions for each side's outer axes, and the inner axes
    that each side gains.
    """

    outer: tuple[Axis, ...]
    producer: Mapping[Axis, Expr]
    consumer: Mapping[Axis, Expr]
    producer_inner: tuple[Axis, ...] = ()
    consumer_inner: tuple[Axis, ...] = ()


def solve(
    store: Store, load: Load, axes: Iterable[Axis], split: bool = False
) -> dict[Axis, Expr] | None:
    """Return the point of the store's loops at which the loaded element was written; None when
    unknown. `split`: an index written as `i * 8 + j` may be split into `i` and `j`.
    """
    if store.mode != "set":
        return None
    bindings: dict[Axis, Expr] = {}
    for target, source in zip(store.index, load.index, strict=True):
        match target:
            case AxisVar(axis):
                if bindings.setdefault(axis, source) != source:
                    return None
            case Integer(0):
                continue  # a dimension of size 1
            case _ if split and (digits := _taken_apart(target, source)):
                if any(bindings.setdefault(axis, part) != part for axis, part in digits.items()):
                    return None
            case _ if target != source:
                return None
    return bindings if all(axis in bindings for axis in axes) else None


def _taken_apart(target: Expr, source: Expr) -> dict[Axis, Expr]:
    """Return the axis values at which a mixed-radix expression equals another; empty if unknown."""
    sizes = _extents(target)
    if not sizes or any(isinstance(size, Size) for size in sizes):
        return {}
    axes, (low, high) = mixed_radix(target, prod(sizes)), bounds(source)
    if axes is None or len(axes) < 2 or low < 0 or high >= prod(sizes):
        return {}
    digits: dict[Axis, Expr] = {}
    for axis in reversed(axes):
        digits[axis] = mod(source, axis.extent) if axis is not axes[0] else source
        source = floordiv(source, axis.extent)
    return digits


def inline_load(load: Load, store: Store, bindings: Mapping[Axis, Expr]) -> Value:
    """Return the value that `store` wrote at `bindings`, in place of the load."""
    rebuild = Rebuilder(bindings)
    value = rebuild.value(store.value)
    if load.mask is None:
        return value
    mask = load.mask
    # The producer's loads may be out of range where the mask is off, so they get the mask too.
    safe = _safe_loads(store.value, bindings, mask, rebuild)

    def guarded(inside: Load) -> Load:
        if inside in safe:
            return inside
        both = mask if inside.mask is None else _both(mask, inside.mask)
        return Load(inside.buffer, inside.index, inside.dtype, both, inside.fill)

    value = Rebuilder(on_load=guarded).value(value)
    return Compute("where", (mask, value, Constant(load.fill, load.dtype)), load.dtype)


def _safe_loads(
    value: Value, bindings: Mapping[Axis, Expr], mask: Value, rebuild: Rebuilder
) -> set[Load]:
    """Return loads of reductions that stay in bounds and do not depend on the mask."""
    # If they were masked, the reduction would be repeated at each point of the mask's axes.
    nodes = walk((value,))
    reductions = [node for node in nodes if isinstance(node, Reduction)]
    if not reductions:
        return set()
    free, masked = value_axes(nodes), free_axes(mask)
    safe: set[Load] = set()
    for node in reductions:
        positions = [(axis, bindings.get(axis, AxisVar(axis))) for axis in free[node]]
        within = (_is_inside(expr, axis) for axis, expr in positions)
        if all(within) and all(masked.isdisjoint(expr_axes(e)) for _, e in positions):
            below = walk((rebuild.value(node),))
            safe.update(part for part in below if isinstance(part, Load))
    return safe


def _is_inside(expr: Expr, axis: Axis) -> bool:
    if not isinstance(axis.extent, Size):
        low, high = bounds(expr)
        return low >= 0 and high < axis.extent
    return isinstance(expr, AxisVar) and is_same(expr.axis.extent, axis.extent)


def _both(a: Value, b: Value) -> Value:
    return a if a is b else Compute("logical_and", (a, b), a.dtype)


def align(producer: Shape, consumer: Shape, links: Sequence[tuple[Store, Load]]) -> Alignment | str:
    """Align the axes of two groups, given every load by which the consumer reads the producer."""
    points: list[tuple[Expr, ...]] = []
    rows_of_scans: set[Expr] = set()
    for store, load in links:
        solution = solve(store, load, (*producer.outer, *store.inner), split=True)
        if solution is None:
            return "it is read through an index that loops cannot follow"
        points.append(tuple(solution[axis] for axis in producer.outer))
        if scanned := _scanned(store):
            if load.mask is not None or len(store.inner) > 1:
                return _NOT_A_ROW
            rows_of_scans.update(solution[axis] for axis in scanned)
    common = _common_point(points)
    if common is None:
        return _TWO_PLACES
    exprs, fixed = common
    split = split_axes(exprs, producer.outer, consumer.outer)
    split |= _reversed(rows_of_scans, consumer)
    renamed = Rebuilder(split)
    outer = tuple(a for axis in consumer.outer for a in digits_of(renamed.expr(AxisVar(axis))))
    rows: list[Axis] = []
    bindings: dict[Axis, Expr] = {}
    for axis, expr in zip(producer.outer, exprs, strict=True):
        bindings[axis] = renamed.expr(expr)
        digits = mixed_radix(bindings[axis], axis.extent)
        if digits is None:
            return "its rows are not the consumer's rows"
        rows.extend(digits)
    if len(set(rows)) != len(rows):
        return "its rows are not the consumer's rows"
    plan = _share(producer, consumer, outer, tuple(rows), bindings, split)
    if rows_of_scans and not isinstance(plan, str):
        extents = [axis.extent for store, _ in links for axis in _scanned(store)]
        along = {renamed.expr(expr) for expr in rows_of_scans}
        if not _scans_stay_rows(along, extents, consumer, plan):
            return _NOT_A_ROW
    if fixed and not isinstance(plan, str):
        pinned = {digit for axis in fixed for digit in digits_of(renamed.expr(AxisVar(axis)))}
        # The producer is then computed once per row, not per element.
        if not pinned <= set(plan.producer_inner):
            return _TWO_PLACES
    return plan


def _scanned(store: Store) -> list[Axis]:
    """Return the inner axes of the store over which its value is a scan or a row in order."""
    marks = store.landmarks if store.inner else ()
    found = [m.axis for m in marks if isinstance(m, Scan) and m.axis in store.inner]
    picks = [axes_of(m.rank) for m in marks if isinstance(m, Pick)]
    return [*found, *frozenset().union(*picks).intersection(store.inner)]


def _reversed(rows: Iterable[Expr], consumer: Shape) -> dict[Axis, Expr]:
    """Return how a pointwise reader of scans from their end to their beginning runs forwards: the
    gradient of cumsum is `flip(cumsum(flip(g)))`.
    """
    bindings: dict[Axis, Expr] = {}
    for expr in () if consumer.rigid else rows:
        for axis in axes_of(expr) & frozenset(consumer.outer):
            last = add(Integer(-1), expr_of(axis.extent))
            if add(expr, AxisVar(axis)) == last:
                forwards = AxisVar(fresh_axis(axis, axis.extent))
                bindings[axis] = add(last, mul(forwards, -1))
    return bindings


def _scans_stay_rows(
    along: set[Expr], extents: Sequence[Dimension], consumer: Shape, plan: Alignment
) -> bool:
    """Return whether the consumer runs over whole rows of scans, by one loop from the beginning."""
    axes = {expr.axis for expr in along if isinstance(expr, AxisVar)}
    if len(axes) < len(along):
        return False
    if any(not is_same(axis.extent, extent) for axis in axes for extent in extents):
        return False
    if not consumer.rigid:
        return axes == set(plan.consumer_inner)
    if any(len(binder) > 1 for binder in consumer.binders if not axes.isdisjoint(binder)):
        return False
    outer = frozenset(consumer.outer)
    marks = landmarks(consumer.stores)
    sums = [n for n in marks if isinstance(n, Reduction) and not axes.isdisjoint(n.axes)]
    return all(free_axes(node) <= outer for node in sums)


def _common_point(
    points: Sequence[tuple[Expr, ...]],
) -> tuple[tuple[Expr, ...], frozenset[Axis]] | None:
    """Return the common point of all loads, and the axes that are 0 in some of them; None if they
    read different points.
    """
    # A row may be read at its first element too, as in the moments of a normalization.
    if not points:
        return (), frozenset()
    axes = [frozenset[Axis]().union(*map(expr_axes, point)) for point in points]
    widest = max(axes, key=len)
    common = points[axes.index(widest)]
    for point, own in zip(points, axes, strict=True):
        start = {axis: Integer(0) for axis in widest - own}
        if point != (tuple(substitute(part, start) for part in common) if start else common):
            return None
    return common, widest.difference(frozenset(widest).intersection(*axes))


def _share(
    producer: Shape,
    consumer: Shape,
    outer: tuple[Axis, ...],
    rows: tuple[Axis, ...],
    bindings: Mapping[Axis, Expr],
    split: Mapping[Axis, Expr],
) -> Alignment | str:
    used = set(rows)
    if producer.rigid and consumer.rigid:
        if used != set(outer):
            return "both reduce, over different rows"
        return Alignment(outer, bindings, split)
    if producer.rigid:
        if not used <= set(outer):
            return "its rows are not rows of the consumer"
        rest = tuple(axis for axis in outer if axis not in used)
        return Alignment(
            tuple(axis for axis in outer if axis in used), bindings, split, consumer_inner=rest
        )
    if not used >= set(outer):
        return "it is smaller than the consumer, which would recompute it"
    extra = tuple(axis for axis in rows if axis not in outer)
    if extra and not consumer.rigid:
        return "its axes are not axes of the consumer"
    for binder in consumer.binders:
        if set(binder) == set(extra):
            extra = binder
    return Alignment(outer, bindings, split, producer_inner=extra)


def mixed_radix(expr: Expr, extent: Dimension) -> tuple[Axis, ...] | None:
    """Return axes (x, y, ..) such that expr = x*len(y)*.. + y*.. + .. covers 0..extent-1 once, or
    None.
    """
    if _has_sizes(expr, extent):
        return _sized_radix(expr, extent)
    constant, terms = linear(expr)
    if constant != 0:
        return () if not terms and extent == 1 else None
    axes: list[Axis] = []
    scale = 1
    for atom, factor in sorted(terms.items(), key=lambda item: item[1]):
        if not isinstance(atom, AxisVar) or factor != scale:
            return None
        axes.append(atom.axis)
        scale *= atom.axis.extent
    return tuple(reversed(axes)) if scale == extent else None


def _has_sizes(expr: Expr, extent: Dimension) -> bool:
    return any(isinstance(size, Size) for size in (extent, *_extents(expr)))


def _sized_radix(expr: Expr, extent: Dimension) -> tuple[Axis, ...] | None:
    """Return `mixed_radix` for dynamic extents: each step is the product of those before it."""
    terms = coefficients(expr)
    if terms is None or terms[0] is not Integer(0):
        return None
    left, scale = dict(terms[1]), expr_of(1)
    axes: list[Axis] = []
    while left:
        following = next((axis for axis, step in left.items() if step is scale), None)
        if following is None:
            return None
        axes.append(following)
        del left[following]
        scale = product(scale, expr_of(following.extent))
    return tuple(reversed(axes)) if scale is expr_of(extent) else None


def digits_of(expr: Expr) -> tuple[Axis, ...]:
    """Return the axes of a mixed-radix expression, most significant first."""
    if isinstance(expr, AxisVar):
        return (expr.axis,)
    terms = coefficients(expr)
    assert terms is not None, "of a mixed-radix expression"
    sizes = {axis: hint_of(dimension(step, _extents(expr))) for axis, step in terms[1].items()}
    return tuple(sorted(sizes, key=lambda axis: -sizes[axis]))


def _extents(expr: Expr) -> list[Dimension]:
    return [axis.extent for axis in axes_of(expr)]


# Joins group_norm with a following silu: otherwise the normalized image goes through memory in
# float32.
def split_axes(
    exprs: Sequence[Expr], axes: Sequence[Axis], outer: Sequence[Axis]
) -> dict[Axis, Expr]:
    """Split the consumer's outer axes so that `f // 8` and `f % 8` become axes themselves."""
    if any(isinstance(axis.extent, Size) for axis in (*axes, *outer)):
        return {}  # divisibility of dynamic sizes is unknown
    cuts: dict[Axis, set[int]] = {}
    for expr, axis in zip(exprs, axes, strict=True):
        digit = _digit(expr)
        if digit is not None and digit[0] in outer:
            cuts.setdefault(digit[0], set()).update((digit[1], digit[1] * axis.extent))
    bindings: dict[Axis, Expr] = {}
    for axis, marks in cuts.items():
        points = sorted(marks | {1, axis.extent})
        # For a reader of the first rows alone, the axis has fewer values than the digits would
        # have: the joined nest would write beyond the reader's buffer.
        whole = points[-1] == axis.extent
        if whole and all(b % a == 0 for a, b in itertools.pairwise(points)):
            total: Expr = Integer(0)
            for low, high in itertools.pairwise(points):
                total = add(total, mul(AxisVar(fresh_axis(axis, high // low)), low))
            bindings[axis] = total
    return bindings


def _digit(expr: Expr) -> tuple[Axis, int] | None:
    """Return (axis, scale) of `axis // scale`, maybe `% n`; None for other expressions."""
    match expr:
        case FloorDiv(AxisVar(axis), scale) | Mod(FloorDiv(AxisVar(axis), scale), _):
            return axis, scale
        case Mod(AxisVar(axis), _):
            return axis, 1
    return None


def overwrites_reads(
    stores: Sequence[Store],
    loads: Sequence[Load],
    storage: Mapping[str, str],
    fixed: frozenset[str],
) -> bool:
    """Return whether the nest would overwrite an element that another of its points still reads."""
    written = {storage[s.buffer]: s for s in stores if storage[s.buffer] in fixed}
    # Two stores into one storage may overlap, whatever their indexes.
    if len(written) < sum(storage[s.buffer] in fixed for s in stores):
        return True
    for load in loads:
        store = written.get(storage[load.buffer])
        if store is not None and (load.buffer, load.index) != (store.buffer, store.index):
            return True
    return False
