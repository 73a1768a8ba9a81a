"""The progress line: what is being compiled, once it takes longer than a blink.

Comes in: stage begin and end events of `records.watchers`. Goes out: one line on stderr, rewritten
in place on a terminal and in notebooks, that says which function is in which stage; it is wiped
when the compile ends. Nothing is printed for compiles that end within `AFTER` seconds.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

from ..records import CompileRecord, StageRecord, watchers

__all__ = ["AFTER", "Progress", "install", "uninstall"]

AFTER = 0.3  # seconds of silence


class Progress:
    """One watcher for the process; compiles on several threads share the line, the last speaks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[CompileRecord] = []
        self._label = ""
        self._since = 0.0
        self._shown = 0
        self._timer: threading.Timer | None = None

    def __call__(self, record: CompileRecord, stage: StageRecord, begins: bool) -> None:
        with self._lock:
            if begins:
                self._begin(record, stage)
            else:
                self._end()

    def _begin(self, record: CompileRecord, stage: StageRecord) -> None:
        if not self._open:
            self._since = time.monotonic() - record.seconds
        self._open.append(record)
        self._label = f"jitmagic: compiling {record.name}: {stage.stage}"
        left = AFTER - (time.monotonic() - self._since)
        if left <= 0:
            self._speak()
            return
        self._timer = threading.Timer(left, self._speak_later, (stage,))
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        self._open.pop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._open:
            self._write("")

    def _speak_later(self, stage: StageRecord) -> None:
        with self._lock:
            if self._open and self._open[-1].stages[-1] is stage:
                self._speak()

    def _speak(self) -> None:
        self._write(f"{self._label} ({time.monotonic() - self._since:.1f} s)")

    def _write(self, text: str) -> None:
        stream = sys.stderr
        if (not text and not self._shown) or not _is_live(stream):
            return
        stream.write("\r" + text.ljust(self._shown) + ("" if text else "\r"))
        stream.flush()
        self._shown = len(text)


def _is_live(stream: TextIO | None) -> bool:
    """A terminal or a notebook: somebody watches, and a line can be taken back."""
    if stream is None or stream.closed:
        return False
    return stream.isatty() or type(stream).__module__.startswith("ipykernel")


_progress = Progress()


def install() -> None:
    """Watch compiles from now on (done when jitmagic is imported)."""
    if _progress not in watchers:
        watchers.append(_progress)


def uninstall() -> None:
    """Be quiet again."""
    if _progress in watchers:
        watchers.remove(_progress)
