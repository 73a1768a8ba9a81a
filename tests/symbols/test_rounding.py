"""Ints by way of floats: the integer expression is Python's result, up to the largest that fits."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from jitmagic.symbols.interval import Interval, of_number
from jitmagic.symbols.polynomial import is_integral
from jitmagic.symbols.rounding import rounded
from jitmagic.symbols.symbolic_numbers import Apply, Number, Symbol, evaluate

PYTHON: dict[str, Callable[[float], int]] = {
    "trunc": math.trunc, "floor": math.floor, "ceil": math.ceil, "round": round,
}  # fmt: skip
VALUES = (2, 3, 5, 6, 7, 48, 49, 10_007, 2**31 - 1, 2**31, 2**40 + 1, 2**50 - 1, 2**50)


@pytest.mark.parametrize("by", [1.0, 2.0, 3.0, 7.0, 49.0, 1e5, 0.75, 0.5, -0.5, -1.25, 0.1, 1 / 3])
@pytest.mark.parametrize("divides", [False, True])
@pytest.mark.parametrize("op", PYTHON)
def test_roundings(op: str, divides: bool, by: float) -> None:
    n = Symbol("n", int, Interval(2, 2**50), "a test")
    whole = Apply("float", (n,))
    expr = Apply("/" if divides else "*", (whole, Number(by)))
    ranges = {n: n.range}

    def range_of(part: object) -> Interval:
        return ranges[n] if part is n else of_number(0)

    found = rounded(op, expr, range_of)
    for value in VALUES:
        wanted = PYTHON[op](float(value) / by if divides else float(value) * by)
        assert evaluate(found, {n: value}) == wanted
    whole_numbers = by in (1.0, 2.0, 3.0) if divides else by in (1.0, 2.0, 3.0, 0.75, 0.5)
    if op != "round" and whole_numbers:
        assert is_integral(found)


@pytest.mark.parametrize("n", [2**53 - 1, 2**53 - 2, 3 * 2**51 - 1])
def test_beyond_what_floats_tell_apart_it_stays_a_float(n: int) -> None:
    symbol = Symbol("n", int, Interval(2, 2**53 - 1), "a test")
    expr = Apply("/", (Apply("float", (symbol,)), Number(3.0)))
    found = rounded("floor", expr, lambda part: Interval(2, 2**53 - 1))
    assert evaluate(found, {symbol: n}) == math.floor(n / 3)
