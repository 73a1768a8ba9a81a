"""Collects reports of all ranks of a distributed program, through notes (ranks/).

The rank that asks gets an answer from the thread of each other rank that reads notes, which also
runs while that rank waits in a collective. Nothing is asked of ranks that have compiled nothing.
"""

from __future__ import annotations

import time

from ..frame.agreement.identity import frame_name, frames_named
from ..frame.handle import Handle, all_handles
from ..late import load
from ..lazy_dataclass import dataclass
from ..ranks.board import Board, board
from .status import Status, status

__all__ = ["RanksReport", "explanation_of_all_ranks", "reply", "status_of_all_ranks"]

_TOPIC = "status"
_PATIENCE = 5.0  # seconds that an answer may take


@dataclass(frozen=True, slots=True)
class RanksReport:
    """Holds the report of each rank as text; None for one that did not answer."""

    ranks: dict[int, str | None]

    def __str__(self) -> str:
        return "\n".join(
            f"rank {rank}\n{f'no answer in {_PATIENCE:.0f} s' if text is None else text}"
            for rank, text in self.ranks.items()
        )

    __repr__ = __str__


def status_of_all_ranks() -> Status | RanksReport:
    """Ask every rank for its status; in a program of one process, return its own."""
    if board() is not None:
        return _ask("")
    own: Status = status()
    return own


def explanation_of_all_ranks(handle: Handle) -> RanksReport:
    """Ask every rank what it has compiled of a tagged function."""
    return _ask(frame_name(handle.original))


def _ask(frame: str) -> RanksReport:
    """Ask about a frame, or for the status if it is empty."""
    notes = board()
    if notes is None:
        return RanksReport({0: _report(frame)})
    question = f"{notes.rank}-{time.monotonic_ns()}-{frame}"
    notes.post(_TOPIC, question)
    reply(notes, question)
    ends = time.monotonic() + _PATIENCE
    answers = [notes.awaited(_key(question, rank), ends) for rank in range(notes.size)]
    texts = [None if answer is None else answer.decode() for answer in answers]
    return RanksReport(dict(enumerate(texts)))


def _report(frame: str) -> str:
    if not frame:
        return str(status())
    handle = next((one for one in frames_named(frame, all_handles()) if one.is_root), None)
    if handle is None:
        return "has not tagged it"
    return str(load("diagnostics.explanation.explain").explain_records(handle, handle.label))


def reply(notes: Board, question: str) -> None:
    """Answer a question, this rank's own too."""
    frame = question.rpartition("-")[2]
    notes.put(_key(question, notes.rank), _report(frame).encode())


def _key(question: str, rank: int) -> str:
    return f"{_TOPIC}/{question}/{rank}"
