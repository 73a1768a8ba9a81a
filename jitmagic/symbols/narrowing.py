"""Computes the ranges to which a Context narrows symbols (context.py).

In: a comparison with a constant, or an interval wanted of `offset + factor * x`. Out: the values of
x for which it holds. A ladder has the ranges that are tried where no range can be computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .interval import ANY_FLOAT, EXACT, INT64, Interval

__all__ = ["FLOAT_LADDER", "INT_LADDER", "comparing_with", "reach", "solved_for"]

_TINY = math.ulp(0.0)
# Ranges that are tried from wide to narrow, if they contain the hint. Narrow ones decide
# comparisons of powers, products and quotients.
INT_LADDER = (
    INT64, EXACT, Interval(-(2**31), 2**31), Interval(1, 2**31), Interval(-(2**31), -1),
    Interval(1, 1023), Interval(1024, 2**31), Interval(-1023, -1), Interval(0, 0),
)  # fmt: skip
FLOAT_LADDER = (
    ANY_FLOAT, ANY_FLOAT._replace(nan=False), Interval(-1e300, 1e300), Interval(-1e6, 1e6),
    Interval(_TINY, 1e300), Interval(-1e300, -_TINY), Interval(1e-150, 1e150),
    Interval(-1e150, -1e-150), Interval(1e-30, 1e6), Interval(-1e6, -1e-30),
    Interval(1e-30, 1 - 1e-6), Interval(1 - 1e-6, 1e6), Interval(0.0, 0.0),
)  # fmt: skip
_MOST_STEPS = 512  # 5 ms; a formula may decide only one number per step


def reach(start: float, end: float, decides: Callable[[float, float], bool]) -> float:
    """Return how far from the whole number `start` towards `end` the answer can be shown. Each step
    is up to twice as long as the last; a step never skips a whole number.
    """
    step = 1.0
    for _ in range(_MOST_STEPS):
        if step < 1.0 or start + 1.0 > end:
            break
        if decides(start + 1.0, stop := min(start + step, end)):
            start, step = stop, step * 2
        else:
            step = max(step / 4, 1.0) if step > 1.0 else 0.0
    return start


def comparing_with(op: str, limit: float, is_int: bool) -> list[Interval]:
    """Return the intervals of the x for which `x op limit`."""
    least, less, at_least, at_most, more, most = _around(limit, is_int)
    return {
        "<": [Interval(least, less)], "<=": [Interval(least, at_most)],
        ">": [Interval(more, most)], ">=": [Interval(at_least, most)],
        "==": [Interval(at_least, at_most)],
        "!=": [Interval(least, less), Interval(more, most)],
    }[op]  # fmt: skip


def _around(limit: float, is_int: bool) -> tuple[float, float, float, float, float, float]:
    """Return the minimum, the next number below `limit`, the first not below it, the last not above
    it, the next above it, the maximum.
    """
    if not is_int or math.isinf(limit):
        down, up = math.nextafter(limit, -math.inf), math.nextafter(limit, math.inf)
        return -math.inf, down, limit, limit, up, math.inf
    first, last = math.ceil(limit), math.floor(limit)
    return INT64.low, first - 1, first, last, last + 1, INT64.high


def solved_for(wanted: Interval, offset: int, factor: int) -> Interval:
    """Return the interval of the ints x for which offset + factor * x is in `wanted`."""
    low, high = (x if math.isinf(x) else int(x) - offset for x in wanted[:2])
    if factor < 0:
        low, high, factor = -high, -low, -factor
    first = low if math.isinf(low) else -(-int(low) // factor)
    return Interval(first, high if math.isinf(high) else int(high) // factor)
