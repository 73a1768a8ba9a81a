"""Writes comparisons of numbers as programs that guards compute.

In: expressions of floats, and of ints that fit floats. Out: whether doubles give Python's result at
each step, and the program for a stack of doubles (extensions/frame/numbers_relate.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .expr import Expr, Integer
from .interval import EXACT, Interval
from .polynomial import application
from .symbolic_numbers import Number, Symbol, kind_of

__all__ = ["is_computable", "postfix"]

_OPERATIONS = (
    "+", "-", "*", "/", "neg", "abs", "min", "max", "sqrt", "float", "floor", "ceil", "trunc",
    "round",
)  # fmt: skip
_OF_INTS = ("//", "%")  # only of ints: on floats Python does more than take the quotient's floor


def is_computable(
    expr: Expr,
    is_given: Callable[[Symbol], bool],
    range_of: Callable[[Expr], Interval | None],
) -> bool:
    """Return whether guards can compute it; `is_given` says if they can read a symbol."""
    if kind_of(expr) is int:
        found = range_of(expr)
        if found is None or not found.within(EXACT):
            return False
    match expr:
        case Integer() | Number():
            return True
        case Symbol():
            return is_given(expr)
    op, args = application(expr)
    is_known = op in _OPERATIONS or (op in _OF_INTS and kind_of(expr) is int)
    return is_known and all(is_computable(arg, is_given, range_of) for arg in args)


def postfix(expr: Expr, places: Mapping[Any, int]) -> tuple[tuple[str, float], ...]:
    """Return its program: pairs of an operation and a constant or the index of a number."""
    match expr:
        case Integer(value) | Number(value):
            return (("constant", float(value)),)
        case Symbol(origin=source, kind=kind):
            return (("number" if kind is float else "int", float(places[source])),)
    op, args = application(expr)
    parts = [step for arg in args for step in postfix(arg, places)]
    return (*parts, (op, float(len(args))))
