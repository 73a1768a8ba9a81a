"""The host's time of a call with and without CUDA graphs. Run: python -m tests.bench.replay

Six layers of linear, GELU and norm (64x512, bf16) in the ways that calls are made: inputs that
recur or are computed anew, results that are dropped or kept in a list of eight; a training step;
and a function of one kernel. The figure is the median time until a call returns, in us, without
the wait for the GPU. torch.compile's CUDA graphs overwrite results, so those that are kept are
copied there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic

COMPILED = {"keep": "compiled"}
SYSTEMS: dict[str, Callable[[nn.Module], Any]] = {
    "eager": lambda net: net,
    "jitmagic": lambda net: jitmagic.jit(net, options=COMPILED),
    "jitmagic, graphs": lambda net: jitmagic.jit(net, mode="reduce-overhead", options=COMPILED),
    "torch.compile": torch.compile,
    "torch.compile, graphs": lambda net: torch.compile(net, mode="reduce-overhead"),
}
COPIES = "torch.compile, graphs"
_WARM_UP, _ROUNDS, _CALLS = 60, 9, 100


def layers(drop: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    found: list[nn.Module] = []
    for _ in range(6):
        found += [nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512)]
        found += [nn.Dropout(drop)] if drop else []
    return nn.Sequential(*found).cuda().bfloat16()


class OneKernel(nn.Module):
    """Pointwise operations, which are fused."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) * 2 + 1


Usage = Callable[[Any, bool], Callable[[], object]]


def inference(kept: int, fresh: bool) -> Usage:
    """Return calls whose last results are kept, or whose inputs are computed anew."""

    def usage(net: Any, copies: bool) -> Callable[[], object]:
        x = torch.randn(64, 512, device="cuda", dtype=torch.bfloat16)
        results: deque[Tensor] = deque(maxlen=kept)

        @torch.no_grad()
        def call() -> None:
            if copies:
                torch.compiler.cudagraph_mark_step_begin()
            result = net(x * 1 if fresh else x)
            results.append(result.clone() if copies and kept else result)

        return call

    return usage


def training(net: Any, copies: bool) -> Callable[[], object]:
    x, y = (torch.randn(64, 512, device="cuda", dtype=torch.bfloat16) for _ in "xy")
    parameters = list(net.parameters())

    def call() -> None:
        if copies:
            torch.compiler.cudagraph_mark_step_begin()
        for parameter in parameters:
            parameter.grad = None
        F.mse_loss(net(x), y).backward()

    return call


CASES: dict[str, tuple[Callable[[], nn.Module], Usage]] = {
    "inputs recur, results are dropped": (layers, inference(0, fresh=False)),
    "the last 8 results are kept": (layers, inference(8, fresh=False)),
    "inputs are computed anew": (layers, inference(0, fresh=True)),
    "both": (layers, inference(8, fresh=True)),
    "a training step": (layers, training),
    "a training step with dropout": (lambda: layers(0.1), training),
    "one kernel": (OneKernel, inference(0, fresh=False)),
}


def host_seconds(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median over rounds, in which the systems take turns."""
    for call in calls.values():
        for _ in range(_WARM_UP):
            call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(_CALLS):
                call()
            samples[name].append((time.perf_counter() - begun) / _CALLS)
    return {name: statistics.median(seconds) for name, seconds in samples.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.replay")
    parser.add_argument("--json", type=Path, help="write the seconds to this file")
    path = parser.parse_args().json
    if not torch.cuda.is_available():
        raise SystemExit("CUDA graphs need a GPU")
    found = {}
    for title, (make, usage) in CASES.items():
        calls = {name: usage(tag(make()), name == COPIES) for name, tag in SYSTEMS.items()}
        found[title] = host_seconds(calls)
        cells = (f"{name} {1e6 * seconds:.1f}" for name, seconds in found[title].items())
        print(f"{title:36}", *cells, sep="  ", flush=True)
        torch.compiler.reset()
    if path is not None:
        path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
