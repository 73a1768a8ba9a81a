"""Ints that Python computes by way of a float, as integer arithmetic: `int(n * 0.75)`.

Comes in: a rounding of an expression of floats. Goes out: the expression of the int, which native
guards can tell. With n*p + q below 2**53, n * (p/q) has no rounding where q is a power of two, and
the float of n/q is on the same side of each integer k as n/q: they are at least 1/q apart, which is
more than half a step of the floats near k.
"""

from __future__ import annotations

from collections.abc import Callable

from .expr import Expr, floordiv, mul
from .interval import EXACT, Interval, of_number
from .scalar import Apply, Number, apply

__all__ = ["rounded"]

Ranges = Callable[[Expr], Interval | None]


def rounded(op: str, expr: Expr, range_of: Ranges) -> Expr:
    """`op` (trunc, floor, ceil, round) of a float; as an Apply where ints cannot tell it."""
    found = _fraction(expr)
    if found is not None and (known := range_of(found[0])) is not None:
        whole, p, q = found
        down = op == "floor" or (op == "trunc" and known.low >= 0 and p >= 0)
        room = EXACT.high - q
        fits = known.mul(of_number(p)).within(Interval(-room, room))
        if fits and (down or op == "ceil"):
            scaled = mul(whole, p)
            return floordiv(scaled, q) if down else mul(floordiv(mul(scaled, -1), q), -1)
    return apply(op, int, expr)


def _fraction(expr: Expr) -> tuple[Expr, int, int] | None:
    """An int, p and q where the expression is the int times p / q, or by q."""
    match expr:
        case Apply("float", (whole,)):
            return whole, 1, 1
        case Apply("/", (Apply("float", (whole,)), Number(by))) if by > 0 and by.is_integer():
            return whole, 1, int(by)
        case Apply("*", (Apply("float", (whole,)), Number(by))):
            return _times(whole, by)
        case Apply("*", (Number(by), Apply("float", (whole,)))):
            return _times(whole, by)
    return None


def _times(whole: Expr, by: float) -> tuple[Expr, int, int] | None:
    """A float's denominator is a power of two."""
    p, q = by.as_integer_ratio() if abs(by) < EXACT.high else (0, 1)
    return (whole, p, q) if by else None
