"""Trains under torchrun; one rank dies once, and the restarted ranks use what was compiled.

torchrun --nproc-per-node 2 --max-restarts 1 -m tests.distributed.elastic FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import jitmagic
from jitmagic.api import handle_of

from .corpus import Net
from .launching import leave

STEPS = 4
OPTIONS = {"keep": "compiled", "background": False, "persist": True}


def _sources(tagged: Any) -> list[str]:
    """Return of each compiled frame where it came from."""
    handle = handle_of(tagged)
    assert handle is not None
    records = [record for record in handle.journal if record.occasion.at]
    return ["disk" if one.loaded is not None else str(one.result("keep")) for one in records]


def main() -> None:
    folder, attempt = Path(sys.argv[1]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # torch 2.13's own store keeps the addresses of the first attempt: every second restart of two
    # gloo ranks fails to connect, without jitmagic too.
    store = dist.FileStore(str(folder / f"store{attempt}"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    model = DistributedDataParallel(jitmagic.jit(Net(), options=OPTIONS))

    def mean(x: Tensor) -> Tensor:
        total = x.sum() * (1 + dist.get_rank())
        dist.all_reduce(total)
        return total / dist.get_world_size()

    tagged = jitmagic.jit(mean, options=OPTIONS)
    for number in range(STEPS):
        y = model(torch.randn(4, 8))
        y.square().mean().backward()
        torch.testing.assert_close(tagged(y.detach()), mean(y.detach()))
        if number == 2 and rank == 1 and attempt == 0:
            os._exit(3)
    found = {"attempt": attempt, "model": _sources(model.module), "mean": _sources(tagged)}
    (folder / f"rank{rank}").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main()
