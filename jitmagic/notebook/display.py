"""What %%compile shows by itself: a line about time, a line about what was compiled.

Comes in: figures of a cell, cards of what it tagged. Goes out: objects with a text and an HTML
form, and the formatters by which IPython shows a tagged function or module as its card.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from ..api import handle_of
from ..diagnostics.words import count, duration
from ..late import load
from .cell import RUN_NAME

if TYPE_CHECKING:
    from ..diagnostics.status import Card

__all__ = ["CellLine", "CellReport", "cards_of", "dim", "install_formatters", "remove_formatters"]

_TAGGED = (FunctionType, torch.nn.Module)


@dataclass(frozen=True, slots=True)
class CellReport:
    """Wall time of the cell and how much of it was compiling, in seconds."""

    seconds: float
    compiling: float

    def __repr__(self) -> str:
        running = max(0.0, self.seconds - self.compiling)
        return (
            f"jitmagic: {self.seconds:.3f} s, of which {self.compiling:.3f} s compiling "
            f"and {running:.3f} s running"
        )

    def _repr_html_(self) -> str:
        return dim(repr(self))


@dataclass(frozen=True, slots=True)
class CellLine:
    """What a cell compiled: cards of the functions, and the time when the cell began."""

    cards: tuple[Card, ...]
    began: float

    def __bool__(self) -> bool:
        return bool(repr(self))

    def __repr__(self) -> str:
        return "; ".join(filter(None, map(self._of, self.cards)))

    def _repr_html_(self) -> str:
        return dim(repr(self))

    def _of(self, card: Card) -> str:
        new = [variant for variant in card.variants if variant.at >= self.began]
        name = "this cell" if card.name == RUN_NAME else card.name
        if not new:
            return f"{name} runs as eager while its kernels are built" if card.is_building else ""
        kernels = count(sum(variant.kernels for variant in new), "kernel")
        if card.backend != "native":  # what it makes has kernels that nobody has told us of
            kernels = f"by backend {card.backend}"
        variants = f"{count(len(new), 'variant')}, " if len(new) > 1 else ""
        seconds = duration(sum(variant.seconds for variant in new))
        return f"compiled {name} in {seconds}: {variants}{kernels}"


def cards_of(targets: Iterable[Any]) -> tuple[Card, ...]:
    """Of those that are tagged."""
    handles = [handle for target in targets if (handle := handle_of(target)) is not None]
    return tuple(map(load("diagnostics.status").card_of, handles)) if handles else ()


def dim(text: str) -> str:
    """A line beside what the cell shows, as HTML."""
    return f"<div style='opacity:.75;font-size:12px'>{escape(text)}</div>"


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
