"""Collects the status of all ranks of a distributed program, through notes (ranks/).

The rank that asks gets an answer from the thread of each other rank that reads notes, which also
runs while that rank waits in a collective. Nothing is asked of ranks that have compiled nothing.
"""

from __future__ import annotations

import time

from ..lazy_dataclass import dataclass
from ..ranks.board import Board, board
from .status import Status, status

__all__ = ["RanksStatus", "reply", "status_of_all_ranks"]

_TOPIC = "status"
_PATIENCE = 5.0  # seconds that an answer may take


@dataclass(frozen=True, slots=True)
class RanksStatus:
    """The status of each rank as text; None for one that did not answer."""

    ranks: dict[int, str | None]

    def __str__(self) -> str:
        return "\n".join(
            f"rank {rank}\n{f'no answer in {_PATIENCE:.0f} s' if text is None else text}"
            for rank, text in self.ranks.items()
        )

    __repr__ = __str__


def status_of_all_ranks() -> Status | RanksStatus:
    """Ask every rank for its status; in a program of one process, return its own."""
    notes = board()
    if notes is None:
        own: Status = status()
        return own
    question = f"{notes.rank}-{time.monotonic_ns()}"
    notes.post(_TOPIC, question)
    ranks = {notes.rank: str(status())}
    ends = time.monotonic() + _PATIENCE
    while len(ranks) < notes.size and time.monotonic() < ends:
        for rank in set(range(notes.size)) - ranks.keys():
            if (answer := notes.take(_key(question, rank))) is not None:
                ranks[rank] = answer.decode()
        time.sleep(0.02)
    return RanksStatus({rank: ranks.get(rank) for rank in range(notes.size)})


def reply(notes: Board, question: str) -> None:
    """Answer the question of another rank."""
    notes.put(_key(question, notes.rank), str(status()).encode())


def _key(question: str, rank: int) -> str:
    return f"{_TOPIC}/{question}/{rank}"
