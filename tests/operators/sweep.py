"""The sweep over arguments at their edges, by a pool of processes, and its one summary line.

Comes in: the options of `python -m tests.operators --edges`. Goes out: a line per finding and the
summary. A batch whose process dies is halved until one case is left; whether eager itself dies of
it is tried too.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Sequence

import torch

from tests.fuzz.tiers import compiled_by
from tests.workers import Outcome, Pool, serve

from .batches import DeviceLost, Finding, Tally, examine_cases, run_eagerly
from .edges import Case, cases

__all__ = ["sampled", "sweep", "work"]

BATCH, SMALL_BATCH = 96, 32  # cases a task, where g++ (two seconds) or Triton compiles
LONGEST = 400  # seconds of a task: else it hangs
_SUMMARY = "@tally "


def sampled(only: str, count: int | None, seed: int) -> Sequence[Case]:
    """The cases, or so many of them, spread over all; the same ones for the same seed."""
    everything = cases(only)
    if count is None or count >= len(everything):
        return everything
    chosen = sorted(random.Random(seed).sample(range(len(everything)), count))
    return [everything[n] for n in chosen]


def sweep(options: argparse.Namespace) -> int:
    """Run it; the exit code."""
    started = time.monotonic()
    if options.device != "cpu":
        options.tier = "cuda"
    size = BATCH if options.tier in ("cpp", "numba") else SMALL_BATCH
    count = len(sampled(options.only, options.sample, options.seed))
    shard, of = map(int, options.shard.split("/"))
    command = [sys.executable, "-m", "tests.operators", "--edges", "--worker"]
    command += ["--only", options.only, "--tier", options.tier, "--device", options.device]
    command += ["--seed", str(options.seed)]
    command += [] if options.sample is None else ["--sample", str(options.sample)]
    pool = Pool(command, options.jobs)
    for start in range(0, count, size)[shard::of]:
        pool.add(f"{start} {min(start + size, count)}")
    tally, wrong = Tally(), 0
    for outcome in pool.outcomes():
        wrong += _took(outcome, pool, tally, options)
    skipped = ", ".join(f"{n} {why}" for why, n in sorted(tally.skipped.items())) or "none"
    print(
        f"{tally.cases} cases, {wrong} wrong, {tally.refused} refused by eager,"
        f" {tally.fell_back} fell back visibly, skipped: {skipped}"
        f" ({options.tier}, {options.device}, {time.monotonic() - started:.0f} s)"
    )
    return 1 if wrong else 0


def _took(outcome: Outcome, pool: Pool, tally: Tally, options: argparse.Namespace) -> int:
    """Count an outcome; how many findings it has."""
    if outcome.died is not None:
        return _took_death(outcome, pool, tally, options)
    findings = 0
    for line in outcome.lines:
        if line.startswith(_SUMMARY):
            tally.add(Tally(**json.loads(line.removeprefix(_SUMMARY))))
        else:
            findings += 1
            print(line, flush=True)
    return findings


def _took_death(outcome: Outcome, pool: Pool, tally: Tally, options: argparse.Namespace) -> int:
    start, stop, *eager = outcome.task.split()
    middle = (int(start) + int(stop)) // 2
    if eager:
        tally.skip("eager itself crashes")
    elif middle > int(start):
        pool.add(f"{start} {middle}")
        pool.add(f"{middle} {stop}")
    else:
        pool.add(f"{start} {stop} {outcome.died}")
    return 0


def work(options: argparse.Namespace) -> None:
    """A worker of the sweep."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.disable()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    chosen = sampled(options.only, options.sample, options.seed)

    def handle(task: str) -> None:
        signal.alarm(LONGEST)
        start, stop, *died = task.split()
        part = chosen[int(start) : int(stop)]
        try:
            _examine(part, died, options)
        except DeviceLost:
            os._exit(70)

    serve(handle)


def _examine(part: Sequence[Case], died: list[str], options: argparse.Namespace) -> None:
    if died:  # its process died of compiled code, unless it dies here as well
        run_eagerly(part[0], options.device)
        print(Finding(part[0], f"the process died with {died[0]}"))
        return
    tally = Tally()
    with compiled_by(options.tier) as wrap:
        for finding in examine_cases(part, wrap, tally, options.device):
            print(finding, flush=True)
    print(_SUMMARY + json.dumps(vars(tally)))
