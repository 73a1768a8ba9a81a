"""timing: measures several callables in turns, and compares the first with each of the others.

Input: named callables that do the same work. Output: a `Timing` with median and quartiles of each,
in seconds per call. The callables take turns in blocks of equal duration, after uncounted warm-up
calls. Load on the machine affects all blocks of a round alike, so the verdict is a ratio within
rounds: "faster" is claimed only if it holds in three quarters of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from statistics import quantiles
from typing import NamedTuple

import torch

from ..figures import speed
from ..lazy_dataclass import dataclass
from .words import HINT, Readable, count, duration

__all__ = ["Against", "Side", "Timing", "Way", "measure"]

Clock = Callable[[], float]


class Way(NamedTuple):
    """A callable to time, and a context manager that is entered `around` each block of calls."""

    call: Callable[[], object]
    around: Callable[[], AbstractContextManager[object]] = nullcontext


# Seconds of a block of calls. On a busy core Linux schedules a process for 3 to 10 ms at a time:
# blocks of 4 ms and of 20 ms measured 392 us and 810 us for the same function.
BLOCK = 0.02
ROUNDS = 5, 100  # least and most rounds of blocks
_WARM = 3  # calls before anything is counted


@dataclass(frozen=True, slots=True)
class Side:
    """Seconds per call of one callable: lower quartile, median and upper quartile of the blocks."""

    name: str
    low: float
    median: float
    high: float

    def __str__(self) -> str:
        spread = f"{duration(self.low)} to {duration(self.high)}"
        return f"{self.name}: {duration(self.median)} per call (half of the rounds: {spread})"


@dataclass(frozen=True, slots=True)
class Against:
    """The first callable's time divided by another's in the same round: quartiles of the rounds."""

    name: str
    low: float
    median: float
    high: float

    def __str__(self) -> str:
        """Return `2.1x faster than eager (half of the rounds: 2.00x to 2.15x)`."""
        verdict = speed(self.median, 1.0, self.name)
        if self.high < 1:
            return f"{verdict} (half of the rounds: {1 / self.high:.2f}x to {1 / self.low:.2f}x)"
        if self.low > 1:
            return f"{verdict} (half of the rounds: {self.low:.2f}x to {self.high:.2f}x)"
        return f"as fast as {self.name}, or the machine is too noisy to tell"


@dataclass(frozen=True, slots=True, repr=False)
class Timing(Readable):
    """Holds the measurements in the order given; the verdicts are about the first callable.

    against: ratios of the first to each of the others
    blocks: number of timed blocks of each callable; calls: calls per block of each
    compiling: seconds of compiles that the first calls triggered
    """

    sides: tuple[Side, ...]
    against: tuple[Against, ...]
    blocks: int
    calls: tuple[int, ...]
    compiling: float = 0.0

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Verdicts on the first callable against each of the others."""
        return tuple(map(str, self.against))

    def styled_lines(self) -> list[tuple[str, str]]:
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
    """Time the callables in turns for about `seconds` in all, with a GPU synchronize per block."""
    sizes = _calls_per_block(ways.values(), clock)
    blocks: list[list[float]] = [[] for _ in ways]
    least, most = ROUNDS
    ends = clock() + seconds
    while len(blocks[0]) < least or (clock() < ends and len(blocks[0]) < most):
        for way, size, known in zip(ways.values(), sizes, blocks, strict=True):
            known.append(_block(way, size, clock) / size)
    sides = [Side(name, *quantiles(known, n=4)) for name, known in zip(ways, blocks, strict=True)]
    first = blocks[0]
    against = [
        Against(name, *quantiles([a / b for a, b in zip(first, other, strict=True)], n=4))
        for name, other in list(zip(ways, blocks, strict=True))[1:]
    ]
    return Timing(tuple(sides), tuple(against), len(first), tuple(sizes))


def _calls_per_block(ways: Iterable[Way], clock: Clock) -> list[int]:
    """Return the calls per block of each callable, so that all blocks take equally long."""
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
