"""Readings: which expression a number is, that was seen at two vectors of sizes.

Comes in: the values of the symbols at both, expressions that a program is known to have. Goes out:
for a pair of numbers, one at each vector, an expression with these values. Two numbers leave others
possible: whoever asks compares the answer with what is found at a third vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .expr import Expr, Integer, add, floordiv, mul
from .polynomial import product
from .scalar import Symbol, evaluate

__all__ = ["Readings"]

_PARTS = (2, 3, 4, 8, 16, 32, 64)  # what programs divide a size by: heads, groups, halves
_FACTORS = 3  # of a product besides a constant
_FARTHEST = 8  # what programs add to a size: paddings, special tokens

Pair = tuple[int, int]


class Readings:
    """Expressions by their values at both vectors."""

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
        """The expression; None: it is none of these, their products or sums with a constant."""
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
        """A multiple of a known expression, and a small constant."""
        for known, expr in self._known.items():
            times, rest = divmod(pair[1] - pair[0], known[1] - known[0])
            apart = pair[0] - times * known[0]
            if not rest and abs(apart) <= _FARTHEST:
                return add(mul(expr, times), Integer(apart))
        return None
