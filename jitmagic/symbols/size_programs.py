"""Compiles expressions of sizes to a natively evaluated program (extensions/executor/size_code.h).

In: nested tuples and lists with Sizes in them, ranges and relations. Out: the structure with a
Register for each Size, and a SizeProgram. Given values for the symbols, the program computes the
Registers' numbers and checks the ranges and relations, in this order. Common subexpressions are
computed once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..construction import made_by
from ..extension import runtime_module
from ..protocols import Protocol
from .context import COMPARISONS
from .expr import Add, Expr, FloorDiv, Integer, Mod, Mul
from .interval import INT64, Interval
from .size import Size
from .symbolic_numbers import OPERATIONS, Apply, Symbol, kind_of

__all__ = ["Relation", "SizeCode", "SizeProgram", "size_program"]

Relation = tuple[str, Expr, Expr]
# Operators of normal forms. Native steps exist for ints; float operations call these functions.
_PYTHON: Mapping[type[Expr], Callable[[int, int], int]] = {
    Add: operator.add, Mul: operator.mul, FloorDiv: operator.floordiv, Mod: operator.mod,
}  # fmt: skip
_PLAIN = frozenset((int, float, bool, str, type(None)))


class SizeProgram(Protocol):
    """The interface of the program that `SizeCode.program` returns."""

    def holds(self, values: tuple[int, ...]) -> bool:
        """Return whether the int values are in all ranges and satisfy all relations."""
        ...

    def filled(self, structure: object, values: tuple[int, ...]) -> object:
        """Return the structure with numbers for its Registers."""
        ...


def size_program(count: int, code: tuple[tuple[object, ...], ...]) -> SizeProgram:
    """Return the native program of a code, for `count` values."""
    made: SizeProgram = runtime_module().SizeProgram(count, code)
    return made_by(made, "size_program", count, code)


class SizeCode:
    """A program under construction. Each number is computed once and has an index."""

    def __init__(self, count: int, register: Callable[[int], object] | None = None) -> None:
        """`count` is the number of values that the program will be called with. `register` makes
        the placeholder for the number of an index, by default the native one.
        """
        self._count, self._register = count, register or runtime_module().Register
        self._known: dict[Expr, int] = {}
        self._code: list[tuple[object, ...]] = []
        self._numbers = count

    def set_symbols(self, symbols: Sequence[Symbol]) -> None:
        """Set the symbols of the values, in order. A value may have several symbols."""
        self._known.update(zip(symbols, range(self._count), strict=True))

    def define(self, symbol: Symbol, expr: Expr) -> None:
        """Let a symbol stand for an expression of the others."""
        self._known[symbol] = self.expr(expr)

    def program(self) -> SizeProgram:
        return size_program(self._count, tuple(self._code))

    @property
    def instructions(self) -> tuple[tuple[object, ...], ...]:
        """Return the steps of the program so far, as extensions/executor/size_code.h reads them."""
        return tuple(self._code)

    def expr(self, expr: Expr) -> int:
        """Return the index of the expression's number."""
        if expr not in self._known:
            self._known[expr] = self._add(*self._operation(expr))
        return self._known[expr]

    def register(self, expr: Expr) -> object:
        """Return the placeholder for the expression's number."""
        return self._register(self.expr(expr))

    def _add(self, *step: object) -> int:
        self._code.append(step)
        self._numbers += 1
        return self._numbers - 1

    def _operation(self, expr: Expr) -> tuple[object, ...]:
        match expr:
            case Integer(value):
                return "const", value
            case Apply(op, args):
                return "call", OPERATIONS[op].python, tuple(map(self.expr, args))
            case Add(a, b) | Mul(a, b) if kind_of(expr) is int:
                return "+" if isinstance(expr, Add) else "*", self.expr(a), self.expr(b)
            case FloorDiv(a, int(b)) | Mod(a, int(b)) if kind_of(expr) is int and b > 0:
                return "//" if isinstance(expr, FloorDiv) else "%", self.expr(a), b
            case Add(a, b) | Mul(a, b) | FloorDiv(a, b) | Mod(a, b):
                right = self.expr(Integer(b) if isinstance(b, int) else b)
                return "call", _PYTHON[type(expr)], (self.expr(a), right)
        return "const", getattr(expr, "value")  # noqa: B009 - a Number

    def require(self, ranges: Mapping[Symbol, Interval], relations: Iterable[Relation]) -> None:
        """Add these checks; those of ranges come first."""
        for symbol, interval in ranges.items():
            if interval.low > INT64.low:
                self._check(">=", symbol, Integer(math.ceil(interval.low)))
            if interval.high < INT64.high:
                self._check("<=", symbol, Integer(math.floor(interval.high)))
        for relation in relations:
            self._check(*relation)

    def _check(self, op: str, left: Expr, right: Expr) -> None:
        a, b = self.expr(left), self.expr(right)
        if kind_of(left) is int and kind_of(right) is int:
            self._code.append(("check", op, a, b))
        else:
            answer = self._add("call", COMPARISONS[op], (a, b))
            self._code.append(("check", "!=", answer, self.expr(Integer(0))))

    def with_registers(self, part: object) -> object:
        """Return the structure with a Register for each Size; without any, the object itself."""
        if isinstance(part, Size):
            return self.register(part.expr)
        if not isinstance(part, tuple | list):  # fx has list subclasses of its own
            return part
        made = [one if type(one) in _PLAIN else self.with_registers(one) for one in part]
        if all(map(operator.is_, made, part)):
            return part
        return made if isinstance(part, list) else tuple(made)
