"""Frozen and quantised inference against eager and torch.compile with freezing, side by side.

python -m tests.bench.frozen [--rounds N] [--only WORD]
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import jitmagic

from .timing import interleave

Call = Callable[..., Any]


def mlp() -> nn.Module:
    layers = nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    return nn.Sequential(*layers)


def cnn() -> nn.Module:
    def block(a: int, b: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()
        )

    body = block(3, 32), block(32, 32), nn.MaxPool2d(2), block(32, 64), nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(64, 10))


class Decoder(nn.Module):
    """Makes one decode step of a pre-norm transformer with cached keys and values."""

    def __init__(self, layers: int, width: int, heads: int, cached: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        size = layers, 2, 1, heads, cached, width // heads
        self.register_buffer("cache", torch.randn(size))

    def forward(self, x: Tensor) -> Tensor:
        """Return the state after the step for a token's state of shape (1, 1, width)."""
        for n, (qkv, out, up, down) in enumerate(
            zip(self.qkv, self.out, self.up, self.down, strict=True)
        ):
            parts = qkv(self.norms[2 * n](x)).view(1, 1, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            key, value = (torch.cat([self.cache[n, i], parts[i + 1]], 2) for i in range(2))
            mixed = F.scaled_dot_product_attention(parts[0], key, value)
            x = x + out(mixed.transpose(1, 2).reshape(1, 1, self.width))
            x = x + down(F.gelu(up(self.norms[2 * n + 1](x))))
        return x


def quantised(width: int) -> nn.Module:
    gated = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
    return jitmagic.quantize_weights(gated)


f32, bf16 = torch.float32, torch.bfloat16
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], torch.dtype]] = {
    "MLP 784-256-128-10, batch 1": (mlp, (1, 784), f32),
    "MLP 784-256-128-10, batch 32": (mlp, (32, 784), f32),
    "CNN with batch norms, 1 x 3 x 32 x 32": (cnn, (1, 3, 32, 32), f32),
    "CNN with batch norms, 16 x 3 x 32 x 32": (cnn, (16, 3, 32, 32), f32),
    "2-layer decode, width 512, 256 cached": (lambda: Decoder(2, 512, 8, 256), (1, 1, 512), f32),
    "int8 MLP 2048-4096-2048, 1 token": (lambda: quantised(2048), (1, 2048), f32),
    "int8 MLP 2048-4096-2048, 1 token, bf16": (lambda: quantised(2048), (1, 2048), bf16),
    "int8 MLP 2048-4096-2048, 8 tokens, bf16": (lambda: quantised(2048), (8, 2048), bf16),
    "int8 MLP 2048-4096-2048, 64 tokens": (lambda: quantised(2048), (64, 2048), f32),
}


def contestants(model: nn.Module, x: Tensor) -> dict[str, Callable[[], object]]:
    ours = jitmagic.jit(copy.deepcopy(model), options={"freeze": True, "keep": "compiled"})
    theirs = torch.compile(copy.deepcopy(model))
    plain: Call = model
    return {
        "eager": lambda: plain(x),
        "jitmagic, freeze": lambda: ours(x),
        "torch.compile, freezing": lambda: theirs(x),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="cases whose title contains this")
    arguments = parser.parse_args()
    torch._inductor.config.freezing = True
    table = Table(title=f"median ms per call (ratio to eager), {torch.get_num_threads()} threads")
    for column in ("case", "eager", "jitmagic, freeze", "torch.compile, freezing", "difference"):
        table.add_column(column)
    for title, (make, shape, dtype) in CASES.items():
        if arguments.only not in title:
            continue
        torch.manual_seed(0)
        model, x = make().eval().to(dtype), torch.randn(shape, dtype=dtype)
        with torch.inference_mode():
            runs = contestants(model, x)
            wanted, got = model(x).float(), runs["jitmagic, freeze"]().float()
            error = ((got - wanted).abs().max() / wanted.abs().max()).item()
            found = interleave(runs, rounds=arguments.rounds)
        cells = [f"{one.seconds * 1e3:.3f} ({one.ratio:.2f})" for one in found.values()]
        table.add_row(title, *cells, f"{error:.1e}")
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
