"""gutter: lists the user's source with the seconds and graph breaks of each line.

Input: Findings with Costs. Output: a `Listing` for each function with a measured line or a graph
break, the explained one first. The seconds of a line include the functions that it calls, so the
lines of one function add up to the function's time.
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence

from ...frame.never_hooked import is_library_file
from ...lazy_dataclass import dataclass
from ..sources import Span, function_around
from .breaks import distinct
from .cost import Costs, Place
from .findings import BreakReport, Findings

__all__ = ["Listing", "Row", "listings"]

MOST_LISTINGS = 20  # callees of the explained function that are listed, the slowest first


@dataclass(frozen=True, slots=True)
class Row:
    """One line with its seconds, eager and compiled.

    kernels: numbers of the kernels that compute it, the slowest first
    """

    number: int
    text: str
    eager: float = 0.0
    compiled: float = 0.0
    kernels: tuple[int, ...] = ()
    breaks: tuple[BreakReport, ...] = ()
    is_own: bool = True  # false: all of its time is spent in functions that it calls


@dataclass(frozen=True, slots=True)
class Listing:
    """The lines of a function; `is_users`: it is the user's, not an installed package's."""

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
        """True for a package's function that only calls another: a decorator's or a hook's."""
        timed = [row for row in self.rows if row.eager or row.compiled]
        broken = any(row.breaks for row in self.rows)
        return not self.is_users and not broken and len(timed) == 1 and not timed[0].is_own

    def has(self, place: Place) -> bool:
        """Return whether the function contains a line."""
        filename, number = place
        return filename == self.filename and self.rows[0].number <= number <= self.rows[-1].number


def listings(found: Findings) -> list[Listing]:
    """Return the explained function's listing, even without measurements, then those of its
    callees.
    """
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
    slowest = sorted(others, key=lambda span: others[span], reverse=True)[:MOST_LISTINGS]
    shown = [own] if lines and not own.is_wrapper else []
    for span in slowest:
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
    slowest = sorted(known.kernels, key=lambda each: known.kernels[each], reverse=True)
    return Row(number, text, known.eager, known.compiled, tuple(slowest), breaks, known.is_own)
