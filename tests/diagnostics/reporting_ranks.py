"""Runs as one of two ranks whose reports are collected.

python -m tests.diagnostics.reporting_ranks RANK SIZE FOLDER
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import Tensor

import jitmagic
from tests.distributed.launching import answer, leave


def timelines() -> list[list[str]]:
    """Return the names of the collectives in a step, by rank."""

    def step(x: Tensor) -> None:
        dist.all_reduce(x)

    found = jitmagic.timeline(step, all_ranks=True)(torch.ones(4))
    return [[span.name for span in one.communication] for one in found.ranks]


def main() -> None:
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)

    @jitmagic.jit(options={"persist": False, "keep": "compiled"})
    def loss(x: Tensor) -> Tensor:
        total = x.tanh().sum()
        dist.all_reduce(total)
        return total

    loss(torch.ones(4))
    answers = {"timelines": timelines()}
    if rank == 0:  # the other one waits in barrier()
        answers["status"] = jitmagic.status(all_ranks=True).ranks
        answers["explained"] = jitmagic.explain(loss, all_ranks=True).ranks
    dist.barrier()
    answer(answers)
    leave()


if __name__ == "__main__":
    main()
