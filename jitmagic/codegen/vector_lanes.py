"""Chooses the axis that the vector lanes of a CPU kernel run along, and the number of lanes.

In: a Structure. Out: Lanes: either one outer axis for the whole nest (pointwise nests, column
reductions) or one axis per pass (row reductions), or none (scalar loops). The best axis is the one
along which most loads and stores touch neighbouring elements. Light loops take several registers
per step: independent accumulators hide the latency of additions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import torch

from ..devices import Target
from ..lazy_dataclass import dataclass
from ..loops.expr import Axis, Expr, coefficient
from ..loops.ir import IndexValue, Load, Reduction, Store, Value, run_time_values, walk
from ..schedule.score import EXPENSIVE, extent_product, op_cost
from ..symbols.size import Dimension, Size, hint_of, may_assume
from .loop_structure import Pass, Structure, scans_of

__all__ = [
    "Lanes",
    "accesses_of",
    "choose_lanes",
    "lane_step",
    "lanes_of_product",
    "likely_extent",
    "neighbours",
]

SHORT = 8  # an axis below this extent does not fill a register
FEWEST = 4  # an axis below this extent is not vectorised at all
FEW = 1 << 15  # points below which one thread is fast enough
LIGHT = 12  # cost of a body that has registers to spare for a wider step


_PRODUCT_BYTES = 32  # register width in ATen's kernel, which torch builds for AVX2 at most


@dataclass(frozen=True, slots=True)
class Lanes:
    """Holds the chosen lanes. `outer` set: all passes run inside its lanes. Otherwise passes[k] is
    the (axis, lanes) of the k-th pass. `is_one_step`: one step covers a dynamic outer axis.
    """

    outer: Axis | None
    width: int
    passes: tuple[tuple[Axis | None, int], ...]
    is_one_step: bool = False


def lanes_of_product(op: str, dtype: torch.dtype) -> int:
    """Return the number of lanes with which ATen multiplies: the order of factors decides whether a
    partial product overflows or underflows. 0 for other reductions and dtypes.
    """
    if op != "prod" or dtype not in (torch.float32, torch.float64):
        return 0
    return _PRODUCT_BYTES // dtype.itemsize


def lane_step(offset: Expr, lane: Axis, kernel: Structure) -> int | Expr | None:
    """Return the elements between neighbouring lanes; None when that is not a constant."""
    if any(lane in kernel.free[value] for value in run_time_values(offset)):
        return None
    return coefficient(offset, lane)


def choose_lanes(kernel: Structure, target: Target, registers: int = 0) -> Lanes:
    """Compare the best outer axis with the best axis of every pass; `registers` overrides the
    number of registers per step.
    """
    base = _native_lanes(kernel, target)
    chosen = _by_accesses(kernel, target, base)
    return chosen if not registers else _with_width(chosen, registers * base)


def _with_width(lanes: Lanes, wanted: int) -> Lanes:
    """Return the same axes with the wanted number of lanes, less for short extents."""

    def width(axis: Axis) -> int:
        fits = wanted
        while fits > 4 and hint_of(axis.extent) < fits:
            fits //= 2
        return fits

    if lanes.outer is not None:
        return Lanes(lanes.outer, width(lanes.outer), lanes.passes)
    passes = tuple((axis, 1 if axis is None else width(axis)) for axis, _ in lanes.passes)
    return Lanes(None, 1, passes)


def _by_accesses(kernel: Structure, target: Target, base: int) -> Lanes:
    scalar = tuple((None, 1) for _ in kernel.passes)
    # In long passes the stores of an outer point cost next to nothing.
    long = [p for p in kernel.passes if prod(likely_extent(axis) for axis in p.axes) >= SHORT]
    outer, outer_score = _best(kernel.outer, kernel, long or kernel.passes)
    # The points of a scan's axis run one after the other.
    own = [p.axes if not scans_of(p) else () for p in kernel.passes]
    inner = [
        _best(axes, kernel, (p,)) if axes else (None, 0)
        for p, axes in zip(kernel.passes, own, strict=True)
    ]
    across = _best(kernel.outer, kernel, kernel.passes)
    along = {axis for axis, score in inner if axis is not None and score > 0}
    short = _stay_short(along, SHORT if across[1] > 0 else FEWEST)
    if short:
        (outer, outer_score), inner = across, [(None, 0) for _ in inner]
    inner_score = sum(score for _, score in inner)
    longest = max((likely_extent(a) for a, _ in inner if a is not None), default=0)
    rows = any(axis is not None for axis, _ in inner)
    along_rows = inner_score >= outer_score or outer is None
    if any(map(scans_of, kernel.passes)):  # lanes of neighbouring rows read memory in strides
        along_rows = outer_score <= 0
    elif not rows or inner_score <= 0 or (longest < SHORT and outer_score > 0):
        along_rows = False
    if along_rows:
        passes = tuple(
            (
                axis if score > 0 else None,
                _width(p, kernel, axis, base) if axis and score > 0 else 1,
            )
            for p, (axis, score) in zip(kernel.passes, inner, strict=True)
        )
        return Lanes(None, 1, passes)
    heavy = sum(op_cost(node) for node in kernel.free) >= 2 * EXPENSIVE
    # g++ vectorises across short rows of static length by itself.
    if outer is None or (outer_score <= 0 and not heavy and not short):
        return Lanes(None, 1, scalar)
    if few := _few_columns(kernel, outer, base):
        return Lanes(outer, few, scalar, is_one_step=True)
    return Lanes(outer, _outer_width(kernel, outer, base, target), scalar)


def _stay_short(rows: set[Axis], limit: int) -> bool:
    """Return whether all rows are dynamic, below the limit, and assumed (guarded) to stay there."""
    # Mostly empty lanes, summed across, took 2 to 4 times as long as a loop over a row.
    extents: list[Dimension] = [axis.extent for axis in rows]
    short = (isinstance(n, Size) and may_assume("<", n, limit) for n in extents)
    return bool(rows) and all(short)


def likely_extent(axis: Axis) -> int:
    """Return the extent, at least SHORT for a dynamic one."""
    # Being short in this call says little: lanes along the wrong axis cost most where it is long
    # (softmax of rows of 1,000, compiled at 3: 2.4 times).
    extent: Dimension = axis.extent
    return max(hint_of(extent), SHORT) if isinstance(extent, Size) else extent


def _native_lanes(kernel: Structure, target: Target) -> int:
    """Return one number of lanes for all dtypes: a register of the widest computed type."""
    # Mixed dtypes share one number of lanes; a vector wider than a register is a pair of halves.
    lanes = max(target.lanes, 4)
    small = any(node.dtype.itemsize < 8 for node in kernel.free if not isinstance(node, IndexValue))
    return lanes if small else max(lanes // 2, 2)


def _best(
    axes: Sequence[Axis], kernel: Structure, passes: Iterable[Pass]
) -> tuple[Axis | None, int]:
    """Return the axis with the most neighbouring accesses (a later one wins a tie) and its
    score.
    """
    accesses = accesses_of(passes)
    best: tuple[Axis | None, int] = (None, -(10**6))
    for axis in axes:
        if likely_extent(axis) < FEWEST or not _adds_are_disjoint(accesses, axis, kernel):
            continue
        score = sum(neighbours(access, axis, kernel) for access in accesses)
        if score >= best[1]:
            best = (axis, score)
    return best


def accesses_of(passes: Iterable[Pass]) -> list[Load | Store]:
    """Return the loads and stores of passes."""
    accesses: list[Load | Store] = []
    for pass_ in passes:
        accesses.extend(node for node in walk(pass_.roots) if isinstance(node, Load))
        accesses.extend(pass_.stores)
    return accesses


def neighbours(access: Load | Store, axis: Axis, kernel: Structure) -> int:
    """Return how much lanes along an axis help an access: most if they touch neighbours."""
    step = lane_step(access.index[0], axis, kernel)
    weight = 2 if isinstance(access, Store) else 1
    if step == 0:
        return 0
    return 2 * weight if step == 1 else -weight


def _adds_are_disjoint(accesses: Iterable[Load | Store], axis: Axis, kernel: Structure) -> bool:
    """Return whether no two lanes add into the same element."""
    adds = (a for a in accesses if isinstance(a, Store) and a.mode == "add")
    return all(lane_step(store.index[0], axis, kernel) == 1 for store in adds)


def _body_cost(roots: Iterable[Value]) -> tuple[int, int]:
    costs = [op_cost(node) for node in walk(tuple(roots)) if not isinstance(node, Reduction)]
    return sum(costs), max(costs, default=0)


def _width(pass_: Pass, kernel: Structure, axis: Axis, base: int) -> int:
    total, worst = _body_cost(
        node for node in pass_.roots if kernel.free[node] & frozenset(pass_.axes)
    )
    width = base if worst >= EXPENSIVE else 4 * base if total <= LIGHT else 2 * base
    # A row of few blocks is unrolled, and stays in registers, only if its extent is static.
    # Otherwise more registers per step save little and cost a longer remainder (layer norm of rows
    # of 64: 1.16 of the static kernel's time in two steps, 1.11 in four).
    steps = 4 if isinstance(axis.extent, Size) else 2
    least = base
    if isinstance(axis.extent, Size):  # a product of 100,000 floats: 5.8 us, not 14.9
        orders = [lanes_of_product(node.op, node.dtype) for node in pass_.reductions]
        least = max(base, *(4 * lanes for lanes in orders), 0)
    while width > least and hint_of(axis.extent) < steps * width:
        width //= 2
    return width


def _points_at_hints(kernel: Structure) -> int:
    axes = [*kernel.outer, *max((p.axes for p in kernel.passes), key=len)]
    return prod(hint_of(axis.extent) for axis in axes)


def _few_columns(kernel: Structure, lane: Axis, base: int) -> int:
    """Return the lanes that cover all columns of a sum, if their number is dynamic and small; else
    0.
    """
    # Wide blocks cost most, also to compile, where columns are few (1000 by 8: 2.5 times). The
    # kernel assumes (guarded) that they stay few.
    if not isinstance(lane.extent, Size) or not any(p.reductions for p in kernel.passes):
        return 0
    # g++ takes 59 ms instead of 180 for embedding(i, w).sum(1).
    widths = (base, 2 * base) if _most_columns(kernel, base) > base else (base,)
    return next((few for few in widths if may_assume("<=", lane.extent, few)), 0)


def _most_columns(kernel: Structure, base: int) -> int:
    """Return the number of columns that a sum takes at once if there are enough of them."""
    roots = [root for p in kernel.passes for root in p.roots]
    return 4 * base if _body_cost(roots)[1] < EXPENSIVE else base


def _outer_width(kernel: Structure, lane: Axis, base: int, target: Target) -> int:
    """Return the lanes along an outer axis. Column sums read several registers of a row at once if
    enough work is left for all threads.
    """
    # Dynamic columns get wide blocks unless this call needs the threads: narrow ones cost most for
    # many columns (sums of 512 by 512, compiled at 11 by 19: 4.7 times).
    if not any(p.reductions for p in kernel.passes):
        return base
    width = _most_columns(kernel, base)
    others = extent_product(axis for axis in kernel.outer if axis != lane)
    if isinstance(lane.extent, Size) and _points_at_hints(kernel) < FEW:
        # Doubles fill twice as many registers, which is twice as much to compile.
        doubles = any(node.dtype == torch.float64 for node in kernel.free)
        return width // 2 if doubles and width > base else width
    while width > base and others * hint_of(lane.extent) < 2 * width * max(target.threads, 1):
        width //= 2
    return width
