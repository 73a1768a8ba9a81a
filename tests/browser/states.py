"""states: a report of explain for each state that a person meets, with times that never differ.

`python -m tests.browser.states FOLDER` writes FOLDER/NAME.html. What is captured, fused and refused
is real; seconds are made up (an operation takes as long as its place says, a stage 20 ms), so that
two runs look alike.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of
from jitmagic.diagnostics.explanation import cost, limits, line_timing
from jitmagic.records import CompileRecord, Measured

__all__ = ["STATES", "written"]


def step(x: Tensor) -> Tensor:
    y = torch.tanh(x) * x + 1
    return y.softmax(-1).sum()


def log_loss(x: Tensor) -> Tensor:
    y = x.sin() * 2
    print("loss", y.mean())
    if y.sum() > 0:
        y = y + 1
    return smooth(y.cos()).sum()


def smooth(x: Tensor) -> Tensor:
    return torch.relu(x).mean(-1)


def tiny(x: Tensor) -> Tensor:
    y = x * 2
    print(y.shape)
    return y.sum()


def repeat(x: Tensor, k: int) -> Tensor:
    return torch.cat([x * k] * k).sum(-1)


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), Attention(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TinyGPT(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.h = nn.ModuleList([Block(width), Block(width)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 100)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.h:
            x = block(x)
        return self.head(self.norm(x))


def measured(
    tagged: Any, compiled: float, eager: float, calls: int = 20, outside: float | None = None
) -> Any:
    """With those medians of its calls."""
    journal = handle_of(tagged).journal  # type: ignore[union-attr]
    journal.records[:] = map(steady, journal.records)
    record = journal.records[0]
    journal.amend(record, Measured(compiled, eager, calls, outside), record.outcome)
    return tagged


def steady(record: CompileRecord) -> CompileRecord:
    """With stages of 20 ms, and no kernel from disk."""
    stages = tuple(
        replace(stage, seconds=0.02) for stage in record.stages if stage.stage != "import"
    )
    return replace(record, stages=stages, cache_hits=0)


X = torch.linspace(-1, 1, 512 * 512).view(512, 512)


def fast() -> Any:
    tagged = jitmagic.jit(step)
    tagged(X)
    return jitmagic.explain(measured(tagged, 0.41e-3, 1.27e-3))(X)


def broken() -> Any:
    tagged = jitmagic.jit(log_loss)
    tagged(X)
    return jitmagic.explain(measured(tagged, 0.9e-3, 1.3e-3, outside=0.36e-3))(X)


def slow() -> Any:
    tagged = jitmagic.jit(tiny)
    tagged(X[0])
    return jitmagic.explain(measured(tagged, 165e-6, 125e-6, 8, 90e-6))(X[0])


def recompiling() -> Any:
    tagged = jitmagic.jit(repeat)
    for k in (2, 3, 4):
        tagged(X[:3], k)
    tagged(X[:3].double(), 4)
    return jitmagic.explain(measured(tagged, 30e-6, 60e-6, 36))(X[:3], 2)


def training() -> Any:
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @jitmagic.jit
    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    given = X[:32, :64], torch.arange(32) % 10
    for _ in range(2):
        train(*given)
    return jitmagic.explain(measured(train, 0.2e-3, 0.9e-3))(*given)


def model() -> Any:
    tagged, ids = jitmagic.jit(TinyGPT()), torch.arange(128).view(4, 32) % 100
    tagged(ids).sum().backward()
    return jitmagic.explain(measured(tagged, 2e-3, 3.4e-3, 4))(ids)


def unmeasured() -> Any:
    found = jitmagic.explain(step)(X)
    records = tuple(map(steady, found.records))
    times = tuple((name, 0.02) for name, _ in found.compile_times if name != "import")
    return replace(found, records=records, compile_times=times, cache_hits=0)


STATES: dict[str, Callable[[], Any]] = {
    made.__name__: made for made in (fast, broken, slow, recompiling, training, model, unmeasured)
}


def _made_up(whole: Any, lapped: Callable[[], Any]) -> line_timing.OperationTimes:
    """The n-th operation takes (n + 2) / 3 of 20 µs; one of a plan a fifth of it."""
    whole()
    count = len(lapped().seconds)
    unit = 20e-6 if whole.__name__ == "whole" else 4e-6  # a graph's; a plan's is a lambda
    each = tuple(unit * (number % 5 + 2) / 3 for number in range(count))
    return line_timing.OperationTimes(each, sum(each))


def _copied(nbytes: int, device: torch.device) -> float | None:
    return nbytes / 100e9 if nbytes >= limits.LEAST else None


@contextlib.contextmanager
def made_up_times() -> Iterator[None]:
    """Nothing is timed."""
    kept = line_timing._measured, cost.copy_seconds
    line_timing._measured, cost.copy_seconds = _made_up, _copied
    try:
        yield
    finally:
        line_timing._measured, cost.copy_seconds = kept


def written(folder: Path) -> None:
    """Write the HTML of each state, and its text."""
    torch.manual_seed(0)
    for name, make in STATES.items():
        with made_up_times(), contextlib.redirect_stdout(io.StringIO()):
            found = make()
        (folder / f"{name}.html").write_text(found._repr_html_(), encoding="utf-8")
        (folder / f"{name}.txt").write_text(str(found), encoding="utf-8")


if __name__ == "__main__":
    written(Path(sys.argv[1]))
