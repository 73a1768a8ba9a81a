"""The native program gives what evaluating expressions one by one gives."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import pytest

from jitmagic.symbols.context import holds_for
from jitmagic.symbols.expr import Expr, Integer
from jitmagic.symbols.interval import Interval
from jitmagic.symbols.predicates import Predicates
from jitmagic.symbols.size import Size, SizeFloat, size_of
from jitmagic.symbols.size_programs import SizeCode
from jitmagic.symbols.symbolic_numbers import Apply, Symbol, constant, evaluate

VALUES = [(2, 2), (7, 3), (16, 31), (101, 2)]


class Listed(list[Any]):
    """As fx has them."""


def symbols() -> tuple[Predicates, list[Symbol], Any, Any]:
    made = [Symbol(f"s{n}", int, Interval(2, 1000), ("a test", n)) for n in range(2)]
    found = Predicates(dict(zip(made, (12, 5), strict=True)))
    return found, made, *(size_of(symbol, found.context) for symbol in made)


def plainly(part: Any, known: dict[Expr, Any]) -> Any:
    if isinstance(part, Size):
        return evaluate(part.expr, dict(known))
    if isinstance(part, tuple | list):
        return [plainly(item, known) for item in part]
    return part


def as_lists(part: Any) -> Any:
    if isinstance(part, tuple | list):
        return [as_lists(item) for item in part]
    return part


def filled(named: list[Symbol], structure: Any, values: tuple[int, ...]) -> Any:
    code = SizeCode(len(named))
    code.set_symbols(named)
    registers = code.with_registers(structure)
    return code.program().filled(registers, values)


@pytest.mark.parametrize("values", VALUES)
def test_sizes_are_filled_in_wherever_they_are(values: tuple[int, int]) -> None:
    _, named, a, b = symbols()
    greater = size_of(Apply("max", (a.expr, (b * 3).expr)), a.context)
    structure = (
        *("alloc", None, 3, -1, 0.5, (), [], {}, "a 'quoted' text"),
        ((a, 4, b), (4 * b, b, 1)), [a * b - 3, (a + 1) // 2], Listed((a % 3, 7)),
        (greater * 64, [1, 2], None), ((a, 4, b), greater),
    )  # fmt: skip
    made = filled(named, structure, values)
    assert as_lists(made) == plainly(structure, dict(zip(named, values, strict=True)))
    assert type(made) is tuple and type(made[9][0]) is tuple and type(made[10]) is list


def test_what_has_no_sizes_is_the_same_object() -> None:
    _, named, a, _ = symbols()
    fixed = ("call", [1, 2], {"dim": 3})
    assert filled(named, fixed, (2, 2)) is fixed
    assert filled(named, (fixed, a), (2, 2))[0] is fixed


def test_what_python_computes_is_computed_as_python_does() -> None:
    found, named, a, b = symbols()
    context = found.context
    negative = (a * -1).expr

    def number(op: str, *args: Expr) -> Size:
        return SizeFloat(Apply(op, args), context)

    root = number("sqrt", a.expr)
    parts = (
        number("/", a.expr, b.expr), root, number("*", root.expr, constant(0.1)),
        number("//", negative, b.expr), number("%", negative, b.expr),
        number("min", a.expr, b.expr),
        number("int **", a.expr, constant(3)), number("round", number("/", a.expr, b.expr).expr),
        number("exp", number("/", b.expr, a.expr).expr), a * -1 // 4, (a * -1) % 4,
    )  # fmt: skip
    for values in VALUES:
        made = filled(named, parts, values)
        wanted = plainly(parts, dict(zip(named, values, strict=True)))
        assert [(type(one), one) for one in made] == [(type(one), one) for one in wanted]


def test_what_cannot_be_computed_does_not_hold() -> None:
    _, named, a, b = symbols()
    fourth = (a * a * a * a).expr
    for relation, good, bad in (
        (("==", Apply("//", (a.expr, b.expr)), Integer(3)), (12, 4), (12, 0)),
        (("<", Apply("sqrt", (b.expr,)), a.expr), (12, 4), (12, -1)),
        ((">", fourth, Integer(0)), (12, 4), (2**40, 4)),
    ):
        code = SizeCode(2)
        code.set_symbols(named)
        code.require({}, [relation])
        assert code.program().holds(good) and not code.program().holds(bad)
    with pytest.raises(OverflowError, match="a number cannot be computed from these sizes"):
        filled(named, (a * a,), (2**40, 1))
    with pytest.raises(ValueError, match="1 values are given, not 2"):
        filled(named, (a * a,), (3,))


@pytest.mark.parametrize("compare", [operator.eq, operator.ne, operator.lt, operator.ge])
def test_predicates_hold_where_their_relations_do(compare: Any) -> None:
    found, named, a, b = symbols()
    answers = [compare(a, b), compare(a // 2, b + 1), compare(a * b, 60), compare(a % 4, 0)]
    assert all(type(answer) is bool for answer in answers)
    assert found.holds_for((12, 5))
    for values in itertools.product((2, 3, 5, 12, 16, 1000, 1001, 1), repeat=2):
        known: dict[Expr, Any] = dict(zip(named, values, strict=True))
        holds = all(found.ranges[symbol].has(known[symbol]) for symbol in named) and all(
            holds_for(*relation, dict(known)) for relation in found.relations
        )
        assert found.holds_for(values) is holds


def test_what_was_assumed_since_counts() -> None:
    found, _, a, b = symbols()
    assert found.holds_for((900, 2))
    assert a < 100
    assert not found.holds_for((900, 2))
    assert a * b != 61 and found.holds_for((12, 5))
