"""A pool of worker processes that are dealt tasks: a crash of one is an outcome, not the end.

Comes in: the command of a worker and tasks, a line of text each. Goes out: an `Outcome` per task,
as they end. A worker reads a task a line, prints what it has to say and then DONE (`serve` does
that); one that dies is replaced, and its task says how it died.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.processes import ROOT, child_environment

__all__ = ["Outcome", "Pool", "serve"]

DONE = "@done"


@dataclass(frozen=True)
class Outcome:
    """`died`: the exit code of the worker, where it did not outlive the task."""

    task: str
    lines: tuple[str, ...]
    died: int | None = None


class Pool:
    """Tasks may be added while outcomes are read; `outcomes` ends when none is left."""

    def __init__(self, command: Sequence[str], jobs: int) -> None:
        self._command, self._jobs = list(command), jobs
        self._tasks: queue.Queue[str | None] = queue.Queue()
        self._done: queue.Queue[Outcome | Exception] = queue.Queue()
        self._left = 0

    def add(self, task: str) -> None:
        self._left += 1
        self._tasks.put(task)

    def outcomes(self) -> Iterator[Outcome]:
        """In the order in which tasks end."""
        threads = [threading.Thread(target=self._drive, daemon=True) for _ in range(self._jobs)]
        for thread in threads:
            thread.start()
        try:
            while self._left:
                outcome = self._done.get()
                if isinstance(outcome, Exception):
                    raise outcome
                self._left -= 1
                yield outcome
        finally:
            for _ in threads:
                self._tasks.put(None)
        for thread in threads:
            thread.join()

    def _drive(self) -> None:
        """Feed one worker after another until there are no tasks."""
        worker: subprocess.Popen[str] | None = None
        try:
            while (task := self._tasks.get()) is not None:
                worker = worker or self._start()
                outcome = _run(worker, task)
                worker = worker if outcome.died is None else None
                self._done.put(outcome)
        except Exception as error:  # of the pool itself: the reader raises it
            self._done.put(error)
        finally:
            if worker is not None and worker.stdin is not None:
                worker.stdin.close()
                worker.wait()

    def _start(self) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen(
            self._command, text=True, cwd=ROOT, env=child_environment(), **pipes
        )


def _run(worker: subprocess.Popen[str], task: str) -> Outcome:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(f"{task}\n")
    worker.stdin.flush()
    lines: list[str] = []
    for line in worker.stdout:
        if line.rstrip("\n") == DONE:
            return Outcome(task, tuple(lines))
        lines.append(line.rstrip("\n"))
    return Outcome(task, tuple(lines), died=worker.wait())


def serve(handle: Callable[[str], None]) -> None:
    """The worker's side: what `handle` prints belongs to the task, and so does an alarm it sets."""
    for line in sys.stdin:
        handle(line.rstrip("\n"))
        signal.alarm(0)
        print(DONE, flush=True)
