"""Formulas of sizes and floats that are found by trying, and the answers that are cached."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from jitmagic.symbols.context import Context
from jitmagic.symbols.expr import Expr, add, floordiv, integer, mul
from jitmagic.symbols.interval import ANY_FLOAT, Interval, farthest
from jitmagic.symbols.polynomial import product
from jitmagic.symbols.probe import (
    Answers,
    Asked,
    Formulas,
    Verdict,
    floats_in,
    is_same_float,
    noting,
    read_float,
    size_tuples,
    unlikely_float,
    value_at,
)
from jitmagic.symbols.symbolic_numbers import Number, Symbol, evaluate, single

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


# -- sizes -----------------------------------------------------------------------------------------

N = Symbol("n", int, Interval(1, 100), "n")
M = Symbol("m", int, Interval(1, 1 << 20), "m")


def context() -> Context:
    made = Context(lambda symbol, interval: None)
    made.add(N, 24)
    made.add(M, 6)
    return made


def test_size_tuples_start_at_the_call_and_pass_the_guards() -> None:
    tuples = size_tuples(context(), [N, M])
    assert tuples[0] == {N: 24, M: 6}
    assert len(tuples) >= 8 and all(N.range.has(known[N]) for known in tuples)
    assert {known[M] % 4 for known in tuples} == {0, 1, 2, 3}


def test_size_tuples_exclude_values_that_a_comparison_excluded() -> None:
    made = context()
    assert made.decide("<", M, integer(50))
    assert all(known[M] < 50 for known in size_tuples(made, [N, M]))


@pytest.mark.parametrize(
    "formula",
    [
        N,
        add(N, integer(-3)),
        product(floordiv(add(N, integer(1)), 2), M),
        add(mul(N, 5), integer(7)),
        mul(product(N, M), 3),
        integer(8),
    ],
    ids=str,
)
def test_formulas_hold_at_all_size_tuples(formula: Expr) -> None:
    tuples = size_tuples(context(), [N, M])
    numbers = [int(evaluate(formula, dict(known))) for known in tuples]
    found = Formulas([], tuples).read(numbers)
    assert found is not None
    elsewhere: dict[Expr, int] = {N: 77, M: 1013}
    assert evaluate(found, dict(elsewhere)) == evaluate(formula, dict(elsewhere))


def test_numbers_that_follow_a_formula_at_two_tuples_alone_are_not_read() -> None:
    tuples = size_tuples(context(), [N, M])
    numbers = [known[N] for known in tuples]
    numbers[-1] += 1
    assert Formulas([], tuples).read(numbers) is None


# -- examples of floats ----------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [Interval(0.0, 1.0), Interval(1.5, 9e30), Interval(-9.0, -5.0)])
def test_unlikely_floats_are_distinct_and_in_the_interval(limits: Interval) -> None:
    made = [unlikely_float(limits, count, which) for count in range(4) for which in (0, 1)]
    assert len(set(made)) == len(made)
    assert all(limits.has(number) for number in (*made, *floats_in(limits)))


# -- answers ---------------------------------------------------------------------------------------


def test_answers_are_asked_once_and_the_least_recently_used_is_dropped() -> None:
    asked: list[str] = []
    answers = Answers("it works", most=2)

    def of(key: str) -> Verdict:
        return answers.of(key, key, lambda: asked.append(key) or Verdict.holds(key))

    for key in ("a", "b", "a", "c", "a", "b"):
        assert of(key).found == key
    assert asked == ["a", "b", "c", "b"]


def test_a_compile_notes_each_answer_once() -> None:
    answers, asked = Answers("it works"), list[Asked]()
    refused = Verdict.fails(ValueError("too large"), 7)
    with noting(asked):
        for _ in range(2):
            answers.of(math.sin, "sin", lambda: refused)
    answers.of(math.cos, "cos", Verdict.holds)
    assert list(map(str, asked)) == ["it works, sin: fails, at 7, ValueError: too large"]
