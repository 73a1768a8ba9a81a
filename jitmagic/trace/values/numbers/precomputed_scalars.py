"""Precomputes numbers in Python before the graph runs, from numbers among the inputs.

Input: an expression over ints, which often count calls (a scheduler's steps), so that specialising
them would recompile in each call; or a pure function of numbers. Output: the Source of the number,
computed by a native program with Python's own functions, so that it is exact. The same program can
check that a divisor is nonzero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ....extension import runtime_module
from ....guards.source import Drawn
from ....symbols.expr import Expr
from ....symbols.interval import Interval
from ....symbols.size_programs import SizeCode
from ....symbols.symbolic_numbers import Symbol, symbols_of
from ...result import BuildTuple, Recipe
from ..base import Builder, Machine, Value

__all__ = ["nonzero_by_check", "precompute", "precompute_call"]

_LEAST = 5e-324  # the smallest positive float


# Specialised, math.cos and ** of a scheduler's step gave a variant for each step, and the training
# step ran in eager after eight of them.
def precompute(
    machine: Machine, name: str, expr: Expr, then: Callable[[Any], object] = lambda number: number
) -> Drawn | None:
    """Return the Source of `then(number)`; None if it depends on more than ints of the inputs."""
    symbols = list(dict.fromkeys(symbols_of(expr)))
    if not all(
        symbol.kind is int and symbol.origin in machine.symbols.values for symbol in symbols
    ):
        return None
    return _draw(machine, name, symbols, _Formula(expr, symbols, then))


def nonzero_by_check(machine: Machine, expr: Expr) -> bool:
    """Add a check before the graph that an expression is nonzero; return whether that works.

    In a call where the check fails, eager runs the frame from its start and raises.
    """
    # A range is one interval, so zero can be excluded only at its end. For a divisor that may have
    # either sign, nothing is gained by a check.
    found = machine.symbols.range_of(expr)
    if found is None or found.nan or (found.low < 0 < found.high):
        return False
    if not machine.symbols.has_hints((expr,)) or not machine.symbols.value_of(expr):
        return False
    if precompute(machine, "divisor", expr, _nonzero) is None:
        return False
    low, high = (_LEAST, found.high) if found.high > 0 else (found.low, -_LEAST)
    machine.symbols.assume_range(expr, Interval(low, high))
    return True


def _nonzero(number: float) -> float:
    if not number:
        raise ZeroDivisionError
    return number


def precompute_call(
    machine: Machine,
    name: str,
    exprs: Iterable[Expr],
    symbols: Sequence[Symbol],
    perform: Callable[[tuple[Any, ...]], object],
) -> Drawn | None:
    """Return the Source of `perform(values of the symbols)`, or None.

    None if the expressions depend on more than inputs, or Python and the graph compute them
    differently.
    """
    is_computed = all(map(machine.symbols.is_given_or_computed, exprs))
    return _draw(machine, name, symbols, perform) if is_computed else None


def _draw(
    machine: Machine,
    name: str,
    symbols: Sequence[Symbol],
    perform: Callable[[tuple[Any, ...]], object],
) -> Drawn:
    values: Mapping[Any, Value] = machine.symbols.values
    numbers = _InputNumbers([values[symbol.origin] for symbol in symbols])
    return machine.effects.draw(numbers, perform, name)


class _InputNumbers(Value):
    """Numbers among the inputs, as a tuple."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: Sequence[Value]) -> None:
        super().__init__(None)
        self.numbers = numbers

    def recipe(self, builder: Builder) -> Recipe:
        return BuildTuple(tuple(map(builder, self.numbers)))


class _Formula:
    """Evaluates an expression and applies `then` to the number."""

    def __init__(
        self, expr: Expr, symbols: Sequence[Symbol], then: Callable[[Any], object]
    ) -> None:
        code = SizeCode(len(symbols))
        code.set_symbols(symbols)
        self._result = runtime_module().Register(code.expr(expr))
        self._program, self._then = code.program(), then

    def __call__(self, numbers: tuple[int, ...]) -> object:
        return self._then(self._program.filled(self._result, numbers))
