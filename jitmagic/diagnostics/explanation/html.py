"""html: renders a Page, cards and tables as static HTML with the jinja2 templates of templates/.

The HTML has no scripts and no external files, so a saved notebook shows it unchanged. Colours
follow the page's theme through `currentColor`. GitHub removes styles from notebooks; source keeps
its lines and columns there. jinja2 escapes all text from the user's program.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ...figures import count, duration, size
from .findings import Findings
from .footprint import Footprint
from .highlight import Piece, highlighted
from .page import page_of

__all__ = ["STYLE", "card_body", "grid_html", "html_body", "html_report", "table_html"]

_TEMPLATES = Path(__file__).parent / "templates"
_COLOURS = 7  # style.css has the colours .k0 to .k6 for kernels
_MOST_KERNELS = 8  # kernels that are shown unfolded
_MOST_STEPS = 400  # steps of a memory picture: more would be narrower than a pixel or two


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": lambda seconds: duration(seconds) if seconds else "",
        "width": lambda part: f"{min(1.0, max(0.0, part)) * 100:.1f}%",
        "colour": lambda number: f"k{(number - 1) % _COLOURS}",
        "entries": _entries,
        "highlighted": highlighted,
        "is_loop": _is_loop,
        "size": size,
        "area": _area,
        "counted": count,
    }
    return environment


STYLE = f"<style>\n{(_TEMPLATES / 'style.css').read_text(encoding='utf-8')}</style>"


def html_report(findings: Findings) -> str:
    """Return the whole report as HTML that can be embedded in a page."""
    return f"{STYLE}\n{html_body(findings)}"


def html_body(findings: Findings) -> str:
    """Return the report as HTML for a page that contains STYLE."""
    return _rendered("report.html", page=page_of(findings), texts=set(), shown=_MOST_KERNELS)


def card_body(card: object) -> str:
    """Return the card of one tagged function as HTML for a page that contains STYLE."""
    return _rendered("card.html", card=card)


def table_html(table: object) -> str:
    """Return the table of `status` as HTML, with STYLE."""
    return STYLE + _rendered("status.html", table=table)


def grid_html(grid: object) -> str:
    """Return a table with a title, columns, rows of texts and notes as HTML, with STYLE."""
    return STYLE + _rendered("grid.html", grid=grid)


def _rendered(name: str, **values: object) -> str:
    return _environment().get_template(name).render(**values)


def _entries(lines: Sequence[str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return each line with the (kind, text) of lines indented below it; kind "edit" or ""."""
    entries: list[tuple[str, list[tuple[str, str]]]] = []
    for line in lines:
        text = line.strip()
        if line.startswith(" ") and entries:
            entries[-1][1].append(("edit" if text.startswith("to stop it:") else "", text))
        else:
            entries.append((text, []))
    return entries


def _is_loop(line: Sequence[Piece]) -> bool:
    """Return whether a loop of generated code begins on the line."""
    return ("keyword", "for") in line


def _area(footprint: Footprint, side: str) -> Markup:
    """Return the bytes alive after each operation, relative to the peak, as a CSS clip-path."""
    points = footprint.eager if side == "e" else footprint.compiled
    highest = max(*footprint.eager, *footprint.compiled, 1)
    chosen = points if len(points) <= _MOST_STEPS else _thinned(points)
    corners = ["0% 100%"]
    for number, value in enumerate(chosen):
        top = 100 * (1 - value / highest)
        left, right = (100 * (number + end) / len(chosen) for end in (0, 1))
        corners += [f"{left:.2f}% {top:.1f}%", f"{right:.2f}% {top:.1f}%"]
    return Markup(f"polygon({','.join([*corners, '100% 100%'])})")  # safe: only numbers


def _thinned(points: Sequence[int]) -> list[int]:
    """Return the maximum of each run of points, at most _MOST_STEPS of them."""
    stretch = -(-len(points) // _MOST_STEPS)
    return [max(points[at : at + stretch]) for at in range(0, len(points), stretch)]
