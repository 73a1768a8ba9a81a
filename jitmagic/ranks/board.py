"""Notes that the ranks of a distributed program leave for each other, and a thread that reads them.

Notes are kept in the store through which the process group was made. No collective is called: those
of the program stay in the order in which it calls them. All ranks read the same notes in the same
order. `listen` registers what is done with the notes of a topic, `watch` starts the thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch

from ..compat.distributed import default_store
from ..errors import this_rank
from ..lazy_dataclass import dataclass

__all__ = ["Board", "Note", "board", "listen", "on_tick", "poll", "watch"]

_PREFIX = "jitmagic"
_PAUSE = 0.2  # seconds between two looks at the board
_LOOK = 0.02  # seconds between two looks for a value that a rank waits for
_PATIENCE = timedelta(seconds=5)  # for an answer of the store, which the end of a program waits for
_SHARE = 64  # ranks: with more of them each looks less often, as one process serves all


class Note(NamedTuple):
    """Holds what a rank has posted."""

    rank: int
    topic: str
    text: str


@dataclass(eq=False, slots=True)
class Board:
    """A list of notes, which all ranks of the default group read and append to, and values that are
    set once. `of` is the program's store; `store` a connection of its own, as one that waits in a
    call of the program would make this one wait.
    """

    of: Any
    store: Any
    rank: int
    size: int
    read: int = 0  # notes that were read

    def post(self, topic: str, text: str) -> None:
        """Append a note."""
        number = self.store.add(f"{_PREFIX}/notes", 1)
        self.store.set(f"{_PREFIX}/note/{number}", f"{self.rank}:{topic}:{text}")

    def news(self) -> list[Note]:
        """Return the notes since the last call. One whose rank is still writing it hides those that
        follow.
        """
        found = []
        while self.store.check([key := f"{_PREFIX}/note/{self.read + 1}"]):
            rank, topic, text = self.store.get(key).decode().split(":", 2)
            found.append(Note(int(rank), topic, text))
            self.read += 1
        return found

    def claim(self, name: str) -> bool:
        """Return whether this is the first claim to a name, of any rank."""
        return bool(self.store.add(f"{_PREFIX}/claim/{name}", 1) == 1)

    def put(self, name: str, value: bytes) -> None:
        """Set a value."""
        self.store.set(f"{_PREFIX}/value/{name}", value)

    def take(self, name: str) -> bytes | None:
        """Return a value; None if no rank has set it yet."""
        if not self.store.check([key := f"{_PREFIX}/value/{name}"]):
            return None
        return bytes(self.store.get(key))

    def awaited(self, name: str, ends: float) -> bytes | None:
        """Return a value once a rank has set it; None if none has by `ends` (time.monotonic())."""
        while (value := self.take(name)) is None and time.monotonic() < ends:
            time.sleep(_LOOK)
        return value


_lock = threading.RLock()
_boards: list[Board] = []  # at most one: that of the process group in use
# not empty in a fork of a rank, which shares its connection to the store
_children: list[bool] = []


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
    with _lock:
        if not _boards or _boards[0].of is not store:
            _boards[:] = [_board_of(store, rank)]
        return _boards[0] if _boards[0].size > 1 else None


def _board_of(store: Any, rank: int) -> Board:
    try:
        own = store.clone()
        own.set_timeout(_PATIENCE)
        own.add(f"{_PREFIX}/ranks", 1)
    except (RuntimeError, NotImplementedError):  # that of a fake process group
        return Board(store, store, rank, size=1)
    return Board(store, own, rank, torch.distributed.get_world_size())


# -- the thread that reads -------------------------------------------------------------------------

Handler = Callable[[Board, int, str], None]
_handlers: dict[str, Handler] = {}
_ticks: list[Callable[[Board], None]] = []
_ends = threading.Event()
_watching: list[tuple[Board, threading.Thread]] = []


def listen(topic: str, handler: Handler) -> None:
    """Let `handler(board, rank, text)` be called for each note of a topic, its own ones too, in the
    order of the board, on any thread. It waits for nothing: that is left to `on_tick`.
    """
    _handlers[topic] = handler


def on_tick(function: Callable[[Board], None]) -> None:
    """Let the thread call `function(board)` each time it has read the notes."""
    _ticks.append(function)


def poll(notes: Board) -> None:
    """Handle the notes since the last time now, on this thread."""
    with _lock:
        for note in notes.news():
            if note.topic in _handlers:
                _handlers[note.topic](notes, note.rank, note.text)


def watch(notes: Board) -> None:
    """Start the thread that handles notes, unless it runs."""
    with _lock:
        if _watching and _watching[0][0] is notes:
            return
        thread = threading.Thread(target=_run, args=(notes,), name="jitmagic-ranks")
        _watching[:] = [(notes, thread)]
        thread.start()


# Python waits for the thread: at its end it would unwind one that comes back from C++, which aborts
# the process. This runs before it waits.
threading._register_atexit(_ends.set)  # type: ignore[attr-defined]


def _run(notes: Board) -> None:
    pause = _PAUSE * max(1, notes.size / _SHARE)
    try:
        while not _ends.wait(pause) and _watching[0][0] is notes and _is_in_use(notes):
            poll(notes)
            for tick in _ticks:
                tick(notes)
    except RuntimeError:  # the process that served the store has ended
        return


def _is_in_use(notes: Board) -> bool:
    """Return whether the process group is the one that the board was made for, and not destroyed:
    the file of a FileStore is gone then.
    """
    return this_rank() is not None and default_store() is notes.of
