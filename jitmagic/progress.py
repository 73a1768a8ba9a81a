"""Shows a progress line while a compile takes longer than `AFTER` seconds.

`records.watchers` reports when stages begin and end. The line names the function, its stage and the
seconds so far: on a terminal on stderr, rewritten in place; in a notebook as a display that is
updated. It is erased when the stage ends. In a cell without other output the display is removed, in
others an empty one is left. No line is shown if output is not interactive (a file, a pipe, a
captured stream). Stages that follow each other closely count as one wait, because for the user ten
small compiles take as long as a big one. The cursor stays at the start of the line, so that a
warning overwrites it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from .errors import RUN_NAME, notebook_shell
from .records import Recording, RunningStage, watchers

__all__ = ["AFTER", "Progress", "install", "new_wait", "uninstall"]

AFTER = 0.3  # seconds of a wait before the line appears
EVERY = 0.5  # seconds between updates
PAUSE = 0.25  # a gap shorter than this does not begin a new wait
IDLE = 5.0  # seconds without a compile after which the ticking thread ends
# The words that users see for a stage; "forward: lower" is the stage "lower" of the graph
# "forward".
_WORDS = {
    "import": "loading the compiler",
    "trace": "reading your code",
    "joint": "working out gradients",
    "partition": "working out gradients",
    "lower": "planning kernels",
    "schedule": "planning kernels",
    "render": "writing kernels",
    "load": "building kernels",
    "transforms": "preparing transforms",
    "tune": "measuring kernels",
    "plan": "building kernels",
    "emit": "putting it together",
}


class Progress:
    """Watches all compiles of the process; with several threads, the line shows the latest one."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        stream: Callable[[], TextIO | None] = lambda: sys.stderr,
    ) -> None:
        self._clock, self._stream = clock, stream
        # The lock is entered itself, not through the condition: Condition.__enter__ is Python code,
        # in which an interrupt could leave the lock held for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._open: list[tuple[Recording, RunningStage]] = []
        self._since = 0.0
        self._ended = float("-inf")
        self._shown = 0
        self._display = _Display()
        self._ticker: threading.Thread | None = None
        self._idle = False  # the ticker thread waits, as no stage runs

    def __call__(self, record: Recording, stage: RunningStage, begins: bool) -> None:
        with self._lock:
            if begins:
                self._begin(record, stage)
            else:
                self._end(stage)

    def new_wait(self) -> None:
        """Begin a new wait, as a notebook's cell starts."""
        with self._lock:
            self._display.begin_cell()
            if not self._open:
                self._ended = float("-inf")

    def _begin(self, record: Recording, stage: RunningStage) -> None:
        now = self._clock()
        if not self._open and now - self._ended > PAUSE:
            self._since = now
        self._open.append((record, stage))
        if now - self._since >= AFTER:
            self._speak()
        if (
            self._ticker is None or not self._ticker.is_alive()
        ):  # a forked process has no threads of its parent
            self._ticker = threading.Thread(target=self._tick, name="jitmagic-progress")
            self._ticker.daemon = True
            self._idle = False
            self._ticker.start()
        elif (
            self._idle
        ):  # a busy ticker wakes by itself: notifying it at each stage would cost more
            self._idle = False
            self._changed.notify()

    def _end(self, stage: RunningStage) -> None:
        self._open = [entry for entry in self._open if entry[1] is not stage]
        self._ended = self._clock()
        if not self._open:
            self._write("")
        elif self._shown:
            self._speak()

    def _tick(self) -> None:
        with self._lock:
            while self._open or self._wait_for_stage():
                left = self._since + AFTER - self._clock()
                if self._open and left <= 0:
                    self._speak()
                self._changed.wait(left if left > 0 else EVERY)
            self._ticker = None

    def _wait_for_stage(self) -> bool:
        """Return whether a stage began within IDLE seconds."""
        self._idle = True
        return self._changed.wait(IDLE)

    def _speak(self) -> None:
        record, stage = self._open[-1]
        part, _, last = stage.stage.rpartition(": ")
        doing = _WORDS.get(last, stage.stage)
        if part == "backward":
            doing += " for gradients"
        if stage.detail:
            doing += f": {stage.detail}"
        seconds = self._clock() - self._since
        name = "this cell" if record.name == RUN_NAME else record.name
        self._write(f"jitmagic: compiling {name}: {doing} ({seconds:.1f} s)")

    def _write(self, text: str) -> None:
        stream = self._stream()
        if (not text and not self._shown) or stream is None or stream.closed:
            return
        try:
            if type(stream).__module__.startswith("ipykernel"):
                self._shown = self._display.show(text)
            elif stream.isatty():
                text = text[: _columns(stream) - 1]
                stream.write(f"\r{text.ljust(self._shown)}\r")
                stream.flush()
                self._shown = len(text)
        except (OSError, ValueError):  # a terminal that went away or cannot show the name
            self._shown = 0


class _Display:
    """Shows the line in a notebook, as one display per cell.

    Text on stderr would stay in the notebook, with every update. The protocol has no message that
    removes one display: where it is the cell's only output, which the count of the kernel's
    messages shows, all outputs are cleared; elsewhere it is emptied. Builds in the background
    outlive their cell: the line stays there until the next cell begins.
    """

    def __init__(self) -> None:
        self._cell: object = None  # the cell that the display belongs to
        self._is_shown = False  # with a text
        self._sent: int | None = None  # messages so far, while the cell shows nothing but the line

    def begin_cell(self) -> None:
        """Start a cell without output; empty the line in the one before."""
        shell = notebook_shell()
        if shell is not None and self._is_shown:
            self._publish(shell, "", update=True)
        self._is_shown, self._cell = False, None
        self._sent = None if shell is None else _messages(shell)

    def show(self, text: str) -> int:
        """Show the text in the running cell; return the number of characters shown."""
        shell = notebook_shell()
        if shell is None or (not text and not self._is_shown):
            return 0
        begins = not self._is_shown and self._cell != shell.execution_count
        if begins:
            self._cell = shell.execution_count
        alone = self._sent is not None and _messages(shell) == self._sent
        if alone and not text:
            shell.display_pub.clear_output()
            self._cell = None
        else:
            self._publish(shell, text, update=not begins)
        self._is_shown = bool(text)
        self._sent = _messages(shell) if alone else None
        return len(text)

    def _publish(self, shell: Any, text: str, *, update: bool) -> None:
        shell.display_pub.publish(
            data={"text/plain": text} if text else {},
            metadata={},
            transient={"display_id": f"jitmagic-progress-{self._cell}"},
            update=update,
        )


def _messages(shell: Any) -> int | None:
    """Return the number of messages sent so far, flushed prints included; None if not known."""
    session = getattr(shell.display_pub, "session", None)
    for stream in (sys.stdout, sys.stderr):
        if session is not None and stream is not None:
            stream.flush()
    return getattr(session, "message_count", None)


def _columns(stream: TextIO) -> int:
    """Return the terminal's width: a line that wraps could not be rewritten in place."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):  # not a terminal, or one without a size
        return 100


_progress = Progress()


def install() -> None:
    """Start to watch compiles; importing jitmagic calls this."""
    if _progress not in watchers:
        watchers.append(_progress)


def new_wait(*_: object) -> None:
    """Begin a new wait; IPython calls this before each cell."""
    _progress.new_wait()


def uninstall() -> None:
    """Stop watching compiles."""
    if _progress in watchers:
        watchers.remove(_progress)
