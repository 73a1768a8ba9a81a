"""Tells the user of a distributed program which rank the others wait for while it compiles.

A rank that compiles for longer than `_AFTER` seconds posts the name of the function, and that it is
done. One of the ranks that do not compile then prints a line to standard error.
"""

from __future__ import annotations

import sys
import time
from functools import cache

from ..lazy_dataclass import dataclass
from ..records import Recording, RunningStage, watchers
from .board import Board, listen, on_tick

__all__ = ["report_waits"]

_AFTER = 2.0  # seconds
_PAUSE = 0.25  # between two stages of one compile, at most
_BEGINS, _ENDS = "compiling", "compiled"
_waited_for: dict[int, str] = {}  # rank -> the function that it compiles


@dataclass(slots=True)
class _Running:
    """The compile that this process runs, with stages within stages."""

    name: str = ""
    since: float = 0.0
    ended: float = 0.0  # the last stage
    depth: int = 0
    is_posted: bool = False


_running = _Running()


def _note_stage(recording: Recording, stage: RunningStage, begins: bool) -> None:
    now = time.monotonic()
    is_new = not _running.name or now - _running.ended > _PAUSE
    if begins and not _running.depth and is_new:
        _running.name, _running.since = recording.name, now
    _running.ended = now
    # The stage in which the watch began ends without having begun.
    _running.depth = max(0, _running.depth + (1 if begins else -1))


def _tick(notes: Board) -> None:
    is_long = _running.depth > 0 and time.monotonic() - _running.since > _AFTER
    if is_long and not _running.is_posted:
        _running.is_posted = True
        notes.post(_BEGINS, _running.name)
    elif _running.is_posted and not _running.depth:
        _running.is_posted = False
        notes.post(_ENDS, "")


def _begin(notes: Board, rank: int, name: str) -> None:
    _waited_for[rank] = name
    idle = set(range(notes.size)) - _waited_for.keys()
    if idle and notes.rank == min(idle):
        print(f"jitmagic: the ranks wait for rank {rank}, which compiles {name}", file=sys.stderr)


def _end(notes: Board, rank: int, name: str) -> None:
    _waited_for.pop(rank, None)


@cache
def report_waits() -> None:
    """Watch the compiles of this process, and the notes of others about theirs."""
    watchers.append(_note_stage)
    listen(_BEGINS, _begin)
    listen(_ENDS, _end)
    on_tick(_tick)
