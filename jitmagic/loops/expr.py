"""Index arithmetic: the integer expressions that address buffers.

    Expr = Integer(value) | AxisVar(axis) | Add(a, b) | Mul(a, b) | FloorDiv(a, b) | Mod(a, b)
         | ValueIndex(value, extent)     an index computed at run time (gather); see ir.Value

Frozen and interned by value (equal expressions compare equal and hash alike). Build them through the
smart constructors `add`, `mul`, `floordiv`, `mod`, which fold constants and use the axis extents to
simplify (0 <= axis < extent): `(i*8 + j) // 8 -> i` when j < 8. Divisors are positive constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ir import Value

__all__ = [
    "Add",
    "Axis",
    "AxisVar",
    "Expr",
    "FloorDiv",
    "Integer",
    "Mod",
    "Mul",
    "ValueIndex",
    "add",
    "axes_of",
    "bounds",
    "floordiv",
    "linear",
    "mod",
    "mul",
    "substitute",
]


@dataclass(frozen=True, slots=True)
class Axis:
    """One loop axis: 0 <= name < extent. Names are unique within a LoopProgram unless bound alike."""

    name: str
    extent: int


class Expr:
    """Base of the index expressions."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Integer(Expr):
    value: int


@dataclass(frozen=True, slots=True)
class AxisVar(Expr):
    axis: Axis


@dataclass(frozen=True, slots=True)
class Add(Expr):
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Mul(Expr):
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class FloorDiv(Expr):
    a: Expr
    b: int


@dataclass(frozen=True, slots=True)
class Mod(Expr):
    a: Expr
    b: int


@dataclass(frozen=True, slots=True)
class ValueIndex(Expr):
    """A run-time index; negative ones count from the end, out-of-range ones raise as eager does."""

    value: Value
    extent: int


def linear(expr: Expr) -> tuple[int, dict[Expr, int]]:
    """Split into constant + sum of coefficient * atom; atoms are everything but Add and Mul-by-constant."""
    match expr:
        case Integer(value):
            return value, {}
        case Add(a, b):
            ca, ta = linear(a)
            cb, tb = linear(b)
            return ca + cb, _merge(ta, tb)
        case Mul(a, Integer(k)):
            c, t = linear(a)
            return c * k, {atom: n * k for atom, n in t.items()}
    return 0, {expr: 1}


def _merge(left: Mapping[Expr, int], right: Mapping[Expr, int]) -> dict[Expr, int]:
    total = dict(left)
    for atom, n in right.items():
        total[atom] = total.get(atom, 0) + n
    return {atom: n for atom, n in total.items() if n}


def _rebuild(constant: int, terms: Mapping[Expr, int]) -> Expr:
    made: Expr | None = None
    for atom, n in sorted(terms.items(), key=lambda item: (-abs(item[1]), repr(item[0]))):
        part = atom if n == 1 else Mul(atom, Integer(n))
        made = part if made is None else Add(made, part)
    if made is None:
        return Integer(constant)
    return Add(made, Integer(constant)) if constant else made


def add(a: Expr, b: Expr) -> Expr:
    """a + b, with like terms collected."""
    ca, ta = linear(a)
    cb, tb = linear(b)
    return _rebuild(ca + cb, _merge(ta, tb))


def mul(a: Expr, b: int) -> Expr:
    """a * b for a constant b, distributed over sums."""
    c, t = linear(a)
    return _rebuild(c * b, {atom: n * b for atom, n in t.items()} if b else {})


@lru_cache(maxsize=65536)
def bounds(expr: Expr) -> tuple[int, int]:
    """The smallest and largest value (inclusive) the expression can take."""
    match expr:
        case Integer(value):
            return value, value
        case AxisVar(axis):
            return 0, max(axis.extent - 1, 0)
        case Add(a, b):
            (la, ha), (lb, hb) = bounds(a), bounds(b)
            return la + lb, ha + hb
        case Mul(a, Integer(k)):
            ends = [end * k for end in bounds(a)]
            return min(ends), max(ends)
        case FloorDiv(a, b):
            low, high = bounds(a)
            return low // b, high // b
        case Mod(a, b):
            low, high = bounds(a)
            return (low % b, high % b) if low // b == high // b else (0, b - 1)
        case ValueIndex(extent=extent):
            return 0, max(extent - 1, 0)
    raise TypeError(f"not an index expression: {expr!r}")


def _split_multiples(expr: Expr, divisor: int) -> tuple[Expr, Expr]:
    """(quotient part, rest) such that expr = quotient * divisor + rest, by the coefficients."""
    constant, terms = linear(expr)
    whole = {atom: n // divisor for atom, n in terms.items() if n % divisor == 0}
    rest = {atom: n for atom, n in terms.items() if n % divisor}
    return _rebuild(constant // divisor, whole), _rebuild(constant % divisor, rest)


def floordiv(a: Expr, b: int) -> Expr:
    """a // b (floor) for a positive constant b."""
    if b == 1:
        return a
    quotient, rest = _split_multiples(a, b)
    low, high = bounds(rest)
    if low // b == high // b:
        return add(quotient, Integer(low // b))
    match rest:
        case FloorDiv(inner, k):
            return add(quotient, floordiv(inner, k * b))
    return add(quotient, FloorDiv(rest, b))


def mod(a: Expr, b: int) -> Expr:
    """a % b (sign of b) for a positive constant b."""
    if b == 1:
        return Integer(0)
    _, rest = _split_multiples(a, b)
    low, high = bounds(rest)
    if low // b == high // b:
        return add(rest, Integer(-(low // b) * b))
    match rest:
        case Mod(inner, k) if k % b == 0:
            return mod(inner, b)
    return Mod(rest, b)


def substitute(expr: Expr, bindings: Mapping[Axis, Expr]) -> Expr:
    """Replace axes by expressions, re-simplifying. ValueIndex nodes are left to ir.substitute."""
    match expr:
        case Integer():
            return expr
        case AxisVar(axis):
            return bindings.get(axis, expr)
        case Add(a, b):
            return add(substitute(a, bindings), substitute(b, bindings))
        case Mul(a, Integer(k)):
            return mul(substitute(a, bindings), k)
        case FloorDiv(a, b):
            return floordiv(substitute(a, bindings), b)
        case Mod(a, b):
            return mod(substitute(a, bindings), b)
    return expr


def axes_of(expr: Expr) -> frozenset[Axis]:
    """The axes an expression reads directly (not those inside a ValueIndex's value)."""
    match expr:
        case AxisVar(axis):
            return frozenset((axis,))
        case Add(a, b):
            return axes_of(a) | axes_of(b)
        case Mul(a, _) | FloorDiv(a, _) | Mod(a, _):
            return axes_of(a)
    return frozenset()
