"""Sizes compute like ints, become polynomials in normal form, and never leak a call's value."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest

from jitmagic.symbols import interned
from jitmagic.symbols.context import Context, Specialize
from jitmagic.symbols.expr import Expr, Integer
from jitmagic.symbols.interval import Interval
from jitmagic.symbols.size import Size, is_same, size_of
from jitmagic.symbols.symbolic_numbers import Symbol, evaluate

Relations = list[tuple[str, Expr, Expr]]


def sizes(*hints: int) -> tuple[list[Any], list[Symbol], Relations]:
    relations: Relations = []
    context = Context(lambda *_: None, lambda *told: relations.append(told))
    symbols = [Symbol(f"s{i}", int, Interval(2, 2**31), i) for i in range(len(hints))]
    for symbol, hint in zip(symbols, hints, strict=True):
        context.add(symbol, hint)
    return [size_of(symbol, context) for symbol in symbols], symbols, relations


OPERATIONS: list[Callable[[Any, Any], Any]] = [
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod,
]  # fmt: skip


@pytest.mark.parametrize("first", OPERATIONS)
@pytest.mark.parametrize("second", OPERATIONS)
def test_arithmetic_is_that_of_ints(first: Callable[..., Any], second: Callable[..., Any]) -> None:
    (a, b), symbols, _ = sizes(12, 5)
    for left, right, more in itertools.product((a, b, 3, a * b), (a, b, 4), (a, 7, b * 2)):
        if not isinstance(left, Size) and not isinstance(right, Size):
            continue
        made = second(first(left, right) + 100 * a * b, more)
        for values in ((12, 5), (2, 9), (31, 31)):
            known: dict[Expr, Any] = dict(zip(symbols, values, strict=True))

            def number(x: Any, known: dict[Expr, Any] = known) -> int:
                return evaluate(x.expr, dict(known)) if isinstance(x, Size) else x

            x, y, z = number(left), number(right), number(more)
            assert number(made) == second(first(x, y) + 100 * values[0] * values[1], z)


def test_equal_polynomials_are_one_object() -> None:
    (a, b), _, relations = sizes(3, 4)
    pairs = [
        ((a + 1) * b, b + a * b),
        (a * b * 6 // b, 6 * a),
        ((a + b) * (a - b), a * a - b * b),
        (2 * (a * b) - a * (b + b), 0),
        ((a * b) % a, 0),
    ]
    assert all(is_same(left, right) for left, right in pairs)
    assert all(left == right for left, right in pairs)
    assert not relations


def test_what_no_range_can_say_is_told_once_as_a_relation() -> None:
    (a, b), symbols, relations = sizes(6, 6)
    assert a == b and a == b and not a != b
    assert relations[0] == ("==", *symbols)
    assert len([told for told in relations if told[0] == "=="]) == len(relations)


@pytest.mark.parametrize(
    "use", [int, range, operator.index, lambda n: [0] * n, lambda n: "abc"[n:], hex]
)
def test_a_use_as_an_int_specializes(use: Callable[[Any], Any]) -> None:
    (a, b), symbols, _ = sizes(3, 4)
    with pytest.raises(Specialize) as caught:
        use(a * b)
    assert set(caught.value.symbols) == set(symbols)


def test_a_divisor_that_may_be_zero_is_guarded() -> None:
    (a, b), _, relations = sizes(6, 6)
    with pytest.raises(ZeroDivisionError):
        (a * 8) // (a - b)
    assert relations


def test_a_comparison_with_itself_or_an_int_makes_no_expression() -> None:
    (a, b), _, relations = sizes(12, 5)
    numbers = [Integer(n) for n in (-1, 0, 1, 2, 600)]  # held, and so are the expressions
    asked = [a, a * b, a + 1, a * 3 + b, (a + 1) // 2]
    before = set(interned._NODES.keys())
    for size, number in itertools.product(asked, numbers):
        assert size.known("==", size) is True and size.known("<", size) is False
        size.known("<", number.value)
    made = set(interned._NODES.keys()) - before  # others may be collected meanwhile
    assert not made and not relations and numbers
