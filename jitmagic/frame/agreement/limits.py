"""Lets the ranks of a distributed program stop compiling a frame together, and try again together.

A rank that reaches the recompile limit of a frame says so, and the others stop too: in a step that
one rank runs as eager, compiled code on another one only waits. When a rank at the limit tries one
more variant, the others do so at their next call that fits none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from ...protocols import Protocol
from ...ranks.board import Board, board, listen, on_tick
from ..original import Original
from .identity import frame_name, frames_named

__all__ = ["follow_limits", "post_limit"]

_TOPIC = "limit"
_posted: list[tuple[str, int]] = []  # by other ranks: names of frames, calls passed


class _Frame(Protocol):
    """A handle, as far as this module knows it."""

    original: Original

    def follow_limit(self, passed: int) -> None:
        """Do as another rank does."""
        ...


def post_limit(original: Original, passed: int = 0) -> None:
    """Tell the other ranks that this one stops compiling a frame or, after so many calls have run
    as eager, tries one more variant.
    """
    if (notes := board()) is not None:
        try:
            notes.post(_TOPIC, json.dumps([frame_name(original), passed]))
        except RuntimeError:  # the process that served the store has ended
            return


def _receive(notes: Board, rank: int, text: str) -> None:
    if rank != notes.rank:
        name, passed = json.loads(text)
        _posted.append((name, passed))


listen(_TOPIC, _receive)


def follow_limits(frames: Callable[[], Iterable[_Frame]]) -> None:
    """Let those of `frames()` follow the frames of that name on other ranks."""

    def tick(notes: Board) -> None:
        while _posted:
            name, passed = _posted.pop(0)
            for frame in frames_named(name, frames()):
                frame.follow_limit(passed)

    on_tick(tick)
