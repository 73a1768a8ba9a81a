"""Runs as one of three ranks, one of which is killed while it compiles.

python -m tests.distributed.dying RANK SIZE FOLDER VICTIM
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import jitmagic
from jitmagic.ranks import waits

from .launching import answer

TIMEOUT = timedelta(seconds=10)
COMPILING = "compiling"  # the file that the victim makes in the middle of its compile


def main() -> None:
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    victim = int(sys.argv[4])
    torch.set_num_threads(1)
    waits._AFTER = 0.3
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=TIMEOUT)

    def backend(graph: Any, inputs: Any) -> Any:
        if rank == victim:
            time.sleep(1.5)  # the others have read that they wait for it
            (folder / COMPILING).touch()
            time.sleep(60)
        return graph

    def total(x: Tensor) -> Tensor:
        y = x.sin().sum()
        dist.all_reduce(y)
        return y

    begun = time.monotonic()
    try:
        jitmagic.jit(total, backend=backend)(torch.randn(4))
    except RuntimeError as error:
        answer({"error": str(error), "seconds": time.monotonic() - begun})
        sys.stderr.flush()
        os._exit(3)  # its process group is of no use any more


if __name__ == "__main__":
    main()
