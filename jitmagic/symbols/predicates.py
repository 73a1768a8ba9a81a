"""Predicates: for which values of its symbols something holds that was made for one of them.

Comes in: the symbols of a graph with the values of one call. Goes out: a Context whose assumptions
are data, ranges and relations, and the answer to whether other values keep to them.
"""

from __future__ import annotations

from collections.abc import Mapping

from .compiled import SizeCode, SizeProgram
from .context import Context
from .expr import Expr
from .interval import Interval
from .polynomial import written
from .scalar import Symbol

__all__ = ["Predicates"]


class Predicates:
    """What was assumed, in `ranges` and `relations`; `context` asks the questions."""

    def __init__(self, hints: Mapping[Symbol, int], supposes: bool = True) -> None:
        """`supposes`: whether sizes may be left out for which something else is faster."""
        self.symbols = tuple(hints)
        self.ranges: dict[Symbol, Interval] = {symbol: symbol.range for symbol in hints}
        self.relations: dict[tuple[str, Expr, Expr], None] = {}
        self._check: SizeProgram | None = None  # of these, when first asked for
        self.context = Context(self._narrow, self._relate)
        self.context.supposes = supposes
        for symbol, hint in hints.items():
            self.context.add(symbol, hint)

    def _narrow(self, symbol: Symbol, interval: Interval) -> None:
        self.ranges[symbol], self._check = interval, None

    def _relate(self, op: str, left: Expr, right: Expr) -> None:
        self.relations[op, left, right], self._check = None, None

    def hold(self, values: tuple[int, ...]) -> bool:
        """Whether all that was assumed is true of these values, in the order of the symbols."""
        if self._check is None:
            code = SizeCode(len(self.symbols))
            self.write(code)
            self._check = code.program()
        return self._check.holds(values)

    def write(self, code: SizeCode) -> None:
        """The checks of all that was assumed so far, of values in the order of the symbols."""
        code.name(self.symbols)
        code.require(self.ranges, self.relations)

    def __str__(self) -> str:
        ranges = [
            f"{found.low} <= {symbol.name} <= {found.high}" for symbol, found in self.ranges.items()
        ]
        return ", ".join(
            [*ranges, *(f"{written(a)} {op} {written(b)}" for op, a, b in self.relations)]
        )
