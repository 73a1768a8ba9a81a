"""Finds the function that computed a float, given its value at a few arguments.

In: sets of values for the symbols, and the float that code computed from each set (`1 - p`,
`1 / (1 - p)`, `0.5 * beta`, perhaps rounded to a C++ float). The values have random digits, so that
no program contains them. Out: the expression that gives exactly these floats, or None. The
candidates are the forms in which kernels and formulas use numbers: a function of one number with a
constant, or of two numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from .expr import Expr
from .scalar import Apply, Number, Symbol, evaluate

__all__ = ["is_same_float", "read_float", "value_at"]

Values = Mapping[Symbol, float]
_ONE = Number(1.0)
_HALF = Number(0.5)


def read_float(values: Sequence[Values], floats: Sequence[float]) -> Expr | None:
    """Return an expression equal to `floats[n]` at `values[n]`; two samples fix its constant."""
    if all(is_same_float(floats[0], one) for one in floats[1:]):
        return Number(floats[0])
    for expr in _candidates(tuple(values[0]), values, floats):
        if all(
            is_same_float(value_at(expr, known), one)
            for known, one in zip(values, floats, strict=True)
        ):
            return expr
    return None


def value_at(expr: Expr, known: Values) -> float | None:
    """Return the value that Python computes, or None if it raises."""
    try:
        return float(evaluate(expr, dict[Expr, float](known.items())))
    except (ArithmeticError, ValueError):
        return None


def is_same_float(a: float | None, b: float | None) -> bool:
    """Compare bitwise: 0.0 differs from -0.0, and nan equals nan."""
    return a is not None and b is not None and float(a).hex() == float(b).hex()


def _candidates(
    symbols: tuple[Symbol, ...], values: Sequence[Values], floats: Sequence[float]
) -> Iterator[Expr]:
    yield from symbols
    for symbol in symbols:
        yield from _of_one(symbol)
    for symbol in symbols:
        for part in (symbol, *_of_one(symbol)):
            yield from _with_constant(part, values[0], floats[0])
    for first in symbols:
        for second in symbols:
            if first is not second:
                yield from _of_two(first, second)


@cache
def _of_one(x: Symbol) -> tuple[Expr, ...]:
    rest, root = Apply("-", (_ONE, x)), Apply("sqrt", (x,))
    inverse, rounded = Apply("/", (_ONE, x)), Apply("single", (x,))
    plain = (x, rest, inverse, Apply("/", (_ONE, rest)), root, Apply("/", (_ONE, root)))
    others = (
        Apply("*", (x, x)), Apply("/", (_HALF, x)), rounded, Apply("/", (_ONE, rounded)),
        Apply("single", (inverse,)), Apply("neg", (rounded,)),
    )  # fmt: skip
    return (*plain[1:], *(Apply("neg", (one,)) for one in plain), *others)


def _with_constant(part: Expr, known: Values, result: float) -> Iterator[Expr]:
    value = value_at(part, known)
    if not value or not result:
        return
    for factor in _near(result / value):
        yield Apply("*", (part, Number(factor)))
    for divisor in _near(value / result):
        yield Apply("/", (part, Number(divisor)))
    for term in _near(result - value):
        yield Apply("+", (part, Number(term)))
    for term in _near(result + value):
        yield Apply("-", (Number(term), part))


def _near(number: float) -> Iterator[float]:
    """Yield constants that a program may contain near a computed, hence rounded, number."""
    yield number
    if abs(number) < 2**53:
        yield float(round(number))
        yield float(f"{number:.12g}")


@cache
def _of_two(x: Symbol, y: Symbol) -> tuple[Expr, ...]:
    total, gap = Apply("+", (x, y)), Apply("-", (x, y))
    return (
        total, gap, Apply("*", (x, y)), Apply("/", (x, y)),
        Apply("*", (total, _HALF)), Apply("*", (gap, _HALF)),
    )  # fmt: skip
