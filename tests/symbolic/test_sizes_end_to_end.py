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
