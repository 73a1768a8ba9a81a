"""Notes that the ranks of a distributed program leave for each other, and a thread that reads them.

Notes are kept in the store through which the process group was made. No collective is called: those
of the program stay in the order in which it calls them. `listen` registers what is done with the
notes of a topic, `watch` starts the thread.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from ..compat.distributed import default_store
from ..errors import this_rank
from ..lazy_dataclass import dataclass, field

__all__ = ["Board", "board", "listen", "on_tick", "poll", "watch"]

_PREFIX = "jitmagic"
_PAUSE = 0.2  # seconds between two looks at the board
_SHARE = 64  # ranks: with more of them each looks less often, as one process serves all


@dataclass(eq=False, slots=True)
class Board:
    """Lists of notes by topic, which all ranks of the default group read and append to."""

    store: Any
    rank: int
    size: int
    seen: dict[str, int] = field(default_factory=dict)  # by topic, the notes that were read

    def post(self, topic: str, text: str) -> None:
        """Append a note."""
        number = self.store.add(f"{_PREFIX}/{topic}", 1)
        self.store.set(f"{_PREFIX}/{topic}/{number}", f"{self.rank}:{text}")

    def news(self, topic: str) -> list[tuple[int, str]]:
        """Return (rank, text) of the notes since the last call."""
        found = []
        count, read = self.store.add(f"{_PREFIX}/{topic}", 0), self.seen.get(topic, 0)
        while read < count and self.store.check([key := f"{_PREFIX}/{topic}/{read + 1}"]):
            rank, _, text = self.store.get(key).decode().partition(":")
            found.append((int(rank), text))
            read += 1
        self.seen[topic] = read
        return found


_boards: list[Board] = []  # at most one: that of the process group in use
_children: list[
    bool
] = []  # not empty in a fork of a rank, which shares its connection to the store


def _note_fork() -> None:
    if this_rank() is not None:
        _children.append(True)


os.register_at_fork(after_in_child=_note_fork)


def board() -> Board | None:
    """Return the board of the default group; None in a program of one process, and for stores that
    hold no notes.
    """
    rank = this_rank()
    if rank is None or _children:
        return None
    store = default_store()
    if not _boards or _boards[0].store is not store:
        _boards[:] = [Board(store, rank, torch.distributed.get_world_size())]
        try:
            store.add(f"{_PREFIX}/ranks", 1)
        except (RuntimeError, NotImplementedError):  # that of a fake process group
            _boards[0].size = 1
    return _boards[0] if _boards[0].size > 1 else None


# -- the thread that reads -------------------------------------------------------------------------

Handler = Callable[[Board, int, str], None]
_handlers: dict[str, Handler] = {}
_ticks: list[Callable[[Board], None]] = []
_ends = threading.Event()
_lock = threading.RLock()
_watching: list[tuple[Board, threading.Thread]] = []


def listen(topic: str, handler: Handler) -> None:
    """Let `handler(board, rank, text)` be called for each note of a topic, on any thread."""
    _handlers[topic] = handler


def on_tick(function: Callable[[Board], None]) -> None:
    """Let the thread call `function(board)` each time it has read the notes."""
    _ticks.append(function)


def poll(notes: Board) -> None:
    """Handle the notes since the last time now, on this thread."""
    with _lock:
        news = [(_handlers[topic], note) for topic in _handlers for note in notes.news(topic)]
    # Without the lock: a handler may wait for a thread that compiles, and that one reads notes too.
    for handler, (rank, text) in news:
        handler(notes, rank, text)


def watch(notes: Board) -> None:
    """Start the thread that handles notes, unless it runs."""
    with _lock:
        if _watching and _watching[0][0] is notes:
            return
        thread = threading.Thread(target=_run, args=(notes,), name="jitmagic-ranks", daemon=True)
        _watching[:] = [(notes, thread)]
        thread.start()


@atexit.register
def _stop() -> None:
    """End the thread while the interpreter is whole."""
    _ends.set()
    for _, thread in _watching:
        thread.join(timeout=1)


def _run(notes: Board) -> None:
    pause = _PAUSE * max(1, notes.size / _SHARE)
    try:
        while not _ends.wait(pause) and _watching[0][0] is notes:
            poll(notes)
            for tick in _ticks:
                tick(notes)
    except RuntimeError:  # the process that served the store has ended
        return
