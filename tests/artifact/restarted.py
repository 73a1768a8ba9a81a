"""Runs one of two programs with batches of several sizes, tagged and as eager, in a process of its
own; prints the sums of their results and the stages that compiled anything.

    python -m tests.artifact.restarted infer|step cpu|cuda default|reduce-overhead|max-autotune
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of
from tests.processes import run_python

BATCHES = (8, 8, 24, 40, 8)
Program = Callable[[Tensor], Tensor]


def programs(device: str, capturable: bool) -> dict[str, Program]:
    """Return a forward and a training step of a model with the same weights each time."""
    torch.manual_seed(0)
    layers = (nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 8))
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=capturable)

    def infer(x: Tensor) -> Tensor:
        with torch.no_grad():
            return model(x).softmax(-1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return {"infer": infer, "step": step}


def sums(fn: Program, device: str) -> list[float]:
    """Return the sum of the results of each call."""
    torch.manual_seed(1)
    inputs = [torch.randn(rows, 64).to(device) for rows in BATCHES]
    return [fn(x).double().sum().item() for x in inputs]


def in_two_processes(*arguments: str, cache: str) -> list[dict[str, Any]]:
    """Return what two processes print, one after the other, with the same cache."""
    code = "from tests.artifact.restarted import main; main()"
    answers = []
    for _ in range(2):
        done = run_python(code, *arguments, JITMAGIC_CACHE_DIR=cache, JITMAGIC_PERSIST="1")
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout.splitlines()[-1]))
    return answers


def main() -> None:
    """Run the case that the command line names."""
    case, device, mode = sys.argv[1:]
    assert os.environ["JITMAGIC_CACHE_DIR"]
    capturable = device == "cuda" and mode != "default"
    options = {"keep": "compiled", "on_error": "raise", "mode": mode}
    tagged = jitmagic.jit(programs(device, capturable)[case], options=options)
    got = sums(tagged, device)
    stages = (stage.stage for record in handle_of(tagged).journal for stage in record.stages)
    compiled = [name for name in stages if name.endswith(("trace", "schedule"))]
    want = sums(programs(device, capturable)[case], device)
    print(json.dumps({"got": got, "want": want, "compiled": compiled}))
