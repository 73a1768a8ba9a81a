"""Which function of numbers a float is, told from two of its values."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from jitmagic.symbols.interval import ANY_FLOAT, Interval, farthest
from jitmagic.symbols.probe import is_same_float, read_float, value_at
from jitmagic.symbols.scalar import Number, Symbol, single

P = Symbol("p", float, ANY_FLOAT, "p")
Q = Symbol("q", float, ANY_FLOAT, "q")
VALUES = (
    {P: 0.31830988618379067, Q: 0.14159265358979312},
    {P: 0.69314718055994531, Q: 0.57721566490153286},
)
ELSEWHERE = {P: 0.8414709848078965, Q: 0.2401597870235478}
FUNCTIONS: dict[str, Callable[[float, float], float]] = {
    "itself": lambda p, q: p,
    "the other": lambda p, q: q,
    "negated": lambda p, q: -p,
    "kept": lambda p, q: 1 - p,
    "scale": lambda p, q: 1 / (1 - p),
    "share of classes": lambda p, q: p / 13,
    "half": lambda p, q: 0.5 * p,
    "times a decimal": lambda p, q: p * 0.3,
    "plus": lambda p, q: p + 2.0,
    "from": lambda p, q: 3.0 - p,
    "root": lambda p, q: math.sqrt(p),
    "float": lambda p, q: single(p),
    "by a float": lambda p, q: 1.0 / single(p),
    "middle": lambda p, q: (p + q) / 2,
    "ratio": lambda p, q: q / p,
    "difference": lambda p, q: q - p,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_read_to_the_bit(name: str) -> None:
    function = FUNCTIONS[name]
    expr = read_float(VALUES, [function(known[P], known[Q]) for known in VALUES])
    assert expr is not None
    assert is_same_float(value_at(expr, ELSEWHERE), function(ELSEWHERE[P], ELSEWHERE[Q]))


def test_equal_floats_are_a_constant() -> None:
    assert read_float(VALUES, (0.25, 0.25)) == Number(0.25)
    expr = read_float(VALUES, (math.nan, math.nan))
    assert expr is not None and math.isnan(value_at(expr, ELSEWHERE) or 0)


@pytest.mark.parametrize(
    "function", [lambda p: math.sin(p), lambda p: p**2 + p, lambda p: 2.0 / (7 - p * p)]
)
def test_what_is_no_such_function_is_not_guessed(function: Callable[[float], float]) -> None:
    assert read_float(VALUES, [function(known[P]) for known in VALUES]) is None


def test_what_raises_has_no_value() -> None:
    expr = read_float(VALUES, [1 / (1 - known[P]) for known in VALUES])
    assert expr is not None
    assert value_at(expr, {P: 1.0}) is None


def test_the_farthest_float_of_which_something_holds() -> None:
    assert farthest(0.5, math.inf, lambda x: x * 0.25 <= 1.0) == 4.0
    assert farthest(-1.0, 1e300, lambda x: x < 0.0) == -5e-324
    assert farthest(1.0, 2.0, lambda x: True) == 2.0
    assert Interval(1.0, farthest(1.0, math.inf, lambda x: x < 2.0)).high == math.nextafter(2, 1)
