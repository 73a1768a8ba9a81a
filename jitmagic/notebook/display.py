"""What %%compile shows by itself: a line about time, a line about what was compiled.

Comes in: figures of a cell, cards of what it tagged. Goes out: objects with a text and an HTML
form, and the formatters by which IPython shows a tagged function or module as its card.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from ..api import handle_of
from ..diagnostics.words import count, duration
from ..errors import RUN_NAME
from ..late import load
from ..notice import dim

if TYPE_CHECKING:
    from ..diagnostics.status import Card, Made

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
    """A line beside what the cell shows."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return dim(self.text)


def cell_time(seconds: float, compiling: float) -> DimLine:
    """Wall time of the cell and how much of it was compiling, in seconds."""
    running = max(0.0, seconds - compiling)
    return DimLine(
        f"jitmagic: {seconds:.3f} s, of which {compiling:.3f} s compiling "
        f"and {running:.3f} s running"
    )


@dataclass(frozen=True, slots=True)
class CellPart:
    """What a cell compiled of one function, resume functions and backwards included.

    inlined: the tagged functions that are part of it
    """

    name: str
    made: Made
    inlined: tuple[str, ...]
    backend: str
    is_building: bool

    @property
    def title(self) -> str:
        """What a reader calls it."""
        return CELL if self.name == RUN_NAME else self.name

    @property
    def is_waiting(self) -> bool:
        """Whether nothing of it is compiled yet."""
        return self.is_building and not self.made.graphs

    def __str__(self) -> str:
        name, made = self.title, self.made
        if not made.graphs:
            return ""
        if self.inlined:
            name = f"{', '.join(self.inlined)} as part of {name}"
        told = [count(made.variants, "variant")] if made.variants > 1 else []
        told.append(count(made.graphs, "graph"))
        if self.backend != "native":  # what it makes has kernels that nobody has told us of
            told.append(f"by backend {self.backend}")
        else:
            told.append(count(made.kernels, "kernel"))
        if made.verdict.tone in ("faster", "slower", "equal"):
            told.append(made.verdict.speed)
        return f"compiled {name} in {duration(made.seconds)}: {', '.join(told)}"


def cell_line(parts: Sequence[CellPart]) -> DimLine | None:
    """What a cell compiled; None: nothing."""
    told = list(filter(None, map(str, parts)))
    waiting = [part.title for part in parts if part.is_waiting]
    if waiting:
        told += [
            f"{name} ran as plain Python, because its kernels were still being built"
            if name == CELL
            else f"{name} runs as plain Python until its kernels are built"
            for name in waiting
        ]
    return DimLine("; ".join(told)) if told else None


def parts_of(targets: Iterable[Any]) -> tuple[CellPart, ...]:
    """Of those that are tagged, all of whose variants are the cell's."""
    handles = [handle for target in targets if (handle := handle_of(target)) is not None]
    if not handles:
        return ()
    status = load("diagnostics.status")
    found = []
    for handle in handles:
        card = status.card_of(handle)
        inlined = tuple(dict.fromkeys(name for v in card.variants for name in v.inlined))
        made = status.made_of(handle)
        found.append(CellPart(card.name, made, inlined, card.backend, card.is_building))
    return tuple(found)


def cards_of(targets: Iterable[Any]) -> tuple[Card, ...]:
    """Of those that are tagged."""
    handles = [handle for target in targets if (handle := handle_of(target)) is not None]
    return tuple(map(load("diagnostics.status").card_of, handles)) if handles else ()


def install_formatters(shell: Any) -> None:
    """Show tagged functions and modules as cards; what is not tagged is shown as ever."""
    for kind in _TAGGED:
        shell.display_formatter.formatters["text/html"].for_type(kind, _card_html)


def remove_formatters(shell: Any) -> None:
    """Undo install_formatters."""
    formatter = shell.display_formatter.formatters["text/html"]
    for kind in _TAGGED:
        if formatter.type_printers.get(kind) is _card_html:
            formatter.pop(kind)


def _card_html(target: Any) -> str | None:
    cards = cards_of([target])
    if not cards:
        own = getattr(target, "_repr_html_", None)  # a module's own, which we stand before
        return own() if callable(own) else None
    card = cards[0]._repr_html_()
    if isinstance(target, torch.nn.Module):
        return f"<pre>{escape(repr(target))}</pre>{card}"
    return card
