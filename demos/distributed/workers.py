"""Starts processes that train, and returns what they report; for ranks.ipynb."""

from __future__ import annotations

import pickle
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from train_gpt import DEVICE, ON_GPU, Row, train

import jitmagic


@dataclass(frozen=True)
class Report:
    """The row of each way to train, and the table of compiled functions of every rank."""

    rows: tuple[Row, ...]
    status: str


def start(
    parallel: tuple[str, ...] = ("ddp", "tp"), *, processes: int = 2, steps: int = 8
) -> Report:
    """Train in new processes, and return what the first one reports."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_work, (processes, folder, parallel, steps), nprocs=processes)
        return pickle.loads(Path(folder, "report").read_bytes())


def _work(rank: int, processes: int, folder: str, parallel: tuple[str, ...], steps: int) -> None:
    if ON_GPU:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", processes)
    backend = "nccl" if ON_GPU else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=processes)
    mesh = init_device_mesh(DEVICE, (processes,))
    rows = tuple(train(one, "jitmagic", steps, mesh) for one in parallel)
    if rank == 0:
        report = Report(rows, str(jitmagic.status(all_ranks=True)))
        Path(folder, "report").write_bytes(pickle.dumps(report))
    dist.barrier()
    dist.destroy_process_group()
