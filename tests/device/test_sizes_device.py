"""Sizes that vary on a GPU: one set of Triton kernels serves them, and those that data decide."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jitmagic
from jitmagic.api import handle_of
from jitmagic.runtime.cuda_graphs.graph_pool import MAX_SIZES
from jitmagic.runtime.cuda_graphs.replayer import Replayer
from tests.programs.counts import counts_of, eager_of

pytestmark = pytest.mark.device

SIZES = (8, 3, 16, 5, 33, 64, 100, 7, 2, 31, 48, 17, 12, 9, 200, 77)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x + self.second(F.gelu(self.first(x))))
        return torch.softmax(y, 1) * y.mean(0)


def reductions(x: Tensor) -> Any:
    y = x * 2 + 1
    return y.softmax(1), y.sum(0), y.var(-1), y.amax(1), y.transpose(0, 1).contiguous()


def positions(x: Tensor) -> Tensor:
    n = x.shape[1]
    row = torch.arange(n, device=x.device)
    return (x * (row[:, None] >= row[:1])[..., :1]).cumsum(1) + n


PROGRAMS: dict[str, Callable[[], Callable[[Tensor], Any]]] = {
    "layer": lambda: Layer().cuda(),
    "reductions": lambda: reductions,
    "positions": lambda: positions,
}


def vary(where: str, n: int) -> tuple[int, int, int]:
    return {"batch": (n, 24, 64), "length": (6, n, 64), "both": (n, n + 3, 64)}[where]


@pytest.mark.parametrize("where", ["batch", "length", "both"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_two_compiles_serve_all_sizes(name: str, where: str) -> None:
    torch.manual_seed(0)
    program = PROGRAMS[name]()
    run = jitmagic.jit(program)
    for n in SIZES:
        x = torch.randn(vary(where, n), device="cuda", requires_grad=True)
        got, want = run(x), program(x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        first = got if isinstance(got, Tensor) else got[0]
        second = want if isinstance(want, Tensor) else want[0]
        ours, eager = (torch.autograd.grad(y.square().sum(), x)[0] for y in (first, second))
        torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-3)
    assert eager_of(run) == []
    assert counts_of(run).graphs <= 2
    built = [record for record in handle_of(run).journal if record.kernels > record.cache_hits]
    assert len(built) <= 12, "kernels are those of few sizes"


@pytest.mark.parametrize("train", [False, True])
def test_cuda_graphs_are_those_of_a_size(train: bool) -> None:
    """Kernels are one set for all sizes; each size has recordings of its own, few of them."""
    torch.manual_seed(0)
    others = _replayers()  # of other tests
    layer = Layer().cuda().requires_grad_(train)
    run = jitmagic.jit(layer.forward, mode="reduce-overhead", dynamic=True)
    for n in (*SIZES, *SIZES[:4], *SIZES):
        for _ in range(3):
            x = torch.randn(n, 24, 64, device="cuda", requires_grad=train)
            got, want = run(x), layer(x)
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
            if train:
                ours, eager = (torch.autograd.grad(y.sum(), x)[0] for y in (got, want))
                torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-3)
            del got, want
    assert eager_of(run) == []
    assert counts_of(run).graphs == 1
    built = [record for record in handle_of(run).journal if record.kernels > record.cache_hits]
    assert len(built) <= 8
    made = [one for one in _replayers() if one not in others and one.replays]
    assert made, "sizes that come again are replayed"
    assert sum(bool(one.recordings) for one in made) <= (1 + train) * 2 * MAX_SIZES


def test_an_input_that_begins_anywhere() -> None:
    """Kernels that load 16 bytes at once do not meet it."""
    run = jitmagic.jit(lambda x: (x * 2).softmax(-1), dynamic=True)
    memory = torch.randn(50_000, device="cuda")
    for n in (16, 48, 32, 7):
        for begin in (0, 1, 4, 3):
            x = memory[begin : begin + 20 * n].view(20, n)
            torch.testing.assert_close(run(x), (x * 2).softmax(-1))
    assert counts_of(run).graphs == 1


def test_long_reductions_of_any_length() -> None:
    def program(x: Tensor) -> Any:
        return x.sum(), (x * x).sum(0), x.argmax(0), (x + 1).mean(1)

    run = jitmagic.jit(program, dynamic=True)
    for n in (30_000, 100, 5_000, 70_001, 2):
        x = torch.randn(n, 17, device="cuda")
        torch.testing.assert_close(run(x), program(x), rtol=1e-4, atol=1e-3)
    assert counts_of(run).graphs == 1


def nonzero(x: Tensor) -> Any:
    return torch.nonzero(x > 0).float() * 2, (x > 0).sum()


def masked(x: Tensor) -> Any:
    kept = x[x > 0]
    return (kept * 2 + 1).sum(), kept.sin()


def repeated(x: Tensor) -> Any:
    return torch.repeat_interleave(x, (x.abs() * 3).long()) * 3


def experts(x: Tensor) -> Any:
    out = torch.zeros_like(x)
    for expert in range(3):
        (rows,) = torch.where((x.abs() * 3).long() % 3 == expert)
        out = out.index_add(0, rows, x[rows].sin() * (expert + 1))
    return out


def read(x: Tensor) -> Any:
    n = (x > 0).sum().item()
    return torch.zeros(n, device=x.device) + 1, x[:n] * 2, n, x * x.amax().item()


def listed(x: Tensor) -> Any:
    low, high = torch.stack([x.amin(), x.amax()]).tolist()
    return (x - low) / (high - low), high


@pytest.mark.parametrize("program", [nonzero, masked, repeated, experts, read, listed])
def test_sizes_that_data_decide_stay_in_the_graph(program: Callable[[Tensor], Any]) -> None:
    run = jitmagic.jit(program, fullgraph=True)
    torch.manual_seed(0)
    for _ in range(6):
        x = torch.randn(100, device="cuda")
        torch.testing.assert_close(run(x), program(x))
    assert counts_of(run).graphs == 1


@pytest.mark.parametrize("program", [read, masked])
def test_a_recording_of_one_size_is_not_replayed_for_another(program: Callable[..., Any]) -> None:
    run = jitmagic.jit(program, mode="reduce-overhead")
    torch.manual_seed(0)
    for _ in range(6):
        x = torch.randn(100, device="cuda")
        torch.testing.assert_close(run(x), program(x))


def _replayers() -> list[Replayer]:
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, Replayer)]
