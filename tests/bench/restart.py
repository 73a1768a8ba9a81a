"""First calls of a new process, with an empty and with a filled cache: `restart and run all`.

python -m tests.bench.restart [--only WORD] [--processes N] [--no-rivals] [--json PATH]

Each figure is the median of some fresh processes: seconds from tagging to the result of the first
call, after torch, jitmagic and the program's libraries are imported and the model is made.
torch.compile runs with its own caches filled. Printed with the figures is what a process with a
filled cache has compiled all the same, which should be nothing.
"""

from __future__ import annotations

import argparse
import compileall
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.processes import ROOT, child_environment

Program = Callable[..., Any]
Tag = Callable[[Program], Program]
OURS, THEIRS = "jitmagic", "torch.compile"
_COMPILES = ("trace", "schedule")  # stages, or the ends of their names


def _small() -> tuple[Program, tuple[Any, ...]]:
    def small(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x * y + 2).sum(-1)

    return small, (torch.randn(8, 64), torch.randn(8, 64))


def _encoder() -> tuple[Program, tuple[Any, ...]]:
    def layer() -> nn.Module:
        return nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)

    return nn.Sequential(*(layer() for _ in range(4))), (torch.randn(8, 32, 128),)


def _gpt2() -> tuple[Program, tuple[Any, ...]]:
    from transformers import GPT2Config, GPT2LMHeadModel  # type: ignore[import-not-found]

    sizes = {"n_layer": 4, "n_embd": 128, "n_head": 4, "vocab_size": 1000, "n_positions": 128}
    model = GPT2LMHeadModel(GPT2Config(**sizes)).eval().requires_grad_(False)
    return model, (torch.randint(0, 1000, (2, 64)),)


class _Block(nn.Module):
    """Two convolutions around which the input is added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + x)


def _resnet() -> tuple[Program, tuple[Any, ...]]:
    blocks = [part for n in (16, 32) for part in (_Block(n), _Block(n), nn.Conv2d(n, 2 * n, 3, 2))]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    model = nn.Sequential(nn.Conv2d(3, 16, 3), *blocks, *head).eval().requires_grad_(False)
    return model, (torch.randn(4, 3, 32, 32),)


def _training() -> tuple[Program, tuple[Any, ...]]:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, (torch.randn(64, 32), torch.randint(0, 10, (64,)))


CASES: Mapping[str, Callable[[], tuple[Program, tuple[Any, ...]]]] = {
    "small function": _small,
    "4-layer encoder": _encoder,
    "GPT-2": _gpt2,
    "ResNet": _resnet,
    "training step": _training,
}
MISSING = {"GPT-2"} if find_spec("transformers") is None else set[str]()


# ------------------------------------------------------------------------------------ one process


def _child(case: str, system: str) -> dict[str, Any]:
    """Run a case in this process; return its seconds and what was compiled."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    tag: Tag = torch.compile
    if system == OURS:
        import jitmagic

        def tag(fn: Program) -> Program:
            return jitmagic.jit(fn, options={"keep": "compiled"})

    program, args = CASES[case]()
    started, used = time.perf_counter(), time.process_time()
    run = tag(program)
    run(*args)
    seconds, processor = time.perf_counter() - started, time.process_time() - used
    return {"seconds": seconds, "processor": processor, "compiled": _compiled(run, system)}


def _compiled(run: Any, system: str) -> list[str]:
    if system != OURS:
        return []
    import jitmagic

    records = jitmagic.api.handle_of(run).journal
    stages = (f"{record.name}: {stage.stage}" for record in records for stage in record.stages)
    return [name for name in stages if name.endswith(_COMPILES)]


# ---------------------------------------------------------------------------------- all processes


def _run(case: str, system: str, cache: str) -> dict[str, Any]:
    """Run a case in a fresh process."""
    caches = {"JITMAGIC_CACHE_DIR": cache, "TORCHINDUCTOR_CACHE_DIR": cache}
    chosen = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.bench.restart", "--child", case, system]
    environment = child_environment(**caches, **chosen, JITMAGIC_PERSIST="1")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{case}, {system}: {done.stderr[-3000:]}")
    made: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return made


def _median(results: Iterable[dict[str, Any]], name: str = "seconds") -> float:
    return statistics.median(result[name] for result in results)


def measure(case: str, processes: int, rivals: bool) -> dict[str, Any]:
    """Return the figures of a case. The systems take turns, as others may load the machine."""
    with tempfile.TemporaryDirectory() as folder:
        empty = [_run(case, OURS, f"{folder}/{n}") for n in range(max(1, processes // 2))]
        if rivals:
            _run(case, THEIRS, f"{folder}/rival")
        filled, rival = list[Any](), list[Any]()
        for _ in range(processes):
            filled.append(_run(case, OURS, f"{folder}/0"))
            rival += [_run(case, THEIRS, f"{folder}/rival")] if rivals else []
    found = {
        "empty": _median(empty),
        "filled": _median(filled),
        "filled, processor": _median(filled, "processor"),
        "compiled again": filled[-1]["compiled"],
    }
    if rival:
        found[THEIRS] = _median(rival)
        found["ratio"] = found["filled"] / found[THEIRS]
    return found


def main() -> None:
    """Measure the cases and print them, as JSON too."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.restart")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--no-rivals", action="store_true", help="leave torch.compile out")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=2, metavar=("CASE", "SYSTEM"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(_child(*chosen.child)))
        return
    compileall.compile_dir(ROOT / "jitmagic", quiet=1)  # as pip does
    results = {}
    for case in CASES:
        if chosen.only not in case:
            continue
        if case in MISSING:
            print(f"{case}: left out, transformers is not installed")
            continue
        results[case] = measure(case, chosen.processes, not chosen.no_rivals)
        print(case, *(f"{name} {_shown(value)}" for name, value in results[case].items()), sep="; ")
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=2))


def _shown(value: float | list[str]) -> str:
    return f"{value:.3f}" if isinstance(value, float) else ", ".join(value) or "nothing"


if __name__ == "__main__":
    main()
