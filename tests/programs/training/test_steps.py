"""A training step in one function: what breaks the graph of one, and that it trains alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jitmagic

from ..counts import counts_of

Step = Callable[[nn.Module, Any, Tensor, Tensor], Any]
LOG: list[float] = []


def plain(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def clipped(model, optimizer, x, y):
    optimizer.zero_grad(set_to_none=True)
    loss = nn.MSELoss()(model(x), y)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    return loss.detach(), norm * 2


def other_norms(model, optimizer, x, y):
    model.zero_grad()
    F.mse_loss(model(x), y).backward()
    norm = nn.utils.clip_grad_norm_(list(model.parameters()), 0.1, norm_type=float("inf"))
    nn.utils.clip_grad_value_(model.parameters(), 0.05)
    optimizer.step()
    return norm


def logged(model, optimizer, x, y):
    loss_of = nn.SmoothL1Loss(beta=0.5)
    optimizer.zero_grad()
    loss = loss_of(model(x), y)
    loss.backward()
    optimizer.step()
    LOG.append(loss.item())
    return loss_of(model(x), y).detach()


def accumulated(model, optimizer, x, y):
    for part, wanted in ((x[:4], y[:4]), (x[4:], y[4:])):
        (F.mse_loss(model(part), wanted) / 2).backward()
    optimizer.step()
    optimizer.zero_grad()


def by_hand(model, optimizer, x, y):
    for parameter in model.parameters():
        parameter.grad = None
    F.mse_loss(model(x), y).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad


def looked_at(model, optimizer, x, y):
    before = model[0].weight.grad
    optimizer.zero_grad()
    gone = model[0].weight.grad
    F.mse_loss(model(x), y).backward()
    optimizer.step()
    return before is None, gone is None, model[0].weight.grad.sum()


def zeroed(model, optimizer, x, y):
    optimizer.zero_grad(set_to_none=False)
    F.mse_loss(model(x), y).backward()
    optimizer.step()


STEPS: list[tuple[Step, int]] = [  # and the graph breaks of a call
    (plain, 0),
    (clipped, 0),
    (other_norms, 0),
    (logged, 0),
    (by_hand, 0),
    (accumulated, 0),
    (looked_at, 0),
    (zeroed, 0),
]


def train(step: Step, tagged: Callable[..., Any], rounds: int = 3) -> list[Any]:
    """All that a round shows: results, parameters, gradients; of None too."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    LOG.clear()
    seen: list[Any] = []
    for _ in range(rounds):
        seen.append(tagged(model, optimizer, torch.randn(8, 4), torch.randn(8, 1)))
        seen += [p.detach().clone() for p in model.parameters()]
        seen += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    return [*seen, *LOG]


@pytest.mark.parametrize(("step", "breaks"), STEPS, ids=lambda s: getattr(s, "__name__", ""))
def test_trains_as_eager(step: Step, breaks: int) -> None:
    tagged = jitmagic.jit(step)
    got, want = train(step, tagged), train(step, step)
    for ours, eager in zip(got, want, strict=True):
        assert (ours is None) == (eager is None)
        torch.testing.assert_close(ours, eager)
    first = jitmagic.jit(step)
    train(step, first, rounds=1)
    assert counts_of(first).breaks == breaks
