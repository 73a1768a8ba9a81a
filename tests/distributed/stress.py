"""Trains on two ranks with random delays and sizes, beside an eager twin, and counts compiles.

python -m tests.distributed.stress --steps 1000     starts the ranks, prints what they found
python -m tests.distributed.stress RANK SIZE FOLDER STEPS
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import jitmagic
from jitmagic.frame.handle import all_handles

from .corpus import Net
from .launching import answer, launch, leave

_TIMEOUT = timedelta(seconds=60)
_DELAY, _LONG = 0.004, 0.3  # seconds; the rank that is behind may have read its notes meanwhile


def _delay(chance: random.Random) -> None:
    time.sleep(_LONG if chance.random() < 0.01 else chance.random() * _DELAY)


def _step(model: nn.Module, x: Tensor, scale: float) -> Tensor:
    y = model(x) * scale
    total = funcol.all_reduce(y.detach().square().sum(), "sum", dist.group.WORLD)
    return y.square().mean() + total * 0.001


def _trained(step: Any, model: nn.Module, optimizer: Any, x: Tensor, scale: float) -> Tensor:
    optimizer.zero_grad()
    loss = step(model, x, scale)
    loss.backward()
    optimizer.step()
    return loss.detach()


def train(rank: int, steps: int) -> dict[str, Any]:
    """Train both models by the same batches; return the compiles, and how far they are apart."""
    torch.manual_seed(0)
    models = [DistributedDataParallel(Net()) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    tagged = jitmagic.jit(_step, options={"persist": False, "keep": "faster"})
    alike, own, worst = random.Random(0), random.Random(rank + 1), 0.0
    for step in range(steps):
        _delay(own)
        rows = own.randint(2, 12) if step > 3 else 4
        scale = 1.0 if step < steps // 2 else alike.choice((1.0, 0.5, 0.25))
        x = torch.randn(rows, 8)
        losses = [
            _trained(run, model, optimizer, x, scale)
            for run, model, optimizer in zip((tagged, _step), models, optimizers, strict=True)
        ]
        worst = max(worst, float((losses[0] - losses[1]).abs() / losses[1].abs().clamp(min=1e-3)))
    pairs = zip(*(model.parameters() for model in models), strict=True)
    apart = max(float((one - other).detach().abs().max()) for one, other in pairs)
    return {"compiles": _compiles(), "loss": worst, "apart": apart}


def _compiles() -> int:
    """Return how many frames were traced in all."""
    journals = {id(handle.journal): handle.journal for handle in all_handles()}
    records = [record for journal in journals.values() for record in journal]
    return sum(record.result("trace") is not None for record in records)


def rank_main() -> None:
    """Run as a rank."""
    rank, size, folder, steps = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=_TIMEOUT)
    answer(train(rank, steps))
    leave()


def main() -> int:
    """Run both ranks and print how they ended."""
    steps = sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        ended = launch("tests.distributed.stress", [steps], Path(folder), seconds=1800)
        seconds = time.perf_counter() - begun
    for rank, one in enumerate(ended):
        print(f"rank {rank}: status {one.status}, {one.answer}\n{one.error[-1500:]}")
    print(f"{steps} steps in {seconds:.0f} s")
    return max(abs(one.status) for one in ended)


if __name__ == "__main__":
    sys.exit(main() if sys.argv[1] == "--steps" else rank_main())
