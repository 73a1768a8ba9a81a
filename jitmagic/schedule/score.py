"""What things cost, in units of one vector addition, and what a fusion saves, in bytes.

Comes in: values and buffers. Goes out: plain numbers that fuse.py and the renderers compare;
nothing here decides whether a rewrite is right (that is legality.py), only whether it is worth it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from ..loops.ir import Axis, Buffer, Compute, Load, Reduction, Store, Value, walk

__all__ = [
    "CHEAP",
    "EXPENSIVE",
    "PARALLEL_WORK",
    "body_cost",
    "buffer_bytes",
    "extent_product",
    "op_cost",
    "value_cost",
    "walk_cost",
]

CHEAP = 8  # a value of at most this cost may be computed again in every consumer
EXPENSIVE = 8  # a value above this cost is kept in a scratch row instead of being computed twice
PARALLEL_WORK = 40_000  # about 5 µs: below it, waking other threads costs more than it gives

_COSTS: Mapping[str, int] = {
    **dict.fromkeys(("truediv", "sqrt", "rsqrt", "reciprocal"), 3),
    **dict.fromkeys(("floordiv", "remainder", "fmod", "hypot", "nextafter"), 8),
    **dict.fromkeys(("exp", "exp2", "sigmoid", "expm1", "log", "log2", "log10", "log1p"), 10),
    **dict.fromkeys(("sin", "cos", "tan", "tanh", "erf", "sinh", "cosh"), 14),
    **dict.fromkeys(("asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh"), 16),
    **dict.fromkeys(("erfc", "erfinv", "lgamma", "pow"), 25),
}


def op_cost(value: Value) -> int:
    """Cost of one node without its operands."""
    match value:
        case Compute(op=op):
            return _COSTS.get(op, 1)
        case Load():
            return 1
    return 0


def body_cost(values: Iterable[Value]) -> int:
    """Cost of evaluating these distinct nodes once."""
    return sum(op_cost(value) for value in values)


def value_cost(value: Value) -> int:
    """Cost of one point of `value`, reductions multiplied by their extents."""
    total = 0
    for node in walk((value,)):
        if isinstance(node, Reduction):
            total += extent_product(node.axes) * max(1, body_cost(walk((node.value,))))
        else:
            total += op_cost(node)
    return total


def walk_cost(stores: Iterable[Store]) -> int:
    """Cost of one point of all the values the stores write, shared nodes once."""
    return body_cost(walk(tuple(store.value for store in stores)))


def extent_product(axes: Iterable[Axis]) -> int:
    """Number of points of a loop over these axes."""
    return prod(axis.extent for axis in axes)


def buffer_bytes(buffer: Buffer) -> int:
    """Bytes of the buffer's elements."""
    return prod(buffer.shape) * buffer.dtype.itemsize
