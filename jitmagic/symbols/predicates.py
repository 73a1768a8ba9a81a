"""Defines Predicates: conditions on symbols under which code compiled at one size is valid.

In: the symbols of a graph with the values of one call. Out: a Context whose assumptions are data
(ranges and relations), and a test of other values against them.
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
    """The assumptions in `ranges` and `relations`; `context` answers questions and adds to them."""

    def __init__(self, hints: Mapping[Symbol, int], supposes: bool = True) -> None:
        """`supposes`: `Context.suppose` may exclude sizes for which another variant is faster."""
        self.symbols = tuple(hints)
        self.ranges: dict[Symbol, Interval] = {symbol: symbol.range for symbol in hints}
        self.relations: dict[tuple[str, Expr, Expr], None] = {}
        self._check: SizeProgram | None = None  # compiled at first use
        self.context = Context(self._narrow, self._relate)
        self.context.supposes = supposes
        for symbol, hint in hints.items():
            self.context.add(symbol, hint)

    def _narrow(self, symbol: Symbol, interval: Interval) -> None:
        self.ranges[symbol], self._check = interval, None

    def _relate(self, op: str, left: Expr, right: Expr) -> None:
        self.relations[op, left, right], self._check = None, None

    def holds_for(self, values: tuple[int, ...]) -> bool:
        """Return whether the values, in the order of the symbols, satisfy all assumptions."""
        if self._check is None:
            code = SizeCode(len(self.symbols))
            self.write(code)
            self._check = code.program()
        return self._check.holds(values)

    def write(self, code: SizeCode) -> None:
        """Add the checks of all assumptions so far to a program."""
        code.set_symbols(self.symbols)
        code.require(self.ranges, self.relations)

    def __str__(self) -> str:
        ranges = [
            f"{found.low} <= {symbol.name} <= {found.high}" for symbol, found in self.ranges.items()
        ]
        return ", ".join(
            [*ranges, *(f"{written(a)} {op} {written(b)}" for op, a, b in self.relations)]
        )
