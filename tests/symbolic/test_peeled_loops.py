"""Loops of varying length whose first round finds other things than the later ones: tensors without
a history, one tensor for two states, None, names that are not bound. It is compiled with what comes
before the loop, and one variant of the round serves all others (trace/python_loops/peeled.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitmagic
from jitmagic.api import handle_of
from tests.covering import covered

Sizes = tuple[int, int]
SIZES = (11, 5, 16, 3, 2, 7, 9, 12, 1, 6)
CALLS: dict[str, list[Sizes]] = {
    "batch": [(n, 6) for n in SIZES],
    "length": [(3, n) for n in SIZES],
    "both": [(n, SIZES[(3 * i + 2) % 10]) for i, n in enumerate(SIZES)],  # few are equal
}


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.back = nn.Linear(4, 32), nn.Linear(8, 32)


class Lstm(Cell):
    """Both states are one tensor before the loop."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = x.new_zeros(x.shape[0], 8)
        made = []
        for t in range(x.shape[1]):
            i, f, g, o = (self.into(x[:, t]) + self.back(h)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            made.append(h)
        return torch.stack(made, 1)


class Gru(Cell):
    """A state without a history; the last one is the result."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[0], 8)
        for part in x.unbind(1):
            a, b = self.into(part).chunk(4, 1)[:3], self.back(h).chunk(4, 1)[:3]
            r, z = torch.sigmoid(a[0] + b[0]), torch.sigmoid(a[1] + b[1])
            h = (1 - z) * torch.tanh(a[2] + r * b[2]) + z * h
        return h


class Late(Cell):
    """No state before the first round."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = None
        for n, part in enumerate(x.transpose(0, 1)):
            more = self.into(part) if h is None else self.into(part) + self.back(h)
            h = torch.tanh(more)[:, :8] * (n + 1)
        return h if h is not None else x.sum()


class Stopping(Cell):
    """Left early, and what the last round bound is read behind the loop."""

    def forward(self, x: torch.Tensor) -> Any:
        h = c = x.new_zeros(x.shape[0], 8)
        for t in range(x.shape[1]):
            y = self.into(x[:, t]) + self.back(h)
            c, h = torch.tanh(y[:, :8]) + c, torch.sigmoid(y[:, 8:16])
            if t == 4:
                break
        return h + c, y.sum(), t


class Stacked(Cell):
    """Two loops; states of their own, in a list."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, first = x.new_zeros(x.shape[0], 8), []
        for t in range(x.shape[1]):
            h = torch.tanh(self.into(x[:, t]) + self.back(h))[:, :8]
            first.append(h)
        y, g = torch.stack(first, 1), x.new_ones(x.shape[0], 8)
        for t in reversed(range(y.shape[1])):
            g = torch.tanh(self.back(y[:, t] + g))[:, 8:16]
        return g


MODELS: list[type[Cell]] = [Lstm, Gru, Late, Stopping, Stacked]


def seen(run: Callable[..., Any], model: nn.Module, x: torch.Tensor, train: bool) -> list[Any]:
    with torch.set_grad_enabled(train):
        result = run(x)
    results = result if isinstance(result, tuple) else (result,)
    if not train:
        return list(results)
    model.zero_grad()
    results[0].square().mean().backward()
    return [*results, *(p.grad for p in model.parameters())]


def most_compiles(fn: Any) -> tuple[int, int]:
    """Return the compiles of the frame and of its most often compiled resume function."""
    records = handle_of(fn).journal.records
    traced = Counter(r.frame for r in records if r.result("trace") is not None)
    own = traced.pop(records[0].frame)
    return own, max(traced.values(), default=0)


@covered(kind=MODELS, changing=CALLS, dynamic=[None, True], train=[False, True])
def test_one_round_serves_all(
    kind: type[Cell], changing: str, dynamic: bool | None, train: bool
) -> None:
    torch.manual_seed(0)
    model = kind().double()
    made = jitmagic.jit(kind().double(), dynamic=dynamic, backend="aot_eager")
    made.load_state_dict(model.state_dict())
    for b, n in CALLS[changing]:
        x = torch.randn(b, n, 4, dtype=torch.float64)
        ours, theirs = seen(made, made, x, train), seen(model, model, x, train)
        for found, wanted in zip(ours, theirs, strict=True):
            torch.testing.assert_close(found, wanted)
    ones = {tuple(size == 1 for size in sizes) for sizes in CALLS[changing]} - {(False, False)}
    frame, rounds = most_compiles(made)
    assert frame <= (1 if dynamic else 2) + len(ones)
    # A round that ends the loop is another one; sizes of what a list becomes are seen to change.
    allowed = (1 + len(ones)) * (2 if kind is Stopping else 1)
    assert rounds <= allowed + (kind is Stacked and dynamic is None)
    assert not [h for h in handle_of(made).family.members if h.given_up is not None]


def test_equal_first_round_runs_in_python() -> None:
    """Nothing is compiled twice where it finds what the others find."""

    def summed(x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(8)
        for row in x:
            h = torch.tanh(h + row)
        return h

    made = jitmagic.jit(summed, dynamic=True, backend="eager")
    for n in (4, 6, 3):
        x = torch.randn(n, 8)
        torch.testing.assert_close(made(x), summed(x))
    graphs = [r.result("trace").graph for r in handle_of(made).journal.records if r.result("trace")]
    calls = [[n.name for n in g.graph.nodes if n.op.startswith("call")] for g in graphs]
    assert ["tanh" in names for names in calls].count(True) == 1


@pytest.mark.parametrize("train", [False, True])
def test_a_part_that_is_written_to(train: bool) -> None:
    """Eager refuses to write to one of several views of what has a history."""

    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h, x = None, x * w
        for row in x.unbind(0):
            h = row.mul_(2) if h is None else torch.tanh(h + row.mul_(3))
        return h + x.sum()

    made = jitmagic.jit(scaled, dynamic=True, backend="eager")
    for n in (4, 6, 3):
        results = []
        for fn in (made, scaled):
            x, w = torch.ones(n, 8), torch.full((8,), 0.5, requires_grad=train)
            try:
                results.append(fn(x, w))
            except RuntimeError as error:
                results.append(str(error))
        assert isinstance(results[1], str) is train
        if train:
            assert results[0] == results[1]
        else:
            torch.testing.assert_close(*results)
