"""Defines ContextFacts: all that a Context knows, as frozen data. context.py uses it."""

from __future__ import annotations

from ..lazy_dataclass import dataclass
from .expr import Expr
from .interval import Interval

__all__ = ["ContextFacts"]


@dataclass(frozen=True, slots=True)
class ContextFacts:
    """The tables of a Context as (key, value) pairs, in order."""

    hints: tuple[tuple[Expr, float], ...]
    examples: tuple[tuple[Expr, int], ...]  # of symbols without a hint
    ranges: tuple[tuple[Expr, Interval | None], ...]  # of symbols
    refined: tuple[tuple[Expr, Interval | None], ...]  # of other expressions
    related: tuple[tuple[tuple[str, Expr, Expr], bool], ...]
    deferred_asserts: tuple[tuple[str, Expr, Expr], ...]
    excludes_sizes: bool
