"""Interleaved timing: all contestants take turns in one process, so that a noisy machine disturbs
all.

A contestant is a no-argument callable. Each round times every contestant once over a batch of
calls, in an
order that rotates; the figure is the median over rounds. Ratios to eager are medians of per-round
ratios.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Contestant = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Median seconds per call, and median ratio to the reference contestant of the same round."""

    seconds: float
    ratio: float


def _batch_size(run: Contestant, target: float) -> int:
    run()
    started = time.perf_counter()
    run()
    once = max(time.perf_counter() - started, 1e-7)
    return max(1, min(20_000, int(target / once)))


def _time(run: Contestant, calls: int, synchronize: Callable[[], None]) -> float:
    synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        run()
    synchronize()
    return (time.perf_counter() - started) / calls


def interleave(
    contestants: Mapping[str, Contestant],
    reference: str = "eager",
    rounds: int = 15,
    batch_seconds: float = 0.02,
) -> dict[str, Timing]:
    """Time the contestants against each other; they are warmed up (and compiled) first."""
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    for run in contestants.values():
        for _ in range(3):
            run()
    synchronize()
    calls = {name: _batch_size(run, batch_seconds) for name, run in contestants.items()}
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            samples[name].append(_time(contestants[name], calls[name], synchronize))
    base = samples[reference]
    return {
        name: Timing(
            statistics.median(times),
            statistics.median(t / b for t, b in zip(times, base, strict=True)),
        )
        for name, times in samples.items()
    }
