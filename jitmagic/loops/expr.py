"""Index arithmetic: the integer expressions (ir.py) that address buffers.

Frozen; equal expressions compare equal and hash alike. Build them through the smart constructors
`add`, `mul`, `floordiv`, `mod`, which fold constants and use the axis extents to simplify
(0 <= axis < extent): `(i*8 + j) // 8 -> i` when j < 8. Divisors are positive constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from math import gcd

from .ir import Add, Axis, AxisVar, Expr, FloorDiv, Integer, Mod, Mul, ValueIndex

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
    "leaves",
    "linear",
    "mod",
    "mul",
    "rebuild",
    "substitute",
]


def linear(expr: Expr) -> tuple[int, dict[Expr, int]]:
    """Split into constant + sum of coefficient * atom; Add and Mul are no atoms."""
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


def _rejoin(constant: int, terms: dict[Expr, int]) -> tuple[int, dict[Expr, int]]:
    """Undo divmod: `(e // k) * k + e % k -> e`, and `(e // k) % m * k + e % k -> e % (k * m)`."""
    for atom, n in terms.items():
        if not isinstance(atom, Mod):
            continue
        quotient = floordiv(atom.a, atom.b)
        for high, whole in ((quotient, atom.a), *_higher_digits(atom, quotient, terms)):
            offset, parts = linear(high)
            if not parts or any(terms.get(part) != n * atom.b * c for part, c in parts.items()):
                continue
            left = _merge(terms, {atom: -n, **{p: -n * atom.b * c for p, c in parts.items()}})
            more, joined = linear(whole)
            constant += n * (more - atom.b * offset)
            return _rejoin(constant, _merge(left, {p: n * c for p, c in joined.items()}))
    return constant, terms


def _higher_digits(
    low: Mod, quotient: Expr, terms: Mapping[Expr, int]
) -> Iterator[tuple[Expr, Expr]]:
    for other in terms:
        if isinstance(other, Mod) and other.a == quotient:
            yield other, mod(low.a, low.b * other.b)


def _rank(item: tuple[Expr, int]) -> tuple[int, int, str, int]:
    atom, n = item
    match atom:
        case AxisVar(axis):
            return -abs(n), 0, axis.name, 0
        case FloorDiv(a, b) | Mod(a, b):
            names = ",".join(sorted(axis.name for axis in axes_of(a)))
            return -abs(n), 1 if isinstance(atom, FloorDiv) else 2, names, b
        case ValueIndex(extent=extent):
            return -abs(n), 3, "", extent
    return -abs(n), 4, "", 0


def _rebuild(constant: int, terms: Mapping[Expr, int]) -> Expr:
    made: Expr | None = None
    for atom, n in sorted(terms.items(), key=_rank) if len(terms) > 1 else terms.items():
        part = atom if n == 1 else Mul(atom, Integer(n))
        made = part if made is None else Add(made, part)
    if made is None:
        return Integer(constant)
    return Add(made, Integer(constant)) if constant else made


def add(a: Expr, b: Expr) -> Expr:
    """a + b, with like terms collected and quotients joined with their remainders."""
    ca, ta = linear(a)
    cb, tb = linear(b)
    if not ta or not tb:
        return _rebuild(ca + cb, ta or tb)
    return _rebuild(*_rejoin(ca + cb, _merge(ta, tb)))


def mul(a: Expr, b: int) -> Expr:
    """a * b for a constant b, distributed over sums."""
    if b == 1:
        return a
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


def _split_common(expr: Expr, divisor: int) -> tuple[int, Expr, Expr] | None:
    """(g, high, low): expr = g * high + low, 0 <= low < g, g a proper divisor of `divisor`."""
    constant, terms = linear(expr)
    for g in sorted({gcd(divisor, n) for n in terms.values()}, reverse=True):
        if not 1 < g < divisor:
            continue
        low = _rebuild(constant % g, {atom: n for atom, n in terms.items() if n % g})
        least, most = bounds(low)
        if least >= 0 and most < g:
            high = {atom: n // g for atom, n in terms.items() if n % g == 0}
            return g, _rebuild(constant // g, high), low
    return None


def floordiv(a: Expr, b: int) -> Expr:
    """a // b (floor) for a positive constant b."""
    if b == 1:
        return a
    quotient, rest = _split_multiples(a, b)
    low, high = bounds(rest)
    if low // b == high // b:
        return add(quotient, Integer(low // b))
    if isinstance(rest, FloorDiv):
        return add(quotient, floordiv(rest.a, rest.b * b))
    if isinstance(rest, Mod) and rest.b % b == 0:
        return add(quotient, mod(floordiv(rest.a, b), rest.b // b))
    if common := _split_common(rest, b):
        g, major, _ = common
        return add(quotient, floordiv(major, b // g))
    return add(quotient, FloorDiv(rest, b))


def mod(a: Expr, b: int) -> Expr:
    """a % b (sign of b) for a positive constant b."""
    if b == 1:
        return Integer(0)
    _, rest = _split_multiples(a, b)
    low, high = bounds(rest)
    if low // b == high // b:
        return add(rest, Integer(-(low // b) * b))
    if isinstance(rest, Mod) and rest.b % b == 0:
        return mod(rest.a, b)
    if common := _split_common(rest, b):
        g, major, minor = common
        return add(mul(mod(major, b // g), g), minor)
    return Mod(rest, b)


def rebuild(expr: Expr, leaf: Callable[[Expr], Expr]) -> Expr:
    """The expression with every axis and run-time index replaced by leaf(it), re-simplified."""
    match expr:
        case Integer():
            return expr
        case Add(a, b):
            return add(rebuild(a, leaf), rebuild(b, leaf))
        case Mul(a, Integer(k)):
            return mul(rebuild(a, leaf), k)
        case FloorDiv(a, b):
            return floordiv(rebuild(a, leaf), b)
        case Mod(a, b):
            return mod(rebuild(a, leaf), b)
    return leaf(expr)


def substitute(expr: Expr, bindings: Mapping[Axis, Expr]) -> Expr:
    """Replace axes by expressions, re-simplifying. Values inside a ValueIndex are left alone."""
    if isinstance(expr, AxisVar):
        return bindings.get(expr.axis, expr)
    return rebuild(
        expr, lambda leaf: bindings.get(leaf.axis, leaf) if isinstance(leaf, AxisVar) else leaf
    )


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


def leaves(expr: Expr) -> Iterator[Expr]:
    """The axes and run-time indexes of an expression, left to right."""
    match expr:
        case Add(a, b):
            yield from leaves(a)
            yield from leaves(b)
        case Mul(a, _) | FloorDiv(a, _) | Mod(a, _):
            yield from leaves(a)
        case AxisVar() | ValueIndex():
            yield expr
