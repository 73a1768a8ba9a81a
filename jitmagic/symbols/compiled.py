"""Expressions of sizes as a program that is evaluated natively (extensions/runtime/sizes.h).

Comes in: nested tuples and lists with Sizes in them, ranges and relations. Goes out: the structure
with a Register for each Size, and a SizeProgram: of values for the symbols it computes the numbers
of the Registers, and says whether the ranges and relations hold, in this order. What is used twice
is computed once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..extension import runtime_module
from .context import COMPARISONS
from .expr import Add, Expr, FloorDiv, Integer, Mod, Mul
from .interval import INT64, Interval
from .scalar import OPERATIONS, Apply, Symbol, kind_of
from .size import Size

__all__ = ["Relation", "SizeCode", "SizeProgram"]

Relation = tuple[str, Expr, Expr]
# What normal forms of ints are made of; of floats, Python's operators compute it.
_PYTHON: Mapping[type[Expr], Callable[..., Any]] = {
    Add: operator.add, Mul: operator.mul, FloorDiv: operator.floordiv, Mod: operator.mod,
}  # fmt: skip


class SizeProgram(Protocol):
    """What `SizeCode.program` gives."""

    def holds(self, values: tuple[int, ...]) -> bool:
        """Whether all values, which are ints, keep to the ranges and all relations are true."""
        ...

    def filled(self, structure: Any, values: tuple[int, ...]) -> Any:
        """The structure with numbers for its Registers."""
        ...


class SizeCode:
    """The program so far. Each number is computed once and has an index."""

    def __init__(self, count: int) -> None:
        """`count`: how many values it will be called with."""
        self._count = count
        self._known: dict[Expr, int] = {}
        self._code: list[tuple[Any, ...]] = []
        self._numbers = count

    def name(self, symbols: Sequence[Symbol]) -> None:
        """The symbols of the values, in their order. There may be several for each."""
        self._known.update(zip(symbols, range(self._count), strict=True))

    def program(self) -> SizeProgram:
        made: SizeProgram = runtime_module().SizeProgram(self._count, tuple(self._code))
        return made

    def expr(self, expr: Expr) -> int:
        """The index of its number."""
        if expr not in self._known:
            self._known[expr] = self._add(*self._operation(expr))
        return self._known[expr]

    def _add(self, *step: Any) -> int:
        self._code.append(step)
        self._numbers += 1
        return self._numbers - 1

    def _operation(self, expr: Expr) -> tuple[Any, ...]:
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
        """Check these from here on; those of values that have one symbol are first."""
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

    def part(self, part: Any) -> Any:
        """The structure with a Register for each Size; itself where there is none."""
        if isinstance(part, Size):
            return runtime_module().Register(self.expr(part.expr))
        if not isinstance(part, tuple | list):  # fx has lists of a class of its own
            return part
        made = [self.part(one) for one in part]
        if all(one is old for one, old in zip(made, part, strict=True)):
            return part
        return made if isinstance(part, list) else tuple(made)
