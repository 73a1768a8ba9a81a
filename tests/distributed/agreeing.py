"""Runs as one of two ranks whose sizes differ, and prints what each of them compiled.

python -m tests.distributed.agreeing RANK FOLDER
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of
from jitmagic.errors import warn
from jitmagic.ranks import waits

from . import deciding

LIVE: dict[str, Any] = {"persist": False, "keep": "compiled"}


def compiles(tagged: Any) -> int:
    """Return how many variants of a function were compiled."""
    handle = handle_of(tagged)
    assert handle is not None
    return sum(record.result("trace") is not None for record in handle.journal)


def sizes(rank: int) -> int:
    """Call with batches that vary on one rank only."""
    model = nn.Linear(8, 8)

    def loss(x: Tensor) -> Tensor:
        total = model(x).tanh().sum()
        dist.all_reduce(total)
        return total

    tagged = jitmagic.jit(loss, options=LIVE)
    for step in range(40):
        rows = 4 + step % 3 if rank == 0 and step > 4 else 4
        tagged(torch.randn(rows, 8))
        time.sleep(0.05)  # the other rank reads its notes five times a second
    return compiles(tagged)


def sizes_of_each(rank: int) -> int:
    """Call with two inputs: on each rank another one varies, from the same call on. The trace is
    long, so that it does not end before the other rank has posted what it found.
    """

    def total(a: Tensor, b: Tensor) -> Tensor:
        for _ in range(400):
            a = a.sin()
        made = a.sum() + b.cos().sum()
        dist.all_reduce(made)
        return made

    tagged = jitmagic.jit(total, backend="eager", options=LIVE)
    for step in range(12):
        varied = torch.randn(4 + (step % 3 if step > 3 else 0), 8)
        same = torch.randn(4, 8)
        dist.barrier()
        tagged(*((same, varied) if rank else (varied, same)))
        time.sleep(0.05)
    return compiles(tagged)


def slow_compile(rank: int) -> None:
    """Let one rank compile for two seconds while the other waits in a collective."""
    waits._AFTER = 0.4

    def backend(graph: Any, inputs: Any) -> Any:
        time.sleep(2 if rank == 1 else 0)
        return graph

    def total(x: Tensor) -> Tensor:
        return x.sin().sum()

    made = jitmagic.jit(total, backend=backend)(torch.randn(4))
    dist.all_reduce(made)
    time.sleep(0.5)


def failure() -> str:
    """Return a warning of this rank."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn("a function runs as eager")
    return str(caught[0].message)


def main() -> None:
    rank, folder = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2
    )
    answers: dict[str, Any] = {"compiles": sizes(rank), "each": sizes_of_each(rank)}
    slow_compile(rank)
    answers["failure"] = failure()
    dist.barrier()
    answers |= deciding.answers(rank)
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
