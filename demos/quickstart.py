"""The main job, end to end: one function, one classifier, one language model, one explanation.

    python demos/quickstart.py [--quick] [--no-rivals]

Each part runs eager, jitmagic and torch.compile side by side from the same seed, prints losses that
must agree, and the time per step. Everything runs on the GPU when there is one.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))

from models import CharGPT, Classifier, Text, digits, fused, sample

import jitmagic

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
console = Console()
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def contestants(rivals: bool) -> dict[str, Callable]:
    """Name -> what makes a callable fast (or leaves it alone)."""
    found: dict[str, Callable] = {"eager": lambda target: target, "jitmagic": jitmagic.jit}
    if rivals:
        found["torch.compile"] = torch.compile
    return found


def settle() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def part_one(rivals: bool) -> None:
    """The fused function: first call, then time per call, interleaved."""
    x, y = torch.randn(8, 64, device=DEVICE), torch.randn(8, 64, device=DEVICE)
    table = Table(title="1. relu(x*y+2).sum(-1) on 8x64", title_justify="left")
    for column in ("", "first call", "per call", "of eager", "largest difference"):
        table.add_column(column, justify="right" if column else "left")
    functions, first = {}, {}
    for name, speed_up in contestants(rivals).items():
        functions[name] = speed_up(fused)
        started = time.perf_counter()
        functions[name](x, y)
        settle()
        first[name] = time.perf_counter() - started
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(20):
        for name, function in functions.items():
            started = time.perf_counter()
            for _ in range(500):
                function(x, y)
            settle()
            samples[name].append((time.perf_counter() - started) / 500)
    medians = {name: statistics.median(times) for name, times in samples.items()}
    for name, function in functions.items():
        difference = (function(x, y) - fused(x, y)).abs().max().item()
        ratio = medians[name] / medians["eager"]
        per_call = f"{medians[name] * 1e6:.2f} µs"
        cells = (f"{first[name]:.2f} s", per_call, f"{ratio:.2f}x", f"{difference:.1e}")
        table.add_row(name, *cells)
    console.print(table)


def train(
    model: nn.Module, speed_up: Callable, loss: Loss, batches: Iterable[tuple[Tensor, Tensor]]
) -> tuple[list[float], list[float], nn.Module]:
    """Losses and seconds of each step, and the trained model. The whole step is what is sped up."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        value = loss(model, x, y)
        value.backward()
        optimizer.step()
        return value

    fast = speed_up(step)
    losses, seconds = [], []
    torch.manual_seed(7)
    for x, y in batches:
        settle()
        started = time.perf_counter()
        losses.append(fast(x, y).item())
        seconds.append(time.perf_counter() - started)
    return losses, seconds, model


def compare(
    title: str, model: nn.Module, loss: Loss, batches: list[tuple[Tensor, Tensor]], rivals: bool
) -> nn.Module:
    """Train the same model on the same data with every contestant; returns ours."""
    table = Table(title=title, title_justify="left")
    for column in ("", "first step", "per step", "of eager", "first loss", "last loss"):
        table.add_column(column, justify="right" if column else "left")
    runs = {name: train(model, make, loss, batches) for name, make in contestants(rivals).items()}
    eager_step = statistics.median(runs["eager"][1][2:])
    for name, (losses, seconds, _) in runs.items():
        step = statistics.median(seconds[2:])
        cells = (
            f"{seconds[0]:.2f} s",
            f"{step * 1e3:.2f} ms",
            f"{step / eager_step:.2f}x",
            f"{losses[0]:.4f}",
            f"{losses[-1]:.4f}",
        )
        table.add_row(name, *cells)
    console.print(table)
    ours, eager = torch.tensor(runs["jitmagic"][0]), torch.tensor(runs["eager"][0])
    apart = ((ours - eager).abs() / eager).max().item()
    console.print(
        f"largest relative difference to eager's loss over {len(eager)} steps: {apart:.1e}"
    )
    if apart > 1e-2:
        raise SystemExit("the losses do not agree")
    return runs["jitmagic"][2]


def classifier_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def language_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def on_device(batches: Iterable[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return [(x.to(DEVICE), y.to(DEVICE)) for x, y in batches]


def part_two(steps: int, rivals: bool) -> None:
    torch.manual_seed(0)
    title = f"2. classifier 784-256-128-10, batch 32, Adam, cross-entropy, {steps} steps"
    compare(title, Classifier().to(DEVICE), classifier_loss, on_device(digits(steps)), rivals)


def part_three(steps: int, rivals: bool) -> None:
    torch.manual_seed(0)
    text = Text()
    model = CharGPT(len(text.characters)).to(DEVICE)
    title = (
        f"3. character GPT, 4 layers, 128 wide, batch 16x64, {steps} steps on Python's help topics"
    )
    trained = compare(title, model, language_loss, on_device(text.batches(steps)), rivals)
    trained = jitmagic.jit(trained.eval())
    console.print("a sample:", style="bold")
    console.print(sample(trained, text, "The ", 200), markup=False, highlight=False)


def part_four() -> None:
    """explain, on a function with a graph break in it."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        z = torch.relu(x * y + 2)
        print(f"largest: {z.max():.3f}")
        return z.sum(-1) / z.shape[-1]

    console.print("4. jitmagic.explain", style="bold")
    x, y = torch.randn(8, 64, device=DEVICE), torch.randn(8, 64, device=DEVICE)
    console.print(jitmagic.explain(step)(x, y))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="few steps")
    parser.add_argument("--no-rivals", action="store_true", help="leave torch.compile out")
    arguments = parser.parse_args()
    rivals = not arguments.no_rivals
    part_one(rivals)
    part_two(20 if arguments.quick else 200, rivals)
    part_three(5 if arguments.quick else 60, rivals)
    part_four()


if __name__ == "__main__":
    main()
