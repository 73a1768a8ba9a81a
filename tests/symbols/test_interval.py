"""Intervals and contexts against Python: every result lies where it was said to lie."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest

from jitmagic.symbols.context import Context, Specialize
from jitmagic.symbols.expr import Expr, Integer
from jitmagic.symbols.interval import ANY_FLOAT, EXACT, INT64, Interval, of_number
from jitmagic.symbols.symbolic_numbers import (
    OPERATIONS,
    Number,
    Symbol,
    apply,
    evaluate,
    interval_of,
    symbols_of,
)

INTS = [0, 1, -1, 2, 3, -7, 100, 1023, 2**31, -(2**31), 2**53, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, -3.75, 1e300, -1e300, math.inf, -math.inf]
INT_OPS = ["+", "-", "*", "//", "%", "<<", ">>", "&", "|", "^", "min", "max"]
FLOAT_OPS = ["+", "-", "*", "/", "//", "%", "**", "min", "max"]
UNARY = ["neg", "abs", "float", "trunc", "floor", "ceil", "round", "sqrt", "exp", "log", "tanh"]
COMPARISONS = ["<", "<=", ">", ">=", "==", "!="]


def spans(numbers: list[Any], rng: random.Random, count: int) -> list[tuple[Interval, list[Any]]]:
    """Intervals between two of the numbers, and some of those that lie in each."""
    made = []
    for low, high in itertools.islice(
        (sorted(rng.sample(numbers, 2)) for _ in itertools.count()), count
    ):
        interval = Interval(low, high)
        made.append((interval, [number for number in numbers if interval.has(number)]))
    return made


@pytest.mark.parametrize(
    ("op", "numbers"),
    [(op, INTS) for op in INT_OPS] + [(op, FLOATS) for op in FLOAT_OPS],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_results_lie_in_their_interval(op: str, numbers: list[Any]) -> None:
    rng = random.Random(op)
    operation = OPERATIONS[op]
    for (a, left), (b, right) in zip(
        spans(numbers, rng, 300), spans(numbers, rng, 300), strict=True
    ):
        bounds = operation.bounds(a, b)
        if bounds is None:
            continue
        for x, y in itertools.product(left, right):
            result = operation.python(x, y)  # what has bounds raises nothing
            assert bounds.has(result), (a, b, x, y, result, bounds)


@pytest.mark.parametrize("op", UNARY)
def test_results_of_one_operand(op: str) -> None:
    operation = OPERATIONS[op]
    for interval, inside in spans(FLOATS, random.Random(op), 200):
        bounds = operation.bounds(interval)
        for x in inside if bounds is not None else ():
            assert bounds is not None and bounds.has(operation.python(x)), (interval, x, bounds)


@pytest.mark.parametrize("op", COMPARISONS)
@pytest.mark.parametrize("numbers", [INTS, FLOATS], ids=["int", "float"])
def test_known_comparisons_are_right(op: str, numbers: list[Any]) -> None:
    rng = random.Random(op)
    for (a, left), (b, right) in zip(
        spans(numbers, rng, 200), spans(numbers, rng, 200), strict=True
    ):
        answer = a.compare(op, b)
        for x, y in itertools.product(left, right):
            assert answer in (None, eval(f"x {op} y", {"x": x, "y": y}))
    assert Interval(1, 2).compare(op, of_number(math.nan)) in (None, op == "!=")


class Recorder:
    """A context, and the ranges that it narrowed its symbols to."""

    def __init__(self) -> None:
        self.ranges: dict[Symbol, Interval] = {}
        self.context = Context(self.ranges.__setitem__)

    def symbol(self, name: str, hint: float) -> Symbol:
        made = Symbol(name, type(hint), INT64 if type(hint) is int else ANY_FLOAT, name)
        self.ranges[made] = made.range
        self.context.add(made, hint)
        return made


def grown(rng: random.Random, leaves: list[Expr], kind: type, depth: int) -> Expr:
    """A random expression of some symbols."""
    if depth == 0:
        return rng.choice(leaves)
    a, b = (grown(rng, leaves, kind, depth - 1) for _ in range(2))
    if kind is int and rng.random() < 0.5:
        b = Integer(rng.choice([1, 2, 3, 7, -2]))
    return apply(rng.choice("+-*" if kind is int else ["+", "-", "*", "/"]), kind, a, b)


@pytest.mark.parametrize("kind", [int, float])
def test_what_was_decided_and_required_holds_for_all_in_the_ranges(kind: type) -> None:
    rng = random.Random(kind.__name__)
    numbers = [n for n in (INTS if kind is int else FLOATS) if abs(n) < 1e18]
    decided = 0
    for _ in range(400):
        recorder = Recorder()
        hints = [rng.choice(numbers) for _ in range(2)]
        symbols = [recorder.symbol(name, hint) for name, hint in zip("ab", hints, strict=True)]
        constant = Integer(rng.choice([0, 5])) if kind is int else Number(rng.choice([0.0, 0.5]))
        leaves: list[Expr] = [*symbols, constant]
        left, right = (
            grown(rng, leaves, kind, 2),
            rng.choice([constant, grown(rng, leaves, kind, 1)]),
        )
        op = rng.choice(COMPARISONS)
        if not symbols_of(left) or (not symbols_of(right) and right is not constant):
            continue  # Python's own folding
        try:
            recorder.context.require(left, INT64 if kind is int else ANY_FLOAT, "")
            recorder.context.require(right, INT64 if kind is int else ANY_FLOAT, "")
            answer = recorder.context.decide(op, left, right)
        except Specialize as special:
            assert set(special.symbols) <= set(symbols) and special.symbols
            continue
        decided += 1
        choices = [[n for n in numbers if recorder.ranges[symbol].has(n)] for symbol in symbols]
        assert all(hint in inside for hint, inside in zip(hints, choices, strict=True))
        for point in itertools.product(*choices):
            known: dict[Expr, Any] = dict(zip(symbols, point, strict=True))
            x, y = evaluate(left, dict(known)), evaluate(right, dict(known))
            assert eval(f"x {op} y", {"x": x, "y": y}) is answer, (left, op, right, point)
    assert decided > 100


def test_expressions_are_in_normal_form_and_interned() -> None:
    recorder = Recorder()
    i, j = recorder.symbol("i", 3), recorder.symbol("j", 4)
    assert apply("-", int, apply("+", int, i, j), j) is i
    assert apply("+", int, i, j) is apply("+", int, j, i)
    assert apply("//", int, apply("*", int, i, Integer(6)), Integer(3)) is apply(
        "*", int, i, Integer(2)
    )
    assert Number(0.0) is not Number(-0.0)
    assert set(symbols_of(apply("*", int, i, j))) == {i, j}
    assert recorder.context.known("<", i, apply("+", int, i, Integer(1))) is not False


def test_a_multiple_is_solved_exactly() -> None:
    recorder = Recorder()
    i = recorder.symbol("i", 5)
    expr = apply("-", int, apply("*", int, i, Integer(3)), Integer(7))
    assert recorder.context.decide("<", expr, Integer(20)) is True
    assert recorder.ranges[i].high == 8
    assert recorder.context.decide(">=", expr, Integer(-7)) is True
    assert recorder.ranges[i].low == 0
    assert recorder.ranges[i].within(EXACT)


def test_long_chains_need_no_stack() -> None:
    recorder = Recorder()
    x: Expr = recorder.symbol("x", 0.5)
    for _ in range(5000):
        x = apply("*", float, x, Number(0.5))
    assert interval_of(x, {}) is not None
    assert recorder.context.range_of(x) is not None


def test_another_sign_of_zero_and_nan() -> None:
    recorder = Recorder()
    x = recorder.symbol("x", math.nan)
    with pytest.raises(Specialize):
        recorder.context.decide("<", x, Number(3.0))
    y = recorder.symbol("y", -0.0)
    assert recorder.context.decide("==", y, Integer(0)) is True
    assert recorder.ranges[y].has(0.0) and not recorder.ranges[y].has(1e-320)


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_a_wave_lies_in_its_interval_and_is_narrow_between_extremes(name: str) -> None:
    rng, operation = random.Random(name), OPERATIONS[name]
    corners = [n * math.pi / 2 for n in range(-6, 7)]
    for _ in range(2000):
        low = rng.choice([rng.uniform(-9, 9), rng.choice(corners), rng.uniform(-200, 200)])
        interval = Interval(low, low + rng.choice([0.0, 1e-9, 0.3, 1.5, math.pi, 5.0]))
        bounds = operation.bounds(interval)
        assert bounds is not None
        for part in (0.0, rng.random(), rng.random(), 1.0):
            x = interval.low + part * (interval.high - interval.low)
            assert bounds.has(operation.python(x)), (interval, x, bounds)
        if abs(low) < 90:
            assert bounds.high - bounds.low <= interval.high - interval.low + 1e-12


@pytest.mark.parametrize("kind", [int, float])
def test_a_cosine_of_a_count_is_decided_for_a_range_of_counts(kind: type) -> None:
    """`alpha == 1` of torch's SWALR, at the third of ten epochs."""
    seen: list[Interval] = []
    context = Context(lambda symbol, range: seen.append(range))
    count = Symbol("n", kind, INT64 if kind is int else Interval(0.0, 2.0**20), "n", kind is float)
    context.add(count, kind(3))
    share = apply("/", float, apply("float", float, count), Number(10.0))
    wave = apply("cos", float, apply("*", float, share, Number(math.pi)))
    assert not context.decide("==", wave, Number(-1.0))
    found = context.range_of(count)
    assert found is not None and found.has(3) and found.has(9) and not found.has(10)
