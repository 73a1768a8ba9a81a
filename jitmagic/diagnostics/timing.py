"""timing: how long calls take, measured side by side.

Comes in: named ways to do the same. Goes out: a `Timing`: the median of each and its quartiles in
seconds per call, and a verdict about the first against the others. The ways take turns in blocks of
calls that take equally long, and the first calls are not counted. What else the machine does hits
the blocks of one round alike, so the verdict is about ratios within a round: nothing is said to be
faster that is not in three quarters of the rounds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import quantiles
from typing import NamedTuple

import torch

from ..figures import speed
from .words import HINT, Readable, count, duration

__all__ = ["Against", "Side", "Timing", "Way", "measure"]

Clock = Callable[[], float]


class Way(NamedTuple):
    """What is called, and what is in force `around` each block of its calls."""

    call: Callable[[], object]
    around: Callable[[], AbstractContextManager[object]] = nullcontext


# Seconds that a block of calls takes. Linux gives a process 3 to 10 ms at a time when others want
# the core: a block of 4 ms beside one of 20 measured 392 us and 810 us for the same function.
BLOCK = 0.02
ROUNDS = 5, 100  # of blocks, at least and at most
_WARM = 3  # calls before anything is counted


@dataclass(frozen=True, slots=True)
class Side:
    """One way: seconds per call, lower quartile, median and upper quartile over the blocks."""

    name: str
    low: float
    median: float
    high: float

    def __str__(self) -> str:
        spread = f"{duration(self.low)} to {duration(self.high)}"
        return f"{self.name}: {duration(self.median)} per call (half of the rounds: {spread})"


@dataclass(frozen=True, slots=True)
class Against:
    """The first side's time over that of another in the same round: quartiles over the rounds."""

    name: str
    low: float
    median: float
    high: float

    def __str__(self) -> str:
        """The verdict in explain's words: `2.1x faster than eager (half of the rounds: 2.00x to
        2.15x)`.
        """
        told = speed(self.median, 1.0, self.name)
        if self.high < 1:
            return f"{told} (half of the rounds: {1 / self.high:.2f}x to {1 / self.low:.2f}x)"
        if self.low > 1:
            return f"{told} (half of the rounds: {self.low:.2f}x to {self.high:.2f}x)"
        return f"as fast as {self.name}, or the machine is too noisy to tell"


@dataclass(frozen=True, slots=True, repr=False)
class Timing(Readable):
    """Sides in the order given; the first is the one judged.

    against: the first beside each of the others
    blocks: how many of each were timed, of so many `calls` of that side
    compiling: seconds of compiles that the first calls of the first side set off
    """

    sides: tuple[Side, ...]
    against: tuple[Against, ...]
    blocks: int
    calls: tuple[int, ...]
    compiling: float = 0.0

    @property
    def verdicts(self) -> tuple[str, ...]:
        """The first side against each of the others."""
        return tuple(map(str, self.against))

    def told(self) -> list[tuple[str, str]]:
        lines = [(str(side), "") for side in self.sides]
        lines += [(f"{self.sides[0].name} is {v}", "font-weight:600") for v in self.verdicts]
        parts = [
            f"{side.name} {count(calls, 'call')}"
            for side, calls in zip(self.sides, self.calls, strict=True)
        ]
        how = f"{self.blocks} rounds in turns, each: {', '.join(parts)}"
        if self.compiling:
            how += f"; compiled before that, in {duration(self.compiling)}"
        return [*lines, (f"({how})", HINT)]


def measure(
    ways: Mapping[str, Way],
    seconds: float = 1.0,
    *,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Call each way in turns for about so many seconds in all. A GPU is waited for per block."""
    sizes = _calls_per_block(ways.values(), clock)
    blocks: list[list[float]] = [[] for _ in ways]
    least, most = ROUNDS
    ends = clock() + seconds
    while len(blocks[0]) < least or (clock() < ends and len(blocks[0]) < most):
        for way, size, known in zip(ways.values(), sizes, blocks, strict=True):
            known.append(_block(way, size, clock) / size)
    sides = [Side(name, *quantiles(known, n=4)) for name, known in zip(ways, blocks, strict=True)]
    ours = blocks[0]
    against = [
        Against(name, *quantiles([a / b for a, b in zip(ours, theirs, strict=True)], n=4))
        for name, theirs in list(zip(ways, blocks, strict=True))[1:]
    ]
    return Timing(tuple(sides), tuple(against), len(ours), tuple(sizes))


def _calls_per_block(ways: Iterable[Way], clock: Clock) -> list[int]:
    """Return how often each way is called in a block, so that all blocks take equally long."""
    durations = [_seconds_per_call(way, clock) for way in ways]
    block = max(BLOCK, *durations)
    return [max(1, round(block / duration)) for duration in durations]


def _seconds_per_call(way: Way, clock: Clock) -> float:
    _block(way, _WARM, clock)
    size = 1
    while (taken := _block(way, size, clock)) < BLOCK / 2:
        size *= min(10, max(2, math.ceil(BLOCK / taken))) if taken > 0 else 10
    return min(taken, _block(way, size, clock)) / size


def _block(way: Way, size: int, clock: Clock) -> float:
    call = way.call
    with way.around():
        _wait()
        started = clock()
        for _ in range(size):
            call()
        _wait()
        return clock() - started


def _wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
