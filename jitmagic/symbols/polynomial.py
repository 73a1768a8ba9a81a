"""Brings products of symbols into the normal form of sizes, and writes expressions as text.

In: integer expressions (expr.py). Out: the same in one normal form. A product of leaves is
`Apply("*", ...)` with sorted factors; a polynomial is a sum of multiples of those. Equal
polynomials are one object.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce

from .expr import (
    Add,
    Expr,
    FloorDiv,
    Integer,
    Leaf,
    Mod,
    Mul,
    add,
    floordiv,
    integer,
    linear,
    mod,
    mul,
)
from .symbolic_numbers import Apply, Number, Symbol

__all__ = [
    "application", "divided", "factors", "is_integral", "monomial", "normal", "operation",
    "product", "written",
]  # fmt: skip


def operation(expr: Expr) -> tuple[str, Expr, Expr]:
    """Return the operation (of OPERATIONS) and operands of a binary expression."""
    match expr:
        case Add(a, b):
            return "+", a, b
        case Mul(a, b):
            return "*", a, b
        case FloorDiv(a, b):
            return "//", a, Integer(b)
        case Mod(a, b):
            return "%", a, Integer(b)
        case Apply(op, (a, b)):
            return op, a, b
    raise TypeError(f"not an operation on sizes: {expr!r}")


def application(expr: Expr) -> tuple[str, tuple[Expr, ...]]:
    """Return operation and operands, however many."""
    if isinstance(expr, Apply):
        return expr.op, expr.args
    op, *operands = operation(expr)
    return op, tuple(operands)


def is_integral(expr: Expr) -> bool:
    """Return whether native guards can compute it: ints, int symbols, sums, products, quotients,
    min and max.
    """
    match expr:
        case Integer():
            return True
        case Symbol(kind=kind):
            return kind is int
        case Apply(op) if op not in ("*", "//", "%", "min", "max"):
            return False
        case Add() | Mul() | FloorDiv() | Mod() | Apply():
            _, left, right = operation(expr)
            return is_integral(left) and is_integral(right)
    return False


def normal(expr: Expr) -> Expr:
    """Return an int expression in the normal form of sizes, products as polynomials."""
    match expr:
        case Add(a, b):
            return add(normal(a), normal(b))
        case Mul() | Apply("*"):
            _, left, right = operation(expr)
            return product(normal(left), normal(right))
        case FloorDiv(a, b):
            return floordiv(normal(a), b)
        case Mod(a, b):
            return mod(normal(a), b)
        case Apply(op, args):
            return Apply(op, tuple(map(normal, args)))
    return expr


def written(expr: Expr, name: Callable[[Symbol], str] = lambda symbol: symbol.name) -> str:
    """Return the expression as Python text."""
    match expr:
        case Integer(value):
            return str(value)
        case Symbol():
            return name(expr)
        case Number(value):
            return repr(value)
        case Leaf() if expr.label:
            return expr.label
        case Apply(op, args) if op.isalpha():
            return f"{op}({', '.join(written(arg, name) for arg in args)})"
        case Apply("int **", (base, times)):
            return f"{written(base, name)}**{written(times, name)}"
    op, left, right = operation(expr)
    a, b = written(left, name), written(right, name)
    return f"{a}*{b}" if op == "*" else f"({a} {op} {b})"


@lru_cache(maxsize=16384)
def product(a: Expr, b: Expr) -> Expr:
    """Return a * b, distributed over their sums."""
    offset_a, terms_a = linear(a)
    offset_b, terms_b = linear(b)
    constant = offset_a * offset_b
    parts: list[Expr] = [integer(constant)] if constant or not (terms_a and terms_b) else []
    for atom, n in terms_a.items():
        parts += [mul(atom, n * offset_b)] if offset_b else []
        for other, m in terms_b.items():
            parts.append(mul(monomial(factors(atom) + factors(other)), n * m))
    parts += [mul(other, m * offset_a) for other, m in terms_b.items() if offset_a]
    return reduce(add, parts)


def factors(atom: Expr) -> tuple[Expr, ...]:
    """Return the factors of a monomial."""
    if isinstance(atom, Apply) and atom.op == "*":
        return (*factors(atom.args[0]), atom.args[1])
    return (atom,)


def _order(factor: Expr) -> str:
    if isinstance(factor, Leaf) and not isinstance(factor, Apply):
        return factor.label or repr(factor)
    return repr(factor)


@lru_cache(maxsize=16384)
def monomial(parts: tuple[Expr, ...]) -> Expr:
    """Return the product of factors in canonical order."""
    return reduce(lambda a, b: Apply("*", (a, b)), sorted(parts, key=_order))


@lru_cache(maxsize=16384)
def divided(a: Expr, b: Expr) -> Expr | None:
    """Return a / b if b is one term that divides every term of a, else None."""
    offset, divisors = linear(b)
    if offset or len(divisors) != 1:
        return None
    [(divisor, n)] = divisors.items()
    constant, terms = linear(a)
    total: Expr = integer(0)
    for atom, m in terms.items():
        left = list(factors(atom))
        for factor in factors(divisor):
            if factor not in left:
                return None
            left.remove(factor)
        if m % n:
            return None
        rest: Expr = monomial(tuple(left)) if left else integer(1)
        total = add(total, mul(rest, m // n))
    return None if constant else total
