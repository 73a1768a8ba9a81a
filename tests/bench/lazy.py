"""What `jitmagic.lazy()` costs per recorded operation. Run: python -m tests.bench.lazy

For chains of one kind of operation and for all kinds in turns, nanoseconds per operation: recording
alone (nothing reads the results, so nothing runs), the whole (recording, finding the compiled graph
and running it), and eager. The tensors are tiny, so that eager's figure is its cost of a call.
Medians of interleaved rounds; the last columns are medians of ratios within a round, which a busy
machine disturbs less. (Eager on meta tensors is no yardstick: torch 2.13 runs decompositions
written in Python for them, 200 us for an addition.)
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor

import jitmagic

Step = Callable[[Tensor, Tensor], Tensor]
KINDS: dict[str, Step] = {
    "pointwise, tensor": lambda y, x: y + x,
    "pointwise, number": lambda y, x: y * 0.5,
    "pointwise, unary": lambda y, x: y.tanh(),
    "keyword arguments": lambda y, x: torch.add(y, x, alpha=0.5),
    "in place": lambda y, x: y.add_(x),
    "view": lambda y, x: y.t(),
    "view with sizes": lambda y, x: y.view(8, 8),
    "slice": lambda y, x: y[0:8],
    "matmul": lambda y, x: y @ x,
    "reduction": lambda y, x: y.sum(1, keepdim=True) + x,
    "softmax": lambda y, x: y.softmax(-1),
}
COUNT = 500  # steps of a chain, whose operations fit in one batch


def chain(step: Step, x: Tensor) -> Tensor:
    y = x + 0
    for _ in range(COUNT):
        y = step(y, x)
    return y


def mixed(x: Tensor) -> Tensor:
    y, steps = x + 0, list(KINDS.values())
    for number in range(COUNT):
        y = steps[number % len(steps)](y, x)
    return y


def recorded(program: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Time the recording alone: the result is dropped before the block ends."""
    with jitmagic.lazy():
        started = time.perf_counter_ns()
        y = program(x)
        spent = time.perf_counter_ns() - started
        del y
    return spent


def timed(program: Callable[[Tensor], Tensor], lazily: bool, x: Tensor) -> float:
    block = jitmagic.lazy() if lazily else nullcontext()
    started = time.perf_counter_ns()
    with block:
        y = program(x)
    del y
    return time.perf_counter_ns() - started


def measure(program: Callable[[Tensor], Tensor], rounds: int, runs: bool) -> list[list[float]]:
    """Return nanoseconds per operation of each way, by round."""
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)) * 0.1
    ways = [
        partial(recorded, program, x),
        partial(timed, program, True, x) if runs else lambda: float("nan"),
        partial(timed, program, False, x),
    ]
    before = jitmagic.lazy.counts().recorded
    ways[0]()
    operations = jitmagic.lazy.counts().recorded - before  # a step may have several
    for way in ways:
        way()
    return [[way() / operations for way in ways] for _ in range(rounds)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.lazy")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    parser.add_argument("--record", action="store_true", help="only record, compile nothing")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    programs = {name: partial(chain, step) for name, step in KINDS.items()} | {"mixed": mixed}
    columns = ("record", "whole", "eager", "record/eager", "whole/eager")
    print(f"{'ns per operation':<20}" + "".join(f"{name:>13}" for name in columns))
    for name, program in programs.items():
        if wanted.only not in name:
            continue
        rounds = measure(program, wanted.rounds, not wanted.record)
        medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
        ratios = [statistics.median(one[i] / one[2] for one in rounds) for i in (0, 1)]
        figures = "".join(f"{value:13.0f}" for value in medians)
        print(f"{name:<20}{figures}" + "".join(f"{ratio:13.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
