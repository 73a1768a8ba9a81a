"""Finds an expression over symbols for a number, given its values at two size tuples.

In: the values of the symbols at both, and expressions that the program is known to contain. Out:
for a pair of numbers, an expression with these values. Two numbers do not determine it, so the
caller checks the answer at a third size tuple.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .expr import Expr, Integer, add, floordiv, mul
from .polynomial import product
from .scalar import Symbol, evaluate

__all__ = ["Readings"]

_PARTS = (2, 3, 4, 8, 16, 32, 64)  # common divisors of sizes: heads, groups, halves
_FACTORS = 3  # of a product, besides a constant
_FARTHEST = 8  # common offsets: padding, special tokens

Pair = tuple[int, int]


class Readings:
    """Expressions by their values at both size tuples."""

    __slots__ = ("_known", "_read", "_values")

    def __init__(
        self, exprs: Iterable[Expr], first: Mapping[Symbol, int], second: Mapping[Symbol, int]
    ) -> None:
        self._values = tuple(dict[Expr, int](values.items()) for values in (first, second))
        self._known: dict[Pair, Expr] = {}
        self._read: dict[tuple[Pair, int], Expr | None] = {}
        parts = [floordiv(symbol, part) for symbol in first for part in _PARTS]
        for expr in (*first, *exprs, *parts):
            at_first, at_second = (int(evaluate(expr, values)) for values in self._values)
            if at_first != at_second and at_first and at_second:
                self._known.setdefault((at_first, at_second), expr)

    def read(self, first: int, second: int) -> Expr | None:
        """Return the expression; candidates are known ones, their products, and sums with
        constants.
        """
        return self._of((first, second), _FACTORS)

    def _of(self, pair: Pair, depth: int) -> Expr | None:
        if pair[0] == pair[1]:
            return Integer(pair[0])
        if pair not in self._known and (pair, depth) not in self._read:
            self._read[pair, depth] = self._find(pair, depth)
        return self._known.get(pair) or self._read[pair, depth]

    def _find(self, pair: Pair, depth: int) -> Expr | None:
        for known, expr in self._known.items():
            if depth and not pair[0] % known[0] and not pair[1] % known[1]:
                rest = self._of((pair[0] // known[0], pair[1] // known[1]), depth - 1)
                if rest is not None:
                    return product(expr, rest)
        return self._sum(pair)

    def _sum(self, pair: Pair) -> Expr | None:
        """Return a multiple of a known expression plus a small constant."""
        for known, expr in self._known.items():
            times, rest = divmod(pair[1] - pair[0], known[1] - known[0])
            apart = pair[0] - times * known[0]
            if not rest and abs(apart) <= _FARTHEST:
                return add(mul(expr, times), Integer(apart))
        return None
