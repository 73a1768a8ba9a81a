"""timing: how long calls take, measured side by side.

Comes in: named ways to do the same. Goes out: a `Timing`: the median of each and its quartiles in
seconds per call, and a verdict about the first against the others. The ways take turns in blocks of
calls long enough for the clock, so that what else the machine does hits all of them alike, and the
first calls are not counted. Nothing is said to be faster whose quartiles overlap with the other's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import quantiles
from typing import NamedTuple

import torch

from .words import HINT, Readable, count, duration

__all__ = ["Side", "Timing", "Way", "measure"]

Clock = Callable[[], float]


class Way(NamedTuple):
    """What is called, and what is in force `around` each block of its calls."""

    call: Callable[[], object]
    around: Callable[[], AbstractContextManager[object]] = nullcontext


BLOCK = 0.004  # seconds that a block of calls takes at least
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
        return f"{self.name}: {duration(self.median)} per call (half of the blocks: {spread})"

    def against(self, other: Side) -> str:
        """The verdict on this side: `faster than eager: 2.1x`."""
        if self.high < other.low:
            return f"faster than {other.name}: {other.median / self.median:.2f}x"
        if other.high < self.low:
            return f"slower than {other.name}: it takes {self.median / other.median:.2f}x as long"
        return f"as fast as {other.name}, or the machine is too noisy to tell"


@dataclass(frozen=True, slots=True, repr=False)
class Timing(Readable):
    """Sides in the order given; the first is the one judged.

    blocks: how many of each were timed, of so many `calls` of that side
    compiling: seconds of compiles that the first calls of the first side set off
    """

    sides: tuple[Side, ...]
    blocks: int
    calls: tuple[int, ...]
    compiling: float = 0.0

    @property
    def verdicts(self) -> tuple[str, ...]:
        """The first side against each of the others."""
        return tuple(self.sides[0].against(other) for other in self.sides[1:])

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
    sizes = [_calls_per_block(way, clock) for way in ways.values()]
    blocks: list[list[float]] = [[] for _ in ways]
    least, most = ROUNDS
    ends = clock() + seconds
    while len(blocks[0]) < least or (clock() < ends and len(blocks[0]) < most):
        for way, size, known in zip(ways.values(), sizes, blocks, strict=True):
            known.append(_block(way, size, clock) / size)
    sides = [Side(name, *quantiles(known, n=4)) for name, known in zip(ways, blocks, strict=True)]
    return Timing(tuple(sides), len(blocks[0]), tuple(sizes))


def _calls_per_block(way: Way, clock: Clock) -> int:
    _block(way, _WARM, clock)
    size = 1
    while (taken := _block(way, size, clock)) < BLOCK:
        size *= min(10, max(2, math.ceil(BLOCK / taken))) if taken > 0 else 10
    return size


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
