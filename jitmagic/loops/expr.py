"""Defines index arithmetic, the integer expressions that address buffers.

The arithmetic is that of symbols/expr.py; its leaves here are axes (0 <= axis < extent) and indexes
computed at run time (ir.py). Stages after lowering import both from here. With symbolic extents and
strides, an index has monomials among its atoms, `i * s0` (symbols/polynomial.py), and quotients by
a size: `times`, `quotient` and `remainder` build them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from math import prod

from ..symbols.context import Context
from ..symbols.expr import (
    Add,
    Expr,
    FloorDiv,
    Integer,
    Mod,
    Mul,
    add,
    bounds,
    floordiv,
    leaves,
    linear,
    mod,
    mul,
    rebuild,
)
from ..symbols.polynomial import divided, factors, product
from ..symbols.size import Dimension, Size, expr_of, size_of
from ..symbols.symbolic_numbers import Apply, Symbol, interval_of
from .ir import Axis, AxisVar, ValueIndex

__all__ = [
    "Add",
    "Apply",
    "Axis",
    "AxisVar",
    "Expr",
    "FloorDiv",
    "Integer",
    "Mod",
    "Mul",
    "Symbol",
    "ValueIndex",
    "add",
    "axes_of",
    "bounds",
    "coefficient",
    "coefficients",
    "dimension",
    "floordiv",
    "is_never_negative",
    "leaves",
    "linear",
    "magnitude_bound",
    "mod",
    "mul",
    "plus",
    "position",
    "quotient",
    "reapply",
    "rebuild",
    "remainder",
    "substitute",
    "times",
]


def substitute(expr: Expr, bindings: Mapping[Axis, Expr]) -> Expr:
    """Replace axes by expressions, re-simplifying. Values inside a ValueIndex are left alone."""
    if isinstance(expr, AxisVar):
        return bindings.get(expr.axis, expr)

    def leaf(expr: Expr) -> Expr:
        if isinstance(expr, AxisVar):
            return bindings.get(expr.axis, expr)
        if isinstance(expr, Apply):
            return reapply(expr, [rebuild(part, leaf) for part in expr.args])
        return expr

    return rebuild(expr, leaf)


@lru_cache(maxsize=16384)
def axes_of(expr: Expr) -> frozenset[Axis]:
    """Return the axes an expression reads directly (not those inside a ValueIndex's value)."""
    if isinstance(expr, AxisVar):  # the most frequent case
        return frozenset((expr.axis,))
    return frozenset(leaf.axis for leaf in leaves(expr) if isinstance(leaf, AxisVar))


# -- sizes -----------------------------------------------------------------------------------------


def times(expr: Expr, size: Dimension) -> Expr:
    """Return expr * size."""
    return product(expr, size.expr) if isinstance(size, Size) else mul(expr, size)


def plus(expr: Expr, size: Dimension) -> Expr:
    """Return expr + size."""
    return add(expr, expr_of(size))


def reapply(expr: Apply, parts: Sequence[Expr]) -> Expr:
    """Apply the expression's operation to other operands, simplified."""
    match expr.op:
        case "*":
            return reduce(product, parts)
        case "//":
            return quotient(*parts)
        case "%":
            return remainder(*parts)
    return Apply(expr.op, tuple(parts))


@lru_cache(maxsize=16384)
def quotient(expr: Expr, divisor: Expr) -> Expr:
    """Return expr // divisor, for a positive divisor."""
    if isinstance(divisor, Integer):
        return floordiv(expr, divisor.value)
    whole, rest = _split(expr, divisor)
    return whole if _is_below(rest, divisor) else add(whole, Apply("//", (rest, divisor)))


@lru_cache(maxsize=16384)
def remainder(expr: Expr, divisor: Expr) -> Expr:
    """Return expr % divisor, for a positive divisor."""
    if isinstance(divisor, Integer):
        return mod(expr, divisor.value)
    rest = _split(expr, divisor)[1]
    return rest if _is_below(rest, divisor) else Apply("%", (rest, divisor))


@lru_cache(maxsize=16384)
def _split(expr: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """Return (whole, rest) with expr = whole * divisor + rest, term by term."""
    constant, terms = linear(expr)
    whole, rest = Integer(0), Integer(constant)  # type: Expr, Expr
    for atom, n in terms.items():
        part = mul(atom, n)
        exact = divided(part, divisor)
        whole, rest = (add(whole, exact), rest) if exact else (whole, add(rest, part))
    return whole, rest


@lru_cache(maxsize=16384)
def _is_below(expr: Expr, limit: Expr) -> bool:
    """Return whether 0 <= expr < limit is proved for every point and every size."""
    parts = _added_factors(expr)
    if parts is None or not all(isinstance(part, AxisVar | Symbol) for part in parts):
        return False
    last = {axis: add(expr_of(axis.extent), Integer(-1)) for axis in axes_of(expr)}
    room = add(add(limit, Integer(-1)), mul(substitute(expr, last), -1))
    known = interval_of(room, {})
    return known is not None and known.low >= 0


def position(index: Sequence[Expr], stride: Sequence[Dimension]) -> Expr:
    """Return the memory offset of an index, in elements."""
    total: Expr = Integer(0)
    for part, step in zip(index, stride, strict=True):
        total = add(total, times(part, step))
    return _rejoined(total) if any(isinstance(step, Size) for step in stride) else total


@lru_cache(maxsize=16384)
def _rejoined(total: Expr) -> Expr:
    """Undo divmod under symbolic strides: `(e // k) * k * s + (e % k) * s -> e * s`; k may be
    symbolic.
    """
    terms = linear(total)[1]
    for atom, n in terms.items():
        for low in factors(atom):
            match low:
                case Apply("%", (expr, divisor)):
                    pass
                case Mod(expr, int(k)):
                    divisor = Integer(k)
                case _:
                    continue
            others = divided(atom, low)
            assert others is not None, "it is a factor"
            high = mul(product(product(quotient(expr, divisor), divisor), others), n)
            if all(terms.get(part) == m for part, m in linear(high)[1].items()):
                both = mul(product(expr, others), n)
                rest = add(total, mul(add(high, mul(atom, n)), -1))
                return _rejoined(add(rest, both))
    return total


@lru_cache(maxsize=16384)
def coefficient(offset: Expr, axis: Axis) -> int | Expr | None:
    """Return the change of `offset` when `axis` moves by one: a number, or an expression of sizes;
    None when it is neither.
    """
    total, sized = 0, Integer(0)  # type: int, Expr
    for atom, factor in linear(offset)[1].items():
        if atom == AxisVar(axis):
            total += factor
        elif axis in axes_of(atom):
            step = divided(atom, AxisVar(axis))
            if step is None or axes_of(step):
                return None
            sized = add(sized, mul(step, factor))
    return total if isinstance(sized, Integer) else add(sized, Integer(total))


def coefficients(expr: Expr) -> tuple[Expr, dict[Axis, Expr]] | None:
    """Return (offset, {axis: step}) of an affine expression; None for other expressions."""
    constant, terms = linear(expr)
    offset: Expr = Integer(constant)
    steps: dict[Axis, Expr] = {}
    for atom, n in terms.items():
        axes = [factor for factor in factors(atom) if isinstance(factor, AxisVar)]
        if len(axes) != len(axes_of(atom)) or len(axes) > 1:
            return None
        if not axes:
            if any(isinstance(leaf, ValueIndex) for leaf in leaves(atom)):
                return None
            offset = add(offset, mul(atom, n))
            continue
        [along] = axes
        rest = divided(atom, along)
        assert rest is not None, "it is a factor"
        step = mul(rest, n)
        steps[along.axis] = add(steps.get(along.axis, Integer(0)), step)
    return offset, steps


def is_never_negative(expr: Expr) -> bool:
    """Return whether the terms of an index prove that it is at least zero."""
    if bounds(expr)[0] >= 0:
        return True
    parts = _added_factors(expr)
    return parts is not None and all(
        isinstance(part, AxisVar) or bounds(part)[0] >= 0 for part in parts
    )


def _added_factors(expr: Expr) -> list[Expr] | None:
    """Return the factors of the terms of a sum; None if a term is negative."""
    constant, terms = linear(expr)
    if constant < 0 or any(n < 0 for n in terms.values()):
        return None
    return [factor for atom in terms for factor in factors(atom)]


def magnitude_bound(expr: Expr, context: Context) -> Dimension | None:
    """Return a bound for the magnitudes of a symbolic index and of its subexpressions; None if
    there is no simple one.
    """
    constant, terms = linear(expr)
    total: Dimension = abs(constant)
    for atom, n in terms.items():
        parts = [_factor_bound(factor, context) for factor in factors(atom)]
        if any(part is None for part in parts):
            return None
        total = total + prod(parts) * abs(n)  # type: ignore[arg-type, operator]
    return total


def _factor_bound(factor: Expr, context: Context) -> Dimension | None:
    match factor:
        case AxisVar(axis):
            return axis.extent
        case ValueIndex(extent=extent):
            return extent
        case Symbol():
            known = context.range_of(factor)
            return size_of(factor, context) if known is not None and known.low >= 0 else None
        case FloorDiv(a) | Mod(a) | Apply("//" | "%", (a, _)):
            return magnitude_bound(a, context)
    return None


def dimension(expr: Expr, near: Iterable[Dimension]) -> int:
    """Return an expression without axes as a dimension; `near` has a Size with the symbol
    context.
    """
    if isinstance(expr, Integer):
        return expr.value
    context = next(size.context for size in near if isinstance(size, Size))
    return size_of(expr, context)  # type: ignore[return-value]  # a Size acts as an int
