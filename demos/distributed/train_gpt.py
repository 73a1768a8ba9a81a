"""Trains a small GPT on several processes: eager beside jitmagic beside torch.compile.

    torchrun --nproc-per-node 2 demos/distributed/train_gpt.py
    torchrun --nproc-per-node 2 demos/distributed/train_gpt.py --parallel ddp --systems eager torch

"jitmagic" and "torch" compile the model (each block of it for `fsdp`), "jitmagic-step" the whole
training step, with the loss, the backward and the optimizer.
`ddp` copies the model to each process, `fsdp` shards the parameters of each layer, `tp` divides the
matrices of each layer. All systems get the same weights and tokens, and must reach the same losses.
A step's time is the median of the second half of the steps; in the first, jitmagic compiles what
the first step called and compares it with eager. "start" is the time of the first two steps, and
of the wait for compiled code between them. "hidden" is the share of communication during which a
process computes.
Without a GPU the processes use gloo, and a smaller model.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import jitmagic
from jitmagic.diagnostics.timeline import Timeline

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


@dataclass(frozen=True)
class Size:
    """The model, and the batch of one process."""

    layers: int
    width: int
    heads: int
    rows: int
    tokens: int
    words: int = 512


SIZE = Size(12, 1024, 16, 8, 1024) if ON_GPU else Size(3, 128, 4, 4, 64)


class Block(nn.Module):
    """Attention and an MLP, each behind a layer norm and with a residual."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.head = width // size.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        parts = (layer(y) for layer in (self.query, self.key, self.value))
        heads = (part.unflatten(-1, (-1, self.head)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Predicts the next token."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(size.words, size.width)
        self.places = nn.Parameter(0.02 * torch.randn(size.tokens, size.width))
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.words)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


Tag = Callable[[nn.Module], nn.Module]


def ddp(model: GPT, mesh: DeviceMesh, tag: Tag) -> nn.Module:
    return tag(DistributedDataParallel(model))


def fsdp(model: GPT, mesh: DeviceMesh, tag: Tag) -> nn.Module:
    for block in model.blocks:
        tag(block)
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tp(model: GPT, mesh: DeviceMesh, tag: Tag) -> nn.Module:
    columns = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel())
    rows = dict.fromkeys(("out", "down"), RowwiseParallel())
    for block in model.blocks:
        parallelize_module(block, mesh, columns | rows)
    return tag(model)


def compiled_by_torch(module: nn.Module) -> nn.Module:
    module.compile()
    return module


def as_it_is(anything: Any) -> Any:
    return anything


PARALLEL = {"ddp": ddp, "fsdp": fsdp, "tp": tp}
# By system, what tags the model and what tags the step.
SYSTEMS: dict[str, tuple[Tag, Callable[[Any], Any]]] = {
    "eager": (as_it_is, as_it_is),
    "jitmagic": (jitmagic.jit, as_it_is),
    "jitmagic-step": (as_it_is, jitmagic.jit),
    "torch": (compiled_by_torch, as_it_is),
}


@dataclass(frozen=True)
class Row:
    """A line of the table: losses, seconds of a step, tokens per second, GiB, and seconds until the
    end of the second step.
    """

    parallel: str
    system: str
    losses: tuple[float, float]  # of the first and the last step
    step: float
    rate: float
    memory: float | None
    start: float
    timeline: Timeline

    def cells(self) -> list[str]:
        memory = "-" if self.memory is None else f"{self.memory:.2f} GiB"
        hidden = self.timeline.ranks[0].hidden
        return [
            *(self.parallel, self.system, *(f"{loss:.4f}" for loss in self.losses)),
            *(f"{1e3 * self.step:.1f} ms", f"{self.rate:,.0f}", memory, f"{self.start:.1f} s"),
            "-" if hidden is None else f"{hidden:.0%}",
        ]


HEADS = "parallel, system, first loss, last loss, step, tokens/s, memory, start, hidden".split(", ")


def batches(size: Size, number: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (size.rows, size.tokens + 1)
    return [torch.randint(size.words, shape, generator=generator).to(DEVICE) for _ in range(number)]


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """Return the parameters in groups: torch updates no list of DTensors and other tensors."""
    divided = [one for one in model.parameters() if isinstance(one, DTensor)]
    others = [one for one in model.parameters() if not isinstance(one, DTensor)]
    return [{"params": group} for group in (divided, others) if group]


def train(parallel: str, system: str, steps: int, mesh: DeviceMesh) -> Row:
    """Train, and return a row of the table."""
    torch.manual_seed(0)
    tag_model, tag_step = SYSTEMS[system]
    model = PARALLEL[parallel](GPT(SIZE).to(DEVICE), mesh, tag_model)
    optimizer = torch.optim.AdamW(groups_of(model), lr=1e-3)

    @tag_step
    def step(tokens: Tensor) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=ON_GPU):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    # Processes that divide a model work on the same rows.
    seed = 0 if parallel == "tp" else dist.get_rank()
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
    losses, times = [], []
    for number, tokens in enumerate(batches(SIZE, steps, seed)):
        synchronize()
        begun = time.perf_counter()
        if number == 1:
            jitmagic.wait()  # else a compile goes on beside the steps that it is taken to pay for
        loss = step(tokens)
        synchronize()
        times.append(time.perf_counter() - begun)
        losses.append(loss.item())
    memory = torch.cuda.max_memory_allocated() / 2**30 if ON_GPU else None
    timed = sorted(times[steps // 2 :])
    median = timed[len(timed) // 2]
    processes = 1 if parallel == "tp" else dist.get_world_size()
    rate = processes * SIZE.rows * SIZE.tokens / median
    timeline = jitmagic.timeline(step, all_ranks=True)(tokens)
    ends = losses[0], losses[-1]
    return Row(parallel, system, ends, median, rate, memory, sum(times[:2]), timeline)


def synchronize() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parallel", nargs="+", choices=PARALLEL, default=list(PARALLEL))
    parser.add_argument(
        "--systems", nargs="+", choices=SYSTEMS, default=["eager", "jitmagic", "jitmagic-step"]
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--timelines", help="a folder, for pictures of a step of each")
    options = parser.parse_args()
    if ON_GPU:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if ON_GPU else "gloo")
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    lines = [[*HEADS]]
    for parallel in options.parallel:
        for system in options.systems:
            row = train(parallel, system, options.steps, mesh)
            lines.append(row.cells())
            if options.timelines and dist.get_rank() == 0:
                row.timeline.picture().save(f"{options.timelines}/{parallel}_{system}.svg")
    if dist.get_rank() == 0:
        for line in lines:
            print("  ".join(f"{cell:>13}" for cell in line), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
