"""Defines integer expressions over unknown leaves, in a normal form.

In: leaves (a loop axis, an index computed at run time, a symbol), each with bounds. Out: frozen,
interned expressions. Build them through the smart constructors `add`, `mul`, `floordiv`, `mod`,
which fold constants and use the bounds of the leaves to simplify: `(i*8 + j) // 8 -> i` when 0 <= j
< 8. Divisors are positive constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from math import gcd

from ..lazy_dataclass import dataclass
from .interned import Interned

__all__ = [
    "Add",
    "Expr",
    "FloorDiv",
    "Integer",
    "Leaf",
    "Mod",
    "Mul",
    "add",
    "bounds",
    "floordiv",
    "integer",
    "leaves",
    "linear",
    "mod",
    "mul",
    "rebuild",
]


class Expr(metaclass=Interned):
    """Base of the expressions."""

    __slots__ = ("__weakref__",)


class Leaf(Expr):
    """An atom of expressions. `name` is "" for one that has none."""

    __slots__ = ()

    @property
    def limits(self) -> tuple[int, int]:
        """Return the smallest and largest value (inclusive) that it can take."""
        raise NotImplementedError

    @property
    def rank(self) -> tuple[int, str, int]:
        """Return its sort key in a sum, among terms with equal coefficients."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """Return its name in the sort key of quotients and remainders."""
        return ""

    @property
    def parts(self) -> tuple[Expr, ...]:
        """Return the expressions that it is computed from; () if there are none."""
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class Integer(Expr):
    value: int


@lru_cache(maxsize=4096, typed=True)
def integer(value: int) -> Integer:
    """Return the cached constant: most constants exist already."""
    return Integer(value)


@dataclass(frozen=True, slots=True, eq=False)
class Add(Expr):
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Mul(Expr):
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True, eq=False)
class FloorDiv(Expr):
    a: Expr
    b: int


@dataclass(frozen=True, slots=True, eq=False)
class Mod(Expr):
    a: Expr
    b: int


@lru_cache(maxsize=16384)
def linear(expr: Expr) -> tuple[int, Mapping[Expr, int]]:
    """Split into constant + sum of coefficient * atom; Add and Mul are not atoms."""
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


def _rejoin(constant: int, terms: Mapping[Expr, int]) -> tuple[int, Mapping[Expr, int]]:
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
        case Leaf():
            return -abs(n), *atom.rank
        case FloorDiv(a, b) | Mod(a, b):
            names = ",".join(sorted({leaf.label for leaf in leaves(a)} - {""}))
            return -abs(n), 1 if isinstance(atom, FloorDiv) else 2, names, b
    return -abs(n), 4, "", 0


def _rebuild(constant: int, terms: Mapping[Expr, int]) -> Expr:
    made: Expr | None = None
    for atom, n in sorted(terms.items(), key=_rank) if len(terms) > 1 else terms.items():
        part = atom if n == 1 else Mul(atom, integer(n))
        made = part if made is None else Add(made, part)
    if made is None:
        return integer(constant)
    return Add(made, Integer(constant)) if constant else made


@lru_cache(maxsize=16384)
def add(a: Expr, b: Expr) -> Expr:
    """Return a + b, with like terms collected and quotients joined with their remainders."""
    ca, ta = linear(a)
    cb, tb = linear(b)
    if not ta or not tb:
        return _rebuild(ca + cb, ta or tb)
    return _rebuild(*_rejoin(ca + cb, _merge(ta, tb)))


@lru_cache(maxsize=16384)
def mul(a: Expr, b: int) -> Expr:
    """Return a * b for a constant b, distributed over sums."""
    if b == 1:
        return a
    c, t = linear(a)
    return _rebuild(c * b, {atom: n * b for atom, n in t.items()} if b else {})


@lru_cache(maxsize=65536)
def bounds(expr: Expr) -> tuple[int, int]:
    """Return the smallest and largest value (inclusive) the expression can take."""
    match expr:
        case Integer(value):
            return value, value
        case Leaf():
            return expr.limits
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
    raise TypeError(f"not an integer expression: {expr!r}")


def _split_multiples(expr: Expr, divisor: int) -> tuple[Expr, Expr]:
    """Return (quotient part, rest) with expr = quotient * divisor + rest, by the coefficients."""
    constant, terms = linear(expr)
    whole = {atom: n // divisor for atom, n in terms.items() if n % divisor == 0}
    rest = {atom: n for atom, n in terms.items() if n % divisor}
    return _rebuild(constant // divisor, whole), _rebuild(constant % divisor, rest)


def _split_common(expr: Expr, divisor: int) -> tuple[int, Expr, Expr] | None:
    """Return (g, high, low): expr = g * high + low, 0 <= low < g, g a proper divisor of
    `divisor`.
    """
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
    """Return a // b (floor) for a positive constant b."""
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
    """Return a % b (sign of b) for a positive constant b."""
    if b == 1:
        return integer(0)
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


def rebuild(expr: Expr, leaf: Callable[[Leaf], Expr]) -> Expr:
    """Replace every leaf by leaf(it) and simplify again."""
    match expr:
        case Leaf():  # first: most expressions are leaves
            return leaf(expr)
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
    raise TypeError(f"not an integer expression: {expr!r}")


@lru_cache(maxsize=16384)
def leaves(expr: Expr) -> tuple[Leaf, ...]:
    """Return the leaves of an expression, left to right."""
    match expr:
        case Add(a, b):
            return leaves(a) + leaves(b)
        case Mul(a, _) | FloorDiv(a, _) | Mod(a, _):
            return leaves(a)
        case Leaf(parts=()):
            return (expr,)
        case Leaf(parts=parts):
            return tuple([leaf for part in parts for leaf in leaves(part)])
    return ()
