"""One set of kernels for all sizes: how often a compiler runs, and eager's results and gradients at
each size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jitmagic
from jitmagic.api import handle_of
from jitmagic.graph.symbolic.unify_graphs import GraphsDiffer, fits, unify
from jitmagic.symbols.expr import Integer
from jitmagic.symbols.interval import Interval
from jitmagic.symbols.predicates import Predicates
from jitmagic.symbols.reading import Readings
from jitmagic.symbols.scalar import Symbol
from tests.loops.recording import record

SIZES = (8, 5, 16, 3, 2, 7, 9, 32, 64, 33, 12, 1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, width = x.shape
        q, k, v = self.into(x).view(b, n, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / 3).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, width))


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(26, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[0], 16)
        for t in range(3):
            state = torch.tanh(self.cell(torch.cat([x[:, t], state], 1)))
        return F.log_softmax(state, -1)


Model = tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]
MODELS: dict[str, Model] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5)),
        lambda n: torch.randn(n, 20),
    ),
    "attention, batch": (Attention, lambda n: torch.randn(n, 6, 16)),
    "attention, length": (Attention, lambda n: torch.randn(3, n, 16)),
    "steps": (Steps, lambda n: torch.randn(n, 3, 10)),  # equal sizes would share a symbol
}


def compiles(model: nn.Module, graph: str) -> int:
    records = handle_of(model).journal.records
    return sum(s.stage == f"{graph}: load" for r in records for s in r.stages)


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_compiler_runs_once_for_all_sizes_and_once_for_size_one(name: str, train: bool) -> None:
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    model = make()
    plain = copy.deepcopy(model)
    made = jitmagic.jit(model, dynamic=True, options={"keep": "compiled"})
    for n in SIZES:
        x = inputs(n)
        with torch.set_grad_enabled(train):
            found, wanted = made(x), plain(x)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        assert found.stride() == wanted.stride()
        if train:
            found.square().mean().backward()
            wanted.square().mean().backward()
            for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    for graph in ("forward", "backward") if train else ("forward",):
        steps = name == "attention, length"  # rows of one step of lanes, and longer ones
        assert 1 <= compiles(made, graph) <= 2 + steps


# ----------------------------------------------------------------- what the sizes are read from


def pair(first: dict[str, int], second: dict[str, int]) -> tuple[Predicates, Readings]:
    symbols = {name: Symbol(name, int, Interval(2, 2**31), ("a test", name)) for name in first}
    there = [{symbols[name]: n for name, n in values.items()} for values in (first, second)]
    return Predicates(there[0]), Readings((), *there)


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [
        ((7, 7), "7"),
        ((8, 101), "s"),
        ((24, 303), "s*3"),
        ((9, 102), "(s + 1)"),
        ((96, 101 * 211), "s*t"),
        ((64, 101 * 101), "s*s"),
        ((5, 1234), None),
    ],
)
def test_numbers_become_expressions_with_values_at_both_sizes(
    numbers: tuple[int, int], wanted: object
) -> None:
    _, readings = pair({"s": 8, "t": 12}, {"s": 101, "t": 211})
    read = readings.read(*numbers)
    assert (read is None) == (wanted is None)
    if read is not None and numbers[0] == numbers[1]:
        assert read is Integer(numbers[0])


def test_graph_with_other_differences_does_not_fit() -> None:
    def graph(n: int, scale: float = 2.0, width: int = 16) -> torch.fx.GraphModule:
        return record(lambda x: (x * scale).view(-1, 4), torch.randn(n, width))[0]

    found, readings = pair({"s": 8}, {"s": 101})
    symbolic = unify(graph(8), graph(101), readings, found.context)
    [symbol] = found.symbols
    assert fits(symbolic, graph(5), {symbol: 5})
    assert not fits(symbolic, graph(5), {symbol: 6})
    assert not fits(symbolic, graph(5, scale=3.0), {symbol: 5})
    assert not fits(symbolic, graph(5, width=32), {symbol: 5})
    with pytest.raises(GraphsDiffer):
        unify(graph(8), graph(101, scale=3.0), readings, found.context)
