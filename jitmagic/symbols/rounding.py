"""Rewrites ints that Python computes through a float as integer arithmetic: `int(n * 0.75)`.

In: a rounding of a float expression. Out: an int expression, which native guards can compute. With
n*p + q below 2**53, n * (p/q) is exact if q is a power of two. The float of n/q is on the same side
of each integer k as n/q, since they are at least 1/q apart, more than half an ulp near k.
"""

from __future__ import annotations

from collections.abc import Callable

from .expr import Expr, floordiv, mul
from .interval import EXACT, Interval, of_number
from .symbolic_numbers import Apply, Number, apply

__all__ = ["rounded"]

Ranges = Callable[[Expr], Interval | None]


def rounded(op: str, expr: Expr, range_of: Ranges) -> Expr:
    """Return `op` (trunc, floor, ceil, round) of a float; an Apply if int arithmetic cannot express
    it.
    """
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
    """Return (n, p, q) if the expression is n * (p / q) or n / q, with an int n."""
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
    """Split a float into p / q; the denominator is a power of two."""
    p, q = by.as_integer_ratio() if abs(by) < EXACT.high else (0, 1)
    return (whole, p, q) if by else None
