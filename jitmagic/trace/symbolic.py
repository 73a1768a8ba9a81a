"""The numbers of one attempt at a trace that are symbols, and those that turned out to be none.

Comes in: the sources of floats and ints that vary, and what earlier attempts made constants.
Goes out: the Context that values ask, whose narrowings are guards on the user's line; after a
Specialize, the constants of the next attempt. Each attempt that failed adds one, so there are only
as many as there are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from ..errors import UserLine
from ..guards.guard import Guard, InRange
from ..guards.source import Source
from ..symbols.context import Context, Specialize
from ..symbols.interval import Interval
from ..symbols.scalar import Symbol
from .result import Specialized

__all__ = ["Constants", "Symbols", "with_constants"]

Constants = dict[Hashable, Specialized]
"""By the origins of their symbols."""


class Symbols(Context):
    """`varying`: numbers that may be symbols; None: none may, nor user's counters in tensors."""

    def __init__(
        self,
        varying: frozenset[Source] | None,
        constants: Constants,
        guard: Callable[[Guard], None],
    ) -> None:
        super().__init__(self._guard_range)
        self.varying, self.constants = varying, constants
        self.values: dict[Source, Any] = {}  # the ScalarValue of each source that was read
        self.where: UserLine | None = None  # of the Specialize that ends the attempt
        self._guard = guard

    def _guard_range(self, symbol: Symbol, range: Interval) -> None:
        assert isinstance(symbol.origin, Source), "a symbol without a hint is never narrowed"
        self._guard(InRange(symbol.origin, range.low, range.high))


def with_constants(known: Constants, special: Specialize, where: UserLine | None) -> Constants:
    """Those of the next attempt."""
    fresh = {s.origin: Specialized(s.name, special.why, where) for s in special.symbols}
    assert fresh.keys() - known.keys(), "a symbol becomes a constant once"
    return {**known, **fresh}
