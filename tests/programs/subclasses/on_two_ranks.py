"""Runs the programs of the ecosystem's `distributed` library as one of two processes.

    python -m tests.programs.subclasses.on_two_ranks RANK FOLDER [TITLE ...]

Compares each with plain eager, on every process, and prints the titles that differ or break.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._pytree import tree_leaves

from tests.ecosystem.systems import Eager, Jitmagic
from tests.ecosystem.with_distributed import PROGRAMS


def _answers(system: Any, program: Any, mesh: Any, rank: int) -> list[Any]:
    torch.manual_seed(rank)
    return tree_leaves(program(system.tag, mesh))


def main() -> None:
    rank, folder, *titles = int(sys.argv[1]), sys.argv[2], *sys.argv[3:]
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for title, program in PROGRAMS.items():
        if titles and title not in titles:
            continue
        expected = _answers(Eager(), program, mesh, rank)
        ours = Jitmagic()
        try:
            torch.testing.assert_close(_answers(ours, program, mesh, rank), expected)
        except AssertionError as error:
            print("wrong:", title, error)
        captured = ours.captured()
        print(f"{title}: {captured.graphs} graphs, {captured.breaks} breaks", *captured.why)
    dist.destroy_process_group()
    print("done")


if __name__ == "__main__":
    main()
