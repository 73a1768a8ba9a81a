"""Estimates costs, in units of one vector addition, and savings of a fusion, in bytes.

In: values and buffers. Out: numbers that fuse.py and the renderers compare. Legality is decided in
legality.py; this module only estimates profit.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from weakref import WeakKeyDictionary

from ..loops.ir import Axis, Buffer, Compute, Load, Reduction, Scan, Store, Value, walk
from ..operators.scalar import SCALARS
from ..symbols.size import Dimension, hint_of

__all__ = [
    "CHEAP",
    "EXPENSIVE",
    "PARALLEL_WORK",
    "ROW",
    "body_cost",
    "buffer_bytes",
    "extent_of",
    "extent_product",
    "op_cost",
    "points",
    "value_cost",
    "walk_cost",
]

CHEAP = 8  # a value of at most this cost may be recomputed in every reader
EXPENSIVE = 8  # a value above this cost is saved in a scratch row instead of being recomputed
ROW = 16384  # elements that one program of a GPU holds in its registers
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
