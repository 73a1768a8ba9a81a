"""Decides whether two nests that may be joined are faster as one.

In: two groups, the Alignment of their axes, the buffers, the target. Out: None, or the sentence
that says why the joined nest would be slower. score.py has the units in which costs are counted.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..devices import Target
from ..loops.expr import AxisVar
from ..loops.ir import Buffer
from ..symbols.size import hint_of, is_same
from .groups import Group
from .legality import Alignment, Shape
from .score import CHEAP, PARALLEL_WORK, buffer_bytes, extent_product, value_cost, walk_cost
from .substitution import Rebuilder

__all__ = ["FEW_SCANS", "not_worth", "waits_for_scan"]

Buffers = Mapping[str, Buffer]
FEW_SCANS = "a scan of few rows runs on few threads"
NEAR = 1 << 14  # bytes that stay in L1 in any order of access


def not_worth(
    producer: Group, consumer: Group, plan: Alignment, buffers: Buffers, target: Target
) -> str | None:
    """Return why the joined nest would be slower, or None."""
    if producer.shape.rigid:
        if consumer.shape.rigid:
            return None
        return _not_worth_rows(producer, consumer, plan, buffers, target)
    if not consumer.shape.rigid:
        return _not_worth_pointwise(producer, plan, buffers)
    cost = sum(value_cost(store.value) for store in producer.stores)
    return FEW_SCANS if waits_for_scan(consumer.shape, target, cost) else None


def waits_for_scan(consumer: Shape, target: Target, cost: int) -> bool:
    """Return whether values of this cost would be computed on few threads, by a scan of few rows
    that adds little to them.
    """
    if target.threads <= 1 or cost <= CHEAP or not consumer.scans:
        return False
    rows = extent_product(consumer.outer)
    elements = rows * max(map(extent_product, consumer.binders))
    return rows < 2 * target.threads and elements * cost > PARALLEL_WORK


def _not_worth_pointwise(producer: Group, plan: Alignment, buffers: Buffers) -> str | None:
    """Return why two pointwise nests should stay separate, or None."""
    # Both must walk memory in the same order: a transposed read costs a cache line per element,
    # more than the round trip that joining saves, unless all stays in L1.
    last = plan.outer[-1:] and AxisVar(plan.outer[-1])
    moved = Rebuilder(plan.producer)
    for store in producer.stores:  # pointwise: no inner axes, all indexes use outer ones
        axes = [part for part in map(moved.expr, store.index) if isinstance(part, AxisVar)]
        if last and axes and axes[-1] != last and buffer_bytes(buffers[store.buffer]) > NEAR:
            return "they walk through memory in different orders"
    return None


def _not_worth_rows(
    producer: Group, consumer: Group, plan: Alignment, buffers: Buffers, target: Target
) -> str | None:
    """Return why a reduction and its pointwise reader should stay separate, or None."""
    # Rows must be enough for the threads, and stay in cache.
    rows, inner = extent_product(plan.outer), extent_product(plan.consumer_inner)
    work = rows * inner * walk_cost(consumer.stores)
    # A joined nest runs in parallel over its rows only, a separate reader over its elements.
    if work > PARALLEL_WORK and rows < 2 * max(target.threads, 1) and inner > rows:
        return f"{rows} rows are too few to run in parallel"
    store = max(consumer.stores, key=lambda s: buffer_bytes(buffers[s.buffer]))
    strides = buffers[store.buffer].stride
    inner_axes = {AxisVar(axis) for axis in plan.consumer_inner}
    moved = Rebuilder(plan.consumer).store(store)
    steps = [s for part, s in zip(moved.index, strides, strict=True) if part in inner_axes]
    # Strided rows: the lanes are neighbouring columns, and the second pass over that many columns
    # finds them in L2 only if they fit.
    if steps and min(map(hint_of, steps)) > 1:
        if target.multiprocessors and _sums_along_memory(producer, buffers):
            return "its sums run along rows of memory, their reader across them"
        tile = inner * target.lanes * 4 * (1 + len(consumer.shape.loads))
        if tile > target.l2_bytes:
            return f"columns of {inner} elements do not stay in cache"
    return None


def _sums_along_memory(producer: Group, buffers: Buffers) -> bool:
    """Return whether most loads of the reductions that vary by row are contiguous along the sum."""
    # The vector of modulations of a diffusion transformer, a product of one row, is added to each
    # row of an image: in one kernel each program would write a column, an element per sector.
    last = {AxisVar(axes[-1]) for axes in producer.shape.binders}
    outer = {AxisVar(axis) for axis in producer.outer}
    along = across = 0
    for load in producer.shape.loads:
        steps = dict(zip(load.index, buffers[load.buffer].stride, strict=True))
        if last.isdisjoint(steps) or outer.isdisjoint(steps):
            continue
        along += any(is_same(steps[axis], 1) for axis in last.intersection(steps))
        across += any(is_same(steps[axis], 1) for axis in outer.intersection(steps))
    return along > across
