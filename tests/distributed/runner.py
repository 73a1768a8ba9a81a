"""Runs programs in one pair of processes, in order, and says what each rank answered.

A pair in which a rank raises, dies or takes too long is killed, and a new one goes on with the next
program: what one rank waits for, the other may never send.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.processes import ROOT, child_environment
from tests.workers import DONE

from .corpus import MODULES

ANSWER = "@answer "  # begins the line in which a rank answers; libraries print too
READY = "@ready"
START = 120.0  # seconds in which both ranks must have imported everything and met
GRACE = 3.0  # seconds in which the other rank may answer after one has raised or died
RECORDED = 250  # collectives that the flight recorder remembers: a read of 1000 takes 20 ms
ENVIRONMENT = {  # unless the caller sets another value
    "GOMP_SPINCOUNT": "0",
    "OMP_NUM_THREADS": "1",
    "TORCH_FR_BUFFER_SIZE": str(RECORDED),
    "JITMAGIC_KEEP": "compiled",
    "JITMAGIC_PERSIST": "0",
}


@dataclass(frozen=True)
class Outcome:
    """What both ranks made of a program; `wrong` is empty where all is right. `started`: the
    collectives of the first rank, as eager and under the system.
    """

    title: str
    wrong: str = ""
    reordered: str = ""
    graphs: int = 0
    breaks: int = 0
    eager: int = 0
    why: tuple[str, ...] = ()
    seconds: float = 0.0
    started: tuple[int, int] = (0, 0)


class Pair:
    """Two processes, and threads that read what they print."""

    def __init__(self, system: str, modules: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._lines: queue.Queue[tuple[int, str | None]] = queue.Queue()
        self.output: list[list[str]] = [[], []]
        self._ranks = [self._start(rank, system, modules) for rank in range(2)]
        self._collect(READY, START)

    def _start(self, rank: int, system: str, modules: Sequence[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.distributed.rank"]
        process = subprocess.Popen(
            [*command, str(rank), self._folder.name, system, *modules],
            cwd=ROOT,
            env=child_environment(**{**ENVIRONMENT, **os.environ}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, args=(rank, process), daemon=True).start()
        return process

    def _read(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put((rank, line.rstrip("\n")))
        self._lines.put((rank, None))

    def run(self, title: str, seconds: float) -> list[dict[str, Any] | None]:
        """Return both ranks' answers; None for a rank that died or did not answer in time."""
        for rank in self._ranks:
            assert rank.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it died, which `_collect` finds
                rank.stdin.write(title + "\n")
                rank.stdin.flush()
        return self._collect(DONE, seconds)

    def _collect(self, last: str, seconds: float) -> list[dict[str, Any] | None]:
        """Read until both ranks have printed a line, or until the time is over."""
        self.output = [[], []]
        answers: list[dict[str, Any] | None] = [None, None]
        pending, end = {0, 1}, time.monotonic() + seconds
        while pending:
            try:
                rank, line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            if line is None or line == last:
                pending.discard(rank)
            elif line.startswith(ANSWER):
                # Other threads of the rank may print to the same line.
                found, _ = json.JSONDecoder().raw_decode(line.removeprefix(ANSWER))
                answers[rank] = found
            else:
                self.output[rank].append(line)
            failed = line is None or any(answer and answer["raised"] for answer in answers)
            end = min(end, time.monotonic() + GRACE) if failed else end
        return answers

    def close(self, kill: bool) -> None:
        """End both processes, by force where they may be waiting for each other."""
        for rank in self._ranks:
            assert rank.stdin is not None
            if kill:
                rank.kill()
            rank.stdin.close()
        for rank in self._ranks:
            rank.wait(timeout=30)
        self._folder.cleanup()


def run_all(
    titles: Sequence[str], system: str, seconds: float = 60.0, modules: Sequence[str] = MODULES
) -> Iterator[Outcome]:
    """Run the programs of these titles and modules, each for at most that many seconds."""
    pair: Pair | None = None
    try:
        for title in titles:
            start = time.perf_counter()
            pair = pair or Pair(system, modules)
            answers = pair.run(title, seconds)
            yield _outcome(title, answers, pair.output, time.perf_counter() - start)
            if any(answer is None or answer["raised"] for answer in answers):
                pair.close(kill=True)
                pair = None
    finally:
        if pair is not None:
            pair.close(kill=sys.exc_info()[0] is not None)


def _outcome(
    title: str, answers: list[dict[str, Any] | None], output: list[list[str]], seconds: float
) -> Outcome:
    wrong = []
    for rank, answer in enumerate(answers):
        if answer is None:
            printed = "\n".join(output[rank][-20:])
            wrong.append(f"rank {rank} did not return from {title!r}\n{printed}")
        elif problem := answer["raised"] or answer["wrong"]:
            wrong.append(f"rank {rank}: {problem}")
    given = [answer for answer in answers if answer is not None]
    if not given:
        return Outcome(title, "\n".join(wrong), seconds=seconds)
    orders = [_across(answer["order"]) for answer in given]
    if not wrong and orders[0] != orders[1]:
        wrong.append(f"the ranks start other collectives: {orders[0]} and {orders[1]}")
    return Outcome(
        title,
        "\n".join(wrong),
        "\n".join(dict.fromkeys(filter(None, (answer["reordered"] for answer in given)))),
        *(max(answer[name] for answer in given) for name in ("graphs", "breaks", "eager")),
        tuple(dict.fromkeys(reason for answer in given for reason in answer["why"])),
        seconds,
        (given[0]["of_eager"], len(given[0]["order"])),
    )


def _across(order: list[Any]) -> list[str]:
    """Return the names of the collectives in which both ranks take part."""
    return [name for name, *_ in order if not name.startswith(("gloo:send", "gloo:recv"))]
