"""Compile time of a variant with symbolic sizes against that of a static one, per stage.

python -m tests.bench.symbolic [--only WORD] [--rounds 5] [--cold] [--json PATH] [--profile STAGE]

Each program is compiled in three ways, in turns, each time by a fresh handle: `static`; `marked`,
with `mark_dynamic` on one or two dimensions; and `second`, the automatic variant of a second call
with other sizes. The figures are processor seconds of this process and of its C++ compilers, the
medians over the rounds. The kernel cache is warm; `--cold` gives each compile an empty one.
`rest` is what no stage covers: guards, the first run. `--profile` shows the functions in which a
stage of the marked variant takes longer than the same stage of the static one.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import resource
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import jitmagic
from jitmagic.records import Recording, RunningStage, watchers

from .growth import function_from, timed_stages

__all__ = ["PROGRAMS", "VARIANTS", "Program", "compile_seconds"]

Inputs = Callable[..., tuple[torch.Tensor, ...]]
Stages = dict[str, float]
Rounds = dict[str, list[Stages]]  # by variant
VARIANTS = ("static", "marked", "second")
OPTIONS: dict[str, Any] = {"compile_seconds": 3600, "on_error": "raise", "keep": "compiled"}
NEGLIGIBLE = 0.0005  # seconds: below this a ratio is noise


@dataclass(frozen=True)
class Program:
    """`make()` returns a fresh function and `inputs`, which makes its arguments from sizes.

    `dims`: the (argument, dimension) pairs that vary; `sizes` and `others`: two sets of sizes.
    """

    name: str
    make: Callable[[], tuple[Callable[..., Any], Inputs]]
    dims: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...]
    others: tuple[int, ...]
    trains: bool = False


def _written(text: str, **names: Any) -> Callable[..., Any]:
    return function_from(f"def f({text}\n", functional=functional, **names)


def pointwise() -> tuple[Callable[..., Any], Inputs]:
    f = _written("x, y):\n    return torch.relu(x * y + 1)")
    return f, lambda n, m: (torch.randn(n, m), torch.randn(n, m))


def mlp() -> tuple[Callable[..., Any], Inputs]:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16))
    return model, lambda n: (torch.randn(n, 32),)


def encoder() -> tuple[Callable[..., Any], Inputs]:
    model = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    return model, lambda n, m: (torch.randn(n, m, 32),)


def convolutions() -> tuple[Callable[..., Any], Inputs]:
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*layers, *head, nn.Linear(8, 4))
    return model, lambda n: (torch.randn(n, 3, 16, 16),)


def recurrent() -> tuple[Callable[..., Any], Inputs]:
    model = nn.GRU(8, 16, batch_first=True)
    return model, lambda n: (torch.randn(n, 7, 8),)


def loss() -> tuple[Callable[..., Any], Inputs]:
    lines = (
        "x, target):\n    x = functional.layer_norm(x, (x.shape[-1],))\n"
        "    picked = torch.log_softmax(x, -1).gather(1, target[:, None]).mean()\n"
        "    return x.square().mean() * 0.1 - picked + torch.logsumexp(x, 1).sum()"
    )
    return _written(lines), lambda n: (
        torch.randn(n, 10, requires_grad=True),
        torch.randint(0, 10, (n,)),
    )


def pieces() -> tuple[Callable[..., Any], Inputs]:
    lines = (
        "x, y, rows):\n    both = torch.cat([x, y * 2], 1)\n"
        "    left, right = both.split([x.shape[1], y.shape[1]], 1)\n"
        "    picked = both[rows] + both[1:].sum(0)\n"
        "    return picked, torch.stack([left, right])[:, ::2], both.unflatten(1, (-1, 2))"
    )
    return _written(lines), lambda n, m: (
        torch.randn(n, m),
        torch.randn(n, m),
        torch.randint(0, n, (5,)),
    )


def without_grad(
    make: Callable[[], tuple[Callable[..., Any], Inputs]],
) -> Callable[[], tuple[Callable[..., Any], Inputs]]:
    """Return `make` with parameters that are constants."""

    def made() -> tuple[Callable[..., Any], Inputs]:
        model, inputs = make()
        for parameter in model.parameters():  # type: ignore[attr-defined]
            parameter.requires_grad_(False)
        return model, inputs

    return made


PROGRAMS = (
    Program("pointwise", pointwise, ((0, 0), (0, 1), (1, 0), (1, 1)), (33, 20), (45, 28)),
    Program("MLP", without_grad(mlp), ((0, 0),), (33,), (45,)),
    Program("MLP, training", mlp, ((0, 0),), (33,), (45,), trains=True),
    Program("encoder layer", without_grad(encoder), ((0, 0), (0, 1)), (6, 20), (5, 28)),
    Program("encoder layer, training", encoder, ((0, 0), (0, 1)), (6, 20), (5, 28), trains=True),
    Program("convolutions, training", convolutions, ((0, 0),), (6,), (5,), trains=True),
    Program("GRU, training", recurrent, ((0, 0),), (6,), (5,), trains=True),
    Program("loss, training", loss, ((0, 0), (1, 0)), (33,), (45,), trains=True),
    Program("cat, split, index", pieces, ((0, 0), (0, 1), (1, 0), (1, 1)), (33, 20), (45, 28)),
)


def _call(program: Program, f: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> None:
    made = f(*inputs)
    if program.trains:
        first = made[0] if isinstance(made, tuple) else made
        first.sum().backward()


def _ready(program: Program, variant: str, cache: str) -> Callable[[], None]:
    """Return a call that compiles this variant of a fresh handle."""
    torch.manual_seed(0)
    function, make = program.make()
    f = jitmagic.jit(function, options={**OPTIONS, "cache_dir": cache})
    if variant == "second":
        _call(program, f, make(*program.others))
    inputs = make(*program.sizes)
    if variant == "marked":
        for argument, dim in program.dims:
            jitmagic.mark_dynamic(inputs[argument], dim)
    gc.collect()
    return lambda: _call(program, f, inputs)


def _processor_time() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def compile_seconds(program: Program, variant: str, cache: str) -> Stages:
    """Compile a fresh handle: processor seconds by stage; forward and backward are added."""
    call = _ready(program, variant, cache)
    with timed_stages(_processor_time) as seconds:
        call()
    found: Counter[str] = Counter()
    for stage, spent in seconds.items():
        found[stage.rpartition(": ")[2]] += spent
    return {**found, "total": found.total()}


def _measured(program: Program, rounds: int, is_cold: bool) -> Rounds:
    """Compile each variant in turns; the first round warms up and is left out."""
    found: dict[str, list[Stages]] = {variant: [] for variant in VARIANTS}
    with tempfile.TemporaryDirectory() as warm:
        for turn in range(rounds + 1):
            shift = turn % len(VARIANTS)
            for variant in VARIANTS[shift:] + VARIANTS[:shift]:
                with tempfile.TemporaryDirectory() as cold:
                    found[variant].append(
                        compile_seconds(program, variant, cold if is_cold else warm)
                    )
    return {variant: tries[1:] for variant, tries in found.items()}


def _medians(tries: list[Stages]) -> Stages:
    stages = dict.fromkeys(stage for one in tries for stage in one if stage)
    return {s: statistics.median(one.get(s, 0.0) for one in tries) for s in stages}


def _show(name: str, rounds: Rounds) -> None:
    found = {variant: _medians(tries) for variant, tries in rounds.items()}
    print(f"{name}: ms {', '.join(VARIANTS)} (ratio to static)")
    stages = dict.fromkeys(stage for row in found.values() for stage in row)
    for stage in (*(s for s in stages if s != "total"), "total"):
        times = [found[variant].get(stage, 0.0) for variant in VARIANTS]
        if max(times) < NEGLIGIBLE:
            continue
        ratios = [f"{t / times[0]:5.2f}" if times[0] else "     " for t in times[1:]]
        row = zip(times[1:], ratios, strict=True)
        cells = "".join(f"{t * 1e3:9.1f} ({ratio})" for t, ratio in row)
        print(f"  {stage:16}{times[0] * 1e3:9.1f}{cells}", flush=True)


@contextmanager
def _profiled(wanted: str) -> Iterator[cProfile.Profile]:
    """Profile the stages of that name, without stages within them."""
    profile, running = cProfile.Profile(), [False]

    def watch(_: Recording, stage: RunningStage, begins: bool) -> None:
        if running[-1]:
            profile.disable()
        if begins:
            running.append(stage.stage.rpartition(": ")[2] == wanted)
        else:
            running.pop()
        if running[-1]:
            profile.enable()

    watchers.append(watch)
    try:
        yield profile
    finally:
        watchers.remove(watch)


def _show_profile(program: Program, stage: str, rounds: int) -> None:
    """Show the functions that take longer in the marked variant, the largest difference first."""
    rows: dict[str, dict[Any, tuple[int, float, float]]] = {}
    with tempfile.TemporaryDirectory() as cache:
        for variant in VARIANTS[:2] * 2:  # what the first compiles cache in memory does not count
            with _profiled(stage) as profile:
                for _ in range(rounds):
                    _ready(program, variant, cache)()
            entries = pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
            rows[variant] = {f: (row[1], row[2], row[3]) for f, row in entries}
    static, marked = rows["static"], rows["marked"]

    def excess(function: Any) -> float:
        return marked[function][1] - static.get(function, (0, 0.0, 0.0))[1]

    print(f"  {stage}: ms within, calls static / marked, ms with callees, function")
    for function in sorted(marked, key=excess, reverse=True)[:40]:
        calls, own, whole = (value / rounds for value in marked[function])
        before, earlier, _ = (value / rounds for value in static.get(function, (0, 0.0, 0.0)))
        file, line, name = function
        where = f"{file.rpartition('jitmagic/')[2]}:{line} {name}"
        times = f"{(own - earlier) * 1e3:7.2f} {before:8.0f} / {calls:6.0f} {whole * 1e3:9.2f}"
        print(f"  {times}  {where}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.symbolic")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="compile with an empty kernel cache")
    parser.add_argument("--json", default="bench_results/symbolic.json")
    parser.add_argument("--profile", default="", help="a stage, such as joint or schedule")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Rounds] = {}
    for program in PROGRAMS:
        if arguments.only not in program.name:
            continue
        if arguments.profile:
            print(program.name)
            _show_profile(program, arguments.profile, arguments.rounds)
            continue
        found = results[program.name] = _measured(program, arguments.rounds, arguments.cold)
        _show(program.name, found)
    for name, found in results.items():
        totals = {variant: _medians(tries)["total"] for variant, tries in found.items()}
        ratios = [totals[variant] / totals["static"] for variant in VARIANTS[1:]]
        print(f"{name:28} {'   '.join(f'{ratio:5.2f}' for ratio in ratios)}")
    if results:
        path = Path(arguments.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
