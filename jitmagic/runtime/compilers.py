"""One compiler process: a command in, how it ended and what it said out.

A process has a group of its own, so that its children end with it: after so many seconds, when
another thread asks for it, and when this thread is interrupted. Nothing of it is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ToolchainError

__all__ = ["CompilerProcess", "Finished", "run"]

_LOOK = 0.1  # seconds between two looks at `cancel`
_TOO_LONG = (
    "it was stopped after {:g} seconds\n"
    "  hint: options={{'compile_seconds': ...}} sets how long a compiler may take"
)


@dataclass(frozen=True, slots=True)
class Finished:
    """How a process ended, and what it wrote to its standard error."""

    code: int
    words: str


def run(command: Sequence[str], seconds: float, cancel: threading.Event | None = None) -> Finished:
    """Run one compiler to its end. It and all its children are killed after `seconds`, when
    `cancel` is set (by another thread), and when this thread is interrupted.

    May be called from several threads at once: it shares nothing with other calls. Raises
    ToolchainError when the process cannot be started or was stopped; an interrupt passes through.
    """
    try:
        process = CompilerProcess(command)
    except (OSError, ValueError) as error:
        raise ToolchainError(command[0], " ".join(command), str(error)) from error
    try:
        words = process.wait_for_words(seconds, cancel)
    except BaseException:
        process.kill_group()
        raise
    if words is None:
        process.kill_group()
        asked = cancel is not None and cancel.is_set()
        why = "the compile was given up" if asked else _TOO_LONG.format(seconds)
        raise ToolchainError(command[0], " ".join(command), why)
    return Finished(process.returncode, words.decode(errors="replace"))


class CompilerProcess(subprocess.Popen[bytes]):
    """A process with a group of its own, whose children die with it."""

    def __init__(self, command: Sequence[str]) -> None:
        try:
            super().__init__(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except BaseException:  # an interrupt may come when it has begun to run
            if self.pid is not None and self.returncode is None:
                self.kill_group()
            raise

    def wait_for_words(self, seconds: float, cancel: threading.Event | None) -> bytes | None:
        """What it wrote; None when time is up or `cancel` is set."""
        end = time.monotonic() + seconds
        while cancel is None or not cancel.is_set():
            left = end - time.monotonic()
            if left <= 0:
                break
            try:
                return self.communicate(timeout=left if cancel is None else min(left, _LOOK))[1]
            except subprocess.TimeoutExpired:
                pass
        return None

    def words_so_far(self) -> bytes:
        """What it has written, without waiting for more: a child of it may outlive it."""
        if self.stderr is None:
            return b""
        os.set_blocking(self.stderr.fileno(), False)
        with self.stderr:
            return self.stderr.read() or b""

    def kill_group(self) -> None:
        """End it and its children; nothing of them is left."""
        with contextlib.suppress(OSError):  # all gone already
            os.killpg(self.pid, signal.SIGKILL)
        if self.stderr is not None:
            self.stderr.close()
        self.wait()
