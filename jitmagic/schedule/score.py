"""Estimates costs, in units of one vector addition, and savings of a fusion, in bytes.

In: values and buffers. Out: numbers that fuse.py and the renderers compare, and sentences that say
why a fusion does not pay. Legality is decided in legality.py; this module only estimates profit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from weakref import WeakKeyDictionary

from ..devices import Target
from ..loops.expr import AxisVar
from ..loops.ir import Axis, Buffer, Compute, Load, Reduction, Scan, Store, Value, walk
from ..operators.scalar import SCALARS
from ..symbols.size import Dimension, hint_of
from .legality import Alignment, Shape
from .substitution import Rebuilder

__all__ = [
    "CHEAP",
    "EXPENSIVE",
    "PARALLEL_WORK",
    "ROW",
    "body_cost",
    "buffer_bytes",
    "extent_of",
    "extent_product",
    "not_worth_pointwise",
    "not_worth_rows",
    "op_cost",
    "points",
    "value_cost",
    "waits_for_scan",
    "walk_cost",
]

CHEAP = 8  # a value of at most this cost may be recomputed in every reader
EXPENSIVE = 8  # a value above this cost is saved in a scratch row instead of being recomputed
ROW = 16384  # elements that one program of a GPU holds in its registers
NEAR = 1 << 14  # bytes that stay in L1 in any order of access
PARALLEL_WORK = 40_000  # about 5 µs: below it, waking other threads costs more than it saves

_DISTINCT: WeakKeyDictionary[Value, int] = WeakKeyDictionary()


def op_cost(value: Value) -> int:
    """Return the cost of one node without its operands."""
    if isinstance(value, Compute):
        return SCALARS[value.op].cost
    if isinstance(value, Scan):
        return EXPENSIVE  # its points wait for each other
    return int(isinstance(value, Load))


def body_cost(values: Iterable[Value]) -> int:
    """Return the cost of evaluating these distinct nodes once."""
    return sum(op_cost(value) for value in values)


def value_cost(value: Value) -> int:
    """Return the cost of one point of `value`, reductions multiplied by their extents."""
    total = _distinct_cost(value)
    for node in value.landmarks:
        if isinstance(node, Reduction):
            total += extent_product(node.axes) * max(1, _distinct_cost(node.value))
    return total


def _distinct_cost(value: Value) -> int:
    """Return `body_cost(walk((value,)))`, from the cached cost of its longest operand."""
    # Otherwise a chain that grows node by node would be summed up again for each of them.
    if (known := _DISTINCT.get(value)) is not None:
        return known
    nodes: Iterable[Value] = value.below
    total = op_cost(value)
    parts = [part for part in value.operands if part in _DISTINCT]
    if parts:
        # Starting from the largest operand leaves the fewest nodes to sum up.
        longest = max(parts, key=lambda part: len(part.below))
        total += _DISTINCT[longest]
        nodes = set(nodes).difference(longest.below, (longest,))
    total += body_cost(nodes)
    _DISTINCT[value] = total
    return total


def walk_cost(stores: Iterable[Store]) -> int:
    """Return the cost of one point of all the stored values, shared nodes counted once."""
    return body_cost(walk(tuple(store.value for store in stores)))


def points(axes: Iterable[Axis]) -> Dimension:
    """Return the exact number of points of a loop over these axes."""
    return prod(axis.extent for axis in axes)


def extent_product(axes: Iterable[Axis]) -> int:
    """Return the number of points of a loop over these axes, by the hints of this call."""
    return prod(hint_of(axis.extent) for axis in axes)


def extent_of(axes: Iterable[Axis]) -> Dimension:
    """Return the number of points, a Size if it is dynamic."""
    return prod(axis.extent for axis in axes)


def buffer_bytes(buffer: Buffer) -> int:
    """Return the bytes of the buffer's elements."""
    return prod(map(hint_of, buffer.shape)) * buffer.dtype.itemsize


def waits_for_scan(consumer: Shape, target: Target, cost: int) -> bool:
    """Return whether values of this cost would be computed on few threads, by a scan of few rows
    that adds little to them.
    """
    if target.threads <= 1 or cost <= CHEAP or not consumer.scans:
        return False
    rows = extent_product(consumer.outer)
    elements = rows * max(map(extent_product, consumer.binders))
    return rows < 2 * target.threads and elements * cost > PARALLEL_WORK


def not_worth_pointwise(
    buffers: Mapping[str, Buffer], produced: Sequence[Store], plan: Alignment
) -> str | None:
    """Return why two pointwise nests should stay separate, or None."""
    # Both must walk memory in the same order: a transposed read costs a cache line per element,
    # more than the round trip that joining saves, unless all stays in L1.
    last = plan.outer[-1:] and AxisVar(plan.outer[-1])
    moved = Rebuilder(plan.producer)
    for store in produced:  # pointwise: no inner axes, all indexes use outer ones
        axes = [part for part in map(moved.expr, store.index) if isinstance(part, AxisVar)]
        if last and axes and axes[-1] != last and buffer_bytes(buffers[store.buffer]) > NEAR:
            return "they walk through memory in different orders"
    return None


def not_worth_rows(
    buffers: Mapping[str, Buffer], target: Target, consumer: Shape, plan: Alignment
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
        tile = inner * target.lanes * 4 * (1 + len(consumer.loads))
        if tile > target.l2_bytes:
            return f"columns of {inner} elements do not stay in cache"
    return None
