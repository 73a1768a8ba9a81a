"""Defines Symbol, and the expressions of Python arithmetic on symbols.

In: numbers that differ from call to call. Out: interned expressions. Sums, products with constants,
quotients and remainders of ints have the normal form of expr.py; any other operation is an `Apply`.
OPERATIONS is the table of symbolic operations: Python's function, and interval arithmetic.
"""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from ..lazy_dataclass import dataclass
from .expr import Add, Expr, FloorDiv, Integer, Leaf, Mod, Mul, add, floordiv, integer, mod, mul
from .interval import INT64, Interval, of_number

__all__ = [
    "OPERATIONS", "Apply", "Number", "Operation", "Symbol", "apply", "constant", "evaluate",
    "interval_of", "kind_of", "rounding_error", "symbols_of",
]  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Symbol(Leaf):
    """A number that is known only when the compiled code runs.

    `origin` says where its value comes from: the Source of an argument, or the creator of a number
    that is read from a tensor. `range` contains every value it can have; a `whole` float never has
    a fraction.
    """

    name: str
    kind: type  # int or float
    range: Interval
    origin: Hashable
    whole: bool = False

    @property
    def limits(self) -> tuple[int, int]:
        return int(self.range.low), int(self.range.high)

    @property
    def rank(self) -> tuple[int, str, int]:
        return 0, self.name, 0

    @property
    def label(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Number(Leaf):
    """A constant float."""

    value: float


@dataclass(frozen=True, slots=True, eq=False)
class Apply(Leaf):
    """An operation of OPERATIONS on expressions."""

    op: str
    args: tuple[Expr, ...]

    @property
    def limits(self) -> tuple[int, int]:
        return int(INT64.low), int(INT64.high)  # the tracer requires every int to fit

    @property
    def rank(self) -> tuple[int, str, int]:
        return 4, self.op, 0

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.args


class Operation(NamedTuple):
    """`python` computes it; `bounds` gives its interval (None: it might raise)."""

    python: Callable[..., Any]
    bounds: Callable[..., Interval | None]


def _rounded(function: Callable[[float], int]) -> Callable[[Interval], Interval | None]:
    def bounds(x: Interval) -> Interval | None:
        return Interval(function(x.low), function(x.high)) if x.is_finite else None

    return bounds


def _as_float(x: Interval) -> Interval:
    return Interval(float(x.low), float(x.high), x.nan)


def single(x: float) -> float:
    """Round a double to a float, as C++ does."""
    return ctypes.c_float(x).value


def _as_single(x: Interval) -> Interval:
    return Interval(single(x.low), single(x.high), x.nan)


def _root(x: Interval) -> Interval | None:
    if x.low < 0 or x.nan:
        return None
    return Interval(math.sqrt(x.low), math.sqrt(x.high))


def _inexact(
    function: Callable[[float], float], low: float = -math.inf, high: float = math.inf
) -> Callable[[Interval], Interval | None]:
    """Bound a function that increases on ]low, high[ and raises elsewhere, with room for
    rounding.
    """

    def bounds(x: Interval) -> Interval | None:
        if not (x.is_finite and low < x.low and x.high < high):
            return None
        try:
            ends = function(x.low), function(x.high)
        except (OverflowError, ValueError):
            return None
        room = [1e-12 * abs(end) + 1e-300 for end in ends]
        return Interval(ends[0] - room[0], ends[1] + room[1])

    return bounds


def _wave(function: Callable[[float], float], peak: float) -> Callable[[Interval], Interval | None]:
    """Bound a sine that is 1 at `peak`. It is monotonic between extremes, up to the last bits,
    which differ between libraries.
    """

    def over(x: Interval) -> Interval | None:
        if not x.is_finite:
            return None
        if x.high - x.low >= math.pi or max(-x.low, x.high) > _LONG_WAY:
            return Interval(-1.0, 1.0)
        ends = function(x.low), function(x.high)
        first, last = ((end - peak) / math.pi for end in (x.low, x.high))
        extremes = range(math.ceil(first - _LAST_BITS), math.floor(last + _LAST_BITS) + 1)
        found = (*ends, *(-1.0 if n % 2 else 1.0 for n in extremes))
        return Interval(max(min(found) - _LAST_BITS, -1.0), min(max(found) + _LAST_BITS, 1.0))

    return over


_LAST_BITS = 1e-13  # error of a sine whose argument is at most:
_LONG_WAY = 100.0


def rounding_error(a: float, b: float) -> float:
    """Return the exact rounding error of `a + b`. (A. Neumaier, Rundungsfehleranalyse einiger
    Verfahren zur Summation endlicher Summen, 1974, as in CPython's sum().)
    """
    made = a + b
    return (a - made) + b if abs(a) >= abs(b) else (b - made) + a


def corrected(a: float, error: float) -> float:
    """Add the compensation at the end of a Neumaier sum."""
    return a + error if error and math.isfinite(error) else a


def _rounding_error(a: Interval, b: Interval) -> Interval:
    made = a.add(b)
    if not made.is_finite:
        return Interval(-math.inf, math.inf, nan=True)
    ulp = math.ulp(max(-made.low, made.high))
    return Interval(-ulp, ulp)


def _corrected(a: Interval, error: Interval) -> Interval:
    made = a.add(error)
    return Interval(min(a.low, made.low), max(a.high, made.high), a.nan)


OPERATIONS: Mapping[str, Operation] = {
    "+": Operation(operator.add, Interval.add),
    "-": Operation(operator.sub, Interval.sub),
    "*": Operation(operator.mul, Interval.mul),
    "/": Operation(operator.truediv, Interval.div),
    "//": Operation(operator.floordiv, Interval.floordiv),
    "%": Operation(operator.mod, Interval.mod),
    "**": Operation(operator.pow, Interval.power),
    "int **": Operation(operator.pow, Interval.powers),
    "<<": Operation(operator.lshift, Interval.lshift),
    ">>": Operation(operator.rshift, Interval.rshift),
    "&": Operation(operator.and_, Interval.masked),
    "|": Operation(operator.or_, Interval.masked),
    "^": Operation(operator.xor, Interval.masked),
    "neg": Operation(operator.neg, Interval.neg),
    "invert": Operation(operator.invert, Interval.invert),
    "abs": Operation(abs, Interval.abs),
    "min": Operation(min, Interval.least),
    "max": Operation(max, Interval.most),
    "float": Operation(float, _as_float),
    "single": Operation(single, _as_single),
    "trunc": Operation(math.trunc, _rounded(math.trunc)),
    "floor": Operation(math.floor, _rounded(math.floor)),
    "ceil": Operation(math.ceil, _rounded(math.ceil)),
    "round": Operation(round, _rounded(round)),
    "lost": Operation(rounding_error, _rounding_error),
    "corrected": Operation(corrected, _corrected),
    "sqrt": Operation(math.sqrt, _root),
    "exp": Operation(math.exp, _inexact(math.exp)),
    "log": Operation(math.log, _inexact(math.log, low=0.0)),
    "tanh": Operation(math.tanh, _inexact(math.tanh)),
    "sin": Operation(math.sin, _wave(math.sin, math.pi / 2)),
    "cos": Operation(math.cos, _wave(math.cos, 0.0)),
}


# Operations whose result kind does not depend on their operands.
_KINDS: Mapping[str, type] = {
    **dict.fromkeys(
        ("/", "**", "float", "single", "sqrt", "exp", "log", "tanh", "sin", "cos"), float
    ),
    **dict.fromkeys(("trunc", "floor", "ceil", "round", "int **"), int),
}


def kind_of(expr: Expr) -> type:
    """Return the type of an expression, int or float."""
    match expr:
        case Number():
            return float
        case Symbol(kind=kind):
            return kind
        case Apply(op) if op in _KINDS:
            return _KINDS[op]
    return float if any(kind_of(part) is float for part in _parts(expr)) else int


def constant(number: float) -> Expr:
    """Return the expression of a constant; a bool is an int."""
    return Number(number) if isinstance(number, float) else integer(int(number))


def apply(op: str, kind: type, *args: Expr) -> Expr:
    """Apply `op` with a result of `kind`, in normal form if there is one."""
    if kind is not int:
        return Apply(op, args)
    a, b = args[0], args[-1]
    match op:
        case "+":
            return add(a, b)
        case "-":
            return add(a, mul(b, -1))
        case "neg":
            return mul(a, -1)
        case "*" if isinstance(a, Integer) or isinstance(b, Integer):
            factor, other = (a, b) if isinstance(a, Integer) else (b, a)
            return mul(other, factor.value)  # type: ignore[attr-defined]
        case "//" if isinstance(b, Integer) and b.value > 0:
            return floordiv(a, b.value)
        case "%" if isinstance(b, Integer) and b.value > 0:
            return mod(a, b.value)
    return Apply(op, args)


# Operands by class. A table is faster than a method, and this runs hundreds of times per size.
_PARTS: Mapping[type, Callable[[Any], tuple[Expr, ...]]] = {
    Add: operator.attrgetter("a", "b"),
    Mul: operator.attrgetter("a", "b"),
    FloorDiv: lambda expr: (expr.a,),
    Mod: lambda expr: (expr.a,),
    Apply: operator.attrgetter("args"),
}


@lru_cache(maxsize=16384)
def _parts(expr: Expr) -> tuple[Expr, ...]:
    parts = _PARTS.get(type(expr))
    return () if parts is None else parts(expr)


@lru_cache(maxsize=16384)
def _below(root: Expr) -> tuple[Expr, ...]:
    """Return the subexpressions and the expression, operands first."""
    stack, seen = [root], dict[Expr, None]()
    while stack:
        expr = stack[-1]
        if expr not in seen and (parts := [p for p in _parts(expr) if p not in seen]):
            stack += parts
            continue
        stack.pop()
        seen[expr] = None
    return tuple(seen)


@lru_cache(maxsize=16384)
def symbols_of(expr: Expr) -> tuple[Symbol, ...]:
    """Return the symbols of an expression."""
    return tuple(part for part in _below(expr) if isinstance(part, Symbol))


def interval_of(expr: Expr, known: dict[Expr, Interval | None]) -> Interval | None:
    """Return the range of an expression; `known` holds those of symbols and caches the others."""
    if expr in known:
        return known[expr]
    for part in _below(expr):
        if part in known:
            continue
        given = [known[one] for one in _parts(part)]
        known[part] = None if None in given else _one(part, given)  # type: ignore[arg-type]
    return known[expr]


def _one(expr: Expr, given: list[Interval]) -> Interval | None:
    match expr:
        case Integer(value) | Number(value):
            return of_number(value)
        case Symbol():
            return expr.range
        case Add():
            return given[0].add(given[1])
        case Mul():
            return given[0].mul(given[1])
        case FloorDiv(_, b):
            return given[0].floordiv(of_number(b))
        case Mod(_, b):
            low, high = int(given[0].low), int(given[0].high)
            whole = low // b == high // b
            return Interval(low % b, high % b) if whole else Interval(0, b - 1)
        case Apply(op):
            return OPERATIONS[op].bounds(*given)
    raise TypeError(f"not an expression of scalars: {expr!r}")


def evaluate(expr: Expr, known: dict[Expr, Any]) -> Any:
    """Return Python's value of an expression; `known` holds those of symbols and caches the
    others.
    """
    if expr in known:  # most sizes are symbols
        return known[expr]
    for part in _below(expr):
        if part not in known:
            known[part] = _value(part, [known[one] for one in _parts(part)])
    return known[expr]


def _value(expr: Expr, given: list[Any]) -> object:
    match expr:
        case Integer(value) | Number(value):
            return value
        case Add():
            return given[0] + given[1]
        case Mul():
            return given[0] * given[1]
        case FloorDiv(_, b):
            return given[0] // b
        case Mod(_, b):
            return given[0] % b
        case Apply(op):
            return OPERATIONS[op].python(*given)
    raise KeyError(expr)
