"""Numbers that Python computes before the graph runs, of ints that the call is given.

Comes in: an expression of such ints; they count calls as often as not (the steps of a scheduler),
so that a graph for each value would be one for each call. Goes out: what gives the number, by a
native program that calls Python's own functions: it is Python's to the last bit. Checked in the
same way: that a divisor which is never negative, or never positive, is not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ....extension import runtime_module
from ....guards.source import Drawn
from ....symbols.compiled import SizeCode
from ....symbols.expr import Expr
from ....symbols.interval import Interval
from ....symbols.scalar import Symbol, symbols_of
from ...result import BuildTuple, Recipe
from ..base import Builder, Machine, Value

__all__ = ["computed_early", "drawn_early", "keeps_off_zero"]

_LEAST = 5e-324  # the float next to zero


def computed_early(machine: Machine, name: str, expr: Expr) -> Drawn | None:
    """Where the number will be; None: it is not of ints that the call is given."""
    return _early(machine, name, expr, lambda number: number)


def keeps_off_zero(machine: Machine, expr: Expr) -> bool:
    """Whether a check before the graph holds in this call, and tells that the expression is not
    zero; where it fails, eager runs the frame from its start, and raises.
    """
    found = machine.symbols.range_of(expr)
    if found is None or found.nan or (found.low < 0 < found.high):
        return False
    if not machine.symbols.has_hints((expr,)) or not machine.symbols.value_of(expr):
        return False
    if _early(machine, "divisor", expr, _nonzero) is None:
        return False
    low, high = (_LEAST, found.high) if found.high > 0 else (found.low, -_LEAST)
    machine.symbols.refine(expr, Interval(low, high))
    return True


def _nonzero(number: float) -> float:
    if not number:
        raise ZeroDivisionError
    return number


def _early(machine: Machine, name: str, expr: Expr, then: Callable[[Any], object]) -> Drawn | None:
    symbols = list(dict.fromkeys(symbols_of(expr)))
    values: Mapping[Any, Any] = machine.symbols.values
    given = [values[s.origin] for s in symbols if s.kind is int and s.origin in values]
    if len(given) < len(symbols):
        return None
    return machine.effects.draw(_Given(given), _Formula(expr, symbols, then), name)


def drawn_early(
    machine: Machine,
    name: str,
    exprs: Iterable[Expr],
    symbols: Sequence[Symbol],
    perform: Callable[[tuple[Any, ...]], object],
) -> Drawn | None:
    """Where that which `perform` makes of the values of the symbols will be; None: Python does not
    compute the expressions as the graph does, or not of numbers that the call is given.
    """
    if not all(map(machine.symbols.is_given_or_computed, exprs)):
        return None
    values: Mapping[Any, Any] = machine.symbols.values
    given = [values[symbol.origin] for symbol in symbols]
    return machine.effects.draw(_Given(given), perform, name)


class _Given(Value):
    """Numbers of the call, as a tuple."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: Sequence[Value]) -> None:
        super().__init__(None)
        self.numbers = numbers

    def recipe(self, builder: Builder) -> Recipe:
        return BuildTuple(tuple(map(builder, self.numbers)))


class _Formula:
    """The number of an expression, and what is made of it."""

    def __init__(
        self, expr: Expr, symbols: Sequence[Symbol], then: Callable[[Any], object]
    ) -> None:
        code = SizeCode(len(symbols))
        code.set_symbols(symbols)
        self._result = runtime_module().Register(code.expr(expr))
        self._program, self._then = code.program(), then

    def __call__(self, numbers: tuple[int, ...]) -> object:
        return self._then(self._program.filled(self._result, numbers))
