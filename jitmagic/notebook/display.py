"""display: the lines that %%compile shows, and the cards of tagged functions.

Input: figures of a cell, and cards of what it tagged. Output: objects with a text and an HTML form,
and the formatters with which IPython shows a tagged function or module as a card.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from ..api import handle_of
from ..diagnostics.words import count, duration
from ..errors import RUN_NAME
from ..late import load
from ..lazy_dataclass import dataclass
from ..notice import dim

if TYPE_CHECKING:
    from ..diagnostics.status import Card, CompileTotals

__all__ = [
    "CellPart",
    "DimLine",
    "cell_line",
    "cell_time",
    "install_formatters",
    "parts_of",
    "remove_formatters",
]

CELL = "this cell"
_TAGGED = (FunctionType, torch.nn.Module)


@dataclass(frozen=True, slots=True)
class DimLine:
    """A line of text that is shown dimmed below a cell's output."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return dim(self.text)


def cell_time(seconds: float, compiling: float) -> DimLine:
    """Return a line with the cell's wall time and the part spent compiling, both in seconds."""
    running = max(0.0, seconds - compiling)
    return DimLine(
        f"jitmagic: {seconds:.3f} s, of which {compiling:.3f} s compiling "
        f"and {running:.3f} s running"
    )


@dataclass(frozen=True, slots=True)
class CellPart:
    """Everything that a cell compiled for one function, resume functions and backwards included.

    inlined: names of tagged functions that were inlined into it
    """

    name: str
    totals: CompileTotals
    inlined: tuple[str, ...]
    backend: str
    is_building: bool

    @property
    def title(self) -> str:
        """The function's name, or "this cell" for top-level code."""
        return CELL if self.name == RUN_NAME else self.name

    @property
    def is_waiting(self) -> bool:
        """True if its kernels are being compiled and none is ready."""
        return self.is_building and not self.totals.graphs

    def __str__(self) -> str:
        name, totals = self.title, self.totals
        if not totals.graphs:
            return ""
        if self.inlined:
            name = f"{', '.join(self.inlined)} as part of {name}"
        parts = [count(totals.variants, "variant")] if totals.variants > 1 else []
        parts.append(count(totals.graphs, "graph"))
        if self.backend != "native":  # the number of kernels of another backend is not known
            parts.append(f"by backend {self.backend}")
        else:
            parts.append(count(totals.kernels, "kernel"))
        if totals.verdict.tone in ("faster", "slower", "equal"):
            parts.append(totals.verdict.speed)
        return f"compiled {name} in {duration(totals.seconds)}: {', '.join(parts)}"


def cell_line(parts: Sequence[CellPart]) -> DimLine | None:
    """Return a line about everything that a cell compiled; None if it compiled nothing."""
    texts = list(filter(None, map(str, parts)))
    waiting = [part.title for part in parts if part.is_waiting]
    if waiting:
        texts += [
            f"{name} ran as plain Python, because its kernels were still being built"
            if name == CELL
            else f"{name} runs as plain Python until its kernels are built"
            for name in waiting
        ]
    return DimLine("; ".join(texts)) if texts else None


def parts_of(targets: Iterable[object]) -> tuple[CellPart, ...]:
    """Return the parts for a cell's tagged functions, all of whose variants the cell compiled."""
    handles = [handle for target in targets if (handle := handle_of(target)) is not None]
    if not handles:
        return ()
    status = load("diagnostics.status")
    found = []
    for handle in handles:
        card = status.card_of(handle)
        inlined = tuple(dict.fromkeys(name for v in card.variants for name in v.inlined))
        totals = status.compile_totals(handle)
        found.append(CellPart(card.name, totals, inlined, card.backend, card.is_building))
    return tuple(found)


def cards_of(targets: Iterable[object]) -> tuple[Card, ...]:
    """Return the cards of those targets that are tagged."""
    handles = [handle for target in targets if (handle := handle_of(target)) is not None]
    return tuple(map(load("diagnostics.status").card_of, handles)) if handles else ()


def install_formatters(shell: Any) -> None:
    """Have IPython show tagged functions and modules as cards."""
    for kind in _TAGGED:
        shell.display_formatter.formatters["text/html"].for_type(kind, _card_html)


def remove_formatters(shell: Any) -> None:
    """Undo install_formatters."""
    formatter = shell.display_formatter.formatters["text/html"]
    for kind in _TAGGED:
        if formatter.type_printers.get(kind) is _card_html:
            formatter.pop(kind)


def _card_html(target: object) -> str | None:
    cards = cards_of([target])
    if not cards:
        own = getattr(target, "_repr_html_", None)  # a module's own HTML, which this replaces
        return own() if callable(own) else None
    card = cards[0]._repr_html_()
    if isinstance(target, torch.nn.Module):
        return f"<pre>{escape(repr(target))}</pre>{card}"
    return card
