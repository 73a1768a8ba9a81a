"""gutter: the user's source with what each line costs beside it.

Comes in: Findings with Costs. Goes out: a `Listing` for each function that has a line with a cost,
the explained one first: what text, rich and HTML reports show. A line's share counts the operations
on it and those below, in functions that it calls, so the shares of one function's lines add up to
what the function takes.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from .cost import Costs, KernelCost, Place
from .findings import BreakReport, Findings

__all__ = ["Listing", "Row", "function_around", "listings"]

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
MOST_LISTINGS = 20  # of functions that the explained one calls, the dearest first


@dataclass(frozen=True, slots=True)
class Row:
    """One line; shares from 0 to 1, of the whole of eager and of compiled time."""

    number: int
    text: str
    eager: float = 0.0
    compiled: float = 0.0
    owner: str = ""  # the kernel or ATen call with the most of the line's time
    kernels: tuple[KernelCost, ...] = ()  # that the line takes part in; their text stands where
    # they are shown first
    breaks: tuple[BreakReport, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """A function's lines; `eager` and `compiled` are the sums of their shares."""

    name: str
    rows: tuple[Row, ...]

    @property
    def eager(self) -> float:
        return sum(row.eager for row in self.rows)

    @property
    def compiled(self) -> float:
        return sum(row.compiled for row in self.rows)


def listings(found: Findings) -> list[Listing]:
    """The explained function first, also where nothing was measured; then those that it calls."""
    filename, first, lines = found.source
    breaks = list(dict.fromkeys(found.break_reasons))
    own = _listing(found.name, filename, first, lines, found.costs, breaks)
    last = first + len(lines)
    others: dict[tuple[str, int, int, str], float] = {}
    for (file, number), cost in found.costs.lines.items():
        if file == filename and first <= number < last:
            continue
        span = function_around(file, number)
        others[span] = others.get(span, 0.0) + cost.compiled
    dearest = sorted(others, key=lambda span: others[span], reverse=True)[:MOST_LISTINGS]
    shown = [own] if lines else []
    for file, begin, end, name in dearest:
        text = tuple(linecache.getline(file, number) for number in range(begin, end + 1))
        shown.append(_listing(name, file, begin, text, found.costs, breaks))
    return shown


def _listing(
    name: str,
    filename: str,
    first: int,
    lines: tuple[str, ...],
    costs: Costs,
    breaks: list[BreakReport],
) -> Listing:
    rows = []
    for number, line in enumerate(lines, first):
        here = tuple(b for b in breaks if (b.where.filename, b.where.lineno) == (filename, number))
        rows.append(_row(number, line.rstrip(), (filename, number), costs, here))
    return Listing(name, tuple(rows))


def _row(
    number: int, text: str, place: Place, costs: Costs, breaks: tuple[BreakReport, ...]
) -> Row:
    known = costs.lines.get(place)
    if known is None:
        return Row(number, text, breaks=breaks)
    kernels = tuple(kernel for kernel in costs.kernels if place in kernel.places)
    return Row(number, text, *costs.shares(place), known.owner, kernels, breaks)


def function_around(filename: str, number: int) -> tuple[str, int, int, str]:
    """File, first and last line, and name of the innermost function with that line."""
    spans = [span for span in _functions(filename) if span[0] <= number <= span[1]]
    begin, end, name = max(spans, default=(number, number, "top level"))
    return filename, begin, end, name


@lru_cache(maxsize=64)
def _functions_in(text: str) -> tuple[tuple[int, int, str], ...]:
    try:
        return tuple(_walk(ast.parse(text), ""))
    except (SyntaxError, ValueError):  # a cell with a magic in it: its lines stand alone
        return ()


def _functions(filename: str) -> tuple[tuple[int, int, str], ...]:
    return _functions_in("".join(linecache.getlines(filename)))


def _walk(node: ast.AST, inside: str) -> Iterator[tuple[int, int, str]]:
    for child in ast.iter_child_nodes(node):
        name = inside
        if isinstance(child, (*_Function, ast.ClassDef)):
            name = f"{inside}.{child.name}" if inside else child.name
        if isinstance(child, _Function):
            yield child.lineno, child.end_lineno or child.lineno, name
        yield from _walk(child, name)
