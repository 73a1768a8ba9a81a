"""gutter: the user's source with what each line takes beside it.

Comes in: Findings with Costs. Goes out: a `Listing` for each function that has a line with a cost
or a graph break, the explained one first: what text, rich and HTML reports show. The seconds of a
line count the operations on it and those in functions that it calls, so the lines of one function
add up to what the function takes.
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from dataclasses import dataclass

from ...frame.skip import is_library_file
from ..sources import Span, function_around
from .breaks import distinct
from .cost import Costs, Place
from .findings import BreakReport, Findings

__all__ = ["Listing", "Row", "listings"]

MOST_LISTINGS = 20  # of functions that the explained one calls, the dearest first


@dataclass(frozen=True, slots=True)
class Row:
    """One line; seconds as eager and compiled; `kernels`: by number, those it takes part in, the
    one with most of its time first.
    """

    number: int
    text: str
    eager: float = 0.0
    compiled: float = 0.0
    kernels: tuple[int, ...] = ()
    breaks: tuple[BreakReport, ...] = ()
    is_own: bool = True  # else all of its time is in what it calls


@dataclass(frozen=True, slots=True)
class Listing:
    """A function's lines; `is_users`: it is not of an installed package."""

    name: str
    filename: str
    rows: tuple[Row, ...]
    is_users: bool = True

    @property
    def eager(self) -> float:
        return sum(row.eager for row in self.rows)

    @property
    def compiled(self) -> float:
        return sum(row.compiled for row in self.rows)

    @property
    def is_wrapper(self) -> bool:
        """Return whether it is a package's function that only calls another: a decorator's, a
        hook's.
        """
        telling = [row for row in self.rows if row.eager or row.compiled]
        broken = any(row.breaks for row in self.rows)
        return not self.is_users and not broken and len(telling) == 1 and not telling[0].is_own

    def has(self, place: Place) -> bool:
        """Return whether a line is one of its."""
        filename, number = place
        return filename == self.filename and self.rows[0].number <= number <= self.rows[-1].number


def listings(found: Findings) -> list[Listing]:
    """The explained function first, also where nothing was measured; then those that it calls."""
    filename, first, lines = found.source
    breaks = distinct(found.break_reasons)
    own = _listing(
        (filename, first, first + len(lines) - 1, found.name), lines, found.costs, breaks
    )
    places = {place: cost.compiled for place, cost in found.costs.lines.items()}
    for each in breaks:
        places.setdefault((each.where.filename, each.where.lineno), 0.0)
    others: dict[Span, float] = {}
    for place, seconds in places.items():
        if not lines or not own.has(place):
            span = function_around(*place)
            others[span] = others.get(span, 0.0) + seconds
    dearest = sorted(others, key=lambda span: others[span], reverse=True)[:MOST_LISTINGS]
    shown = [own] if lines and not own.is_wrapper else []
    for span in dearest:
        file, begin, end, _ = span
        text = tuple(linecache.getline(file, number) for number in range(begin, end + 1))
        listing = _listing(span, text, found.costs, breaks)
        if any(text) and not listing.is_wrapper:
            shown.append(listing)
    return shown


def _listing(
    span: Span, lines: Sequence[str], costs: Costs, breaks: tuple[BreakReport, ...]
) -> Listing:
    filename, first, _, name = span
    rows = []
    for number, line in enumerate(lines, first):
        here = tuple(b for b in breaks if (b.where.filename, b.where.lineno) == (filename, number))
        rows.append(_row(number, line.rstrip(), costs, (filename, number), here))
    return Listing(name, filename, tuple(rows), not is_library_file(filename))


def _row(
    number: int, text: str, costs: Costs, place: Place, breaks: tuple[BreakReport, ...]
) -> Row:
    known = costs.lines.get(place)
    if known is None:
        return Row(number, text, breaks=breaks)
    dearest = sorted(known.kernels, key=lambda each: known.kernels[each], reverse=True)
    return Row(number, text, known.eager, known.compiled, tuple(dearest), breaks, known.is_own)
