"""Runs one compiler process and returns its exit code and error output.

A process has its own process group, so that its children are killed with it: on timeout, when
another thread cancels it, and when this thread is interrupted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence

from ..errors import ToolchainError
from ..lazy_dataclass import dataclass

__all__ = ["CompilerProcess", "Completed", "run"]

_POLL_SECONDS = 0.1  # seconds between checks of `cancel`
_NICE = 10  # priority value of a compiler that no call waits for
_TOO_LONG = (
    "it was stopped after {:g} seconds\n"
    "  hint: options={{'compile_seconds': ...}} sets how long a compiler may take"
)


@dataclass(frozen=True, slots=True)
class Completed:
    """Holds the exit code and the standard error of a process."""

    code: int
    stderr: str


def run(command: Sequence[str], seconds: float, cancel: threading.Event | None = None) -> Completed:
    """Run one compiler to its end. It and all its children are killed after `seconds`, when
    `cancel` is set (by another thread), and when this thread is interrupted. Builds in the
    background can be cancelled; their compilers leave the processors to the program.

    Thread-safe. Raises ToolchainError if the process cannot be started or was stopped; an interrupt
    passes through.
    """
    try:
        process = CompilerProcess(command)
    except (OSError, ValueError) as error:
        raise ToolchainError(command[0], " ".join(command), str(error)) from error
    try:
        if cancel is not None:
            process.lower_priority()
        output = process.wait_for_stderr(seconds, cancel)
    except BaseException:  # an interrupt too must leave no compiler running
        process.kill_group()
        raise
    if output is None:
        process.kill_group()
        asked = cancel is not None and cancel.is_set()
        why = "the compile was cancelled" if asked else _TOO_LONG.format(seconds)
        raise ToolchainError(command[0], " ".join(command), why)
    return Completed(process.returncode, output.decode(errors="replace"))


class CompilerProcess(subprocess.Popen[bytes]):
    """Runs in its own process group, so that its children are killed with it."""

    def __init__(self, command: Sequence[str]) -> None:
        try:
            super().__init__(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except BaseException:  # an interrupt may arrive after it has started
            if self.pid is not None and self.returncode is None:
                self.kill_group()
            raise

    def wait_for_stderr(self, seconds: float, cancel: threading.Event | None) -> bytes | None:
        """Return its error output, or None on timeout or when `cancel` is set."""
        end = time.monotonic() + seconds
        while cancel is None or not cancel.is_set():
            left = end - time.monotonic()
            if left <= 0:
                break
            try:
                return self.communicate(
                    timeout=left if cancel is None else min(left, _POLL_SECONDS)
                )[1]
            except subprocess.TimeoutExpired:
                pass
        return None

    def stderr_so_far(self) -> bytes:
        """Return its error output so far without blocking: a child may outlive it."""
        if self.stderr is None:
            return b""
        os.set_blocking(self.stderr.fileno(), False)
        with self.stderr:
            return self.stderr.read() or b""

    def lower_priority(self) -> None:
        """Let other processes go first."""
        with contextlib.suppress(OSError):  # it has exited
            os.setpriority(os.PRIO_PGRP, self.pid, _NICE)

    def kill_group(self) -> None:
        """Kill it and its children, and reap it."""
        with contextlib.suppress(OSError):  # all have exited
            os.killpg(self.pid, signal.SIGKILL)
        if self.stderr is not None:
            self.stderr.close()
        self.wait()
