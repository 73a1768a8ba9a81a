"""mode="max-autotune" on a GPU: real candidates, a real clock, the same answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from tests.runtime.test_tune import stages_of, trials_of

pytestmark = pytest.mark.device
GPU = "cuda"


def rows(x: Tensor) -> Tensor:
    return torch.softmax(x * 2 + 1, -1)


def columns(x: Tensor) -> Tensor:
    return torch.relu(x).sum(0)


def points(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x.sin() * x.cos() + x)


def turned(x: Tensor) -> Tensor:
    return (x.t() * 2 + 1).contiguous()


@pytest.mark.parametrize("fn", [rows, columns, points, turned])
@pytest.mark.parametrize("shape", [(600, 17000), (2048, 1024)])
def test_tuned_kernels_compute_the_same(fn: Any, shape: tuple[int, int]) -> None:
    x = torch.randn(shape, device=GPU)
    run = jitmagic.jit(fn, mode="max-autotune")
    expected = fn(x)
    for _ in range(4):  # plainly, recorded, replayed
        torch.testing.assert_close(run(x), expected)
    tried = trials_of(run)
    assert len(tried) > 1
    assert not [found.reason for _, found in stages_of(run) if found.reason]
    assert {t.outcome for t in tried} <= {"chosen", "slower"}
    assert all(t.seconds > 0 for t in tried)
    again = jitmagic.jit(lambda x: fn(x), mode="max-autotune")
    torch.testing.assert_close(again(x), expected)
    assert not any(t.measured for t in trials_of(again))
    for trial in tried:
        print(fn.__name__, shape, trial.subject, trial.config, f"{trial.seconds * 1e6:.1f} µs",
              trial.outcome)  # fmt: skip


def test_training_is_tuned_and_random_numbers_stay() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 8))
    model.to(GPU)
    x = torch.randn(512, 64, device=GPU)
    expected = model(x).square().mean()
    expected.backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    drawn = torch.cuda.get_rng_state()
    run = jitmagic.jit(lambda x: model(x).square().mean(), mode="max-autotune")
    got = run(x)
    got.backward()
    assert torch.equal(torch.cuda.get_rng_state(), drawn)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    for p, grad in zip(model.parameters(), grads, strict=True):
        torch.testing.assert_close(p.grad, grad, rtol=1e-3, atol=1e-5)
    assert {graph for graph, found in stages_of(run) if found.trials} == {"forward", "backward"}
