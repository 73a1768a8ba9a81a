"""Optimizers, averages and clipping written by hand: leaves that are written to without autograd.

Such updates are graphs, as those of torch.optim are, also with what is differentiated beside them.
Version counters are eager's: a write through `.data` raises none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic

from ..counts import Counts, counts_of


@torch.no_grad()
def decorated(model: nn.Module, buffers: list[Tensor], lr: float) -> None:
    for p, buffer in zip(model.parameters(), buffers, strict=True):
        buffer.mul_(0.9).add_(p.grad)
        p -= lr * buffer
        p.grad.zero_()


def in_a_block(model: nn.Module, buffers: list[Tensor], lr: float) -> Tensor:
    total = torch.zeros(())
    with torch.no_grad():
        for p, buffer in zip(model.parameters(), buffers, strict=True):
            buffer.lerp_(p.grad, 0.1)
            p.sub_(lr * buffer.sign())
            total = total + p.square().sum()
    return total.sqrt()


def through_data(model: nn.Module, buffers: list[Tensor], lr: float) -> None:
    for p, buffer in zip(model.parameters(), buffers, strict=True):
        p.data.mul_(1 - lr * 0.1).add_(p.grad.data, alpha=-lr)
        buffer.copy_(0.5 * buffer + p.data)


def trained(update: Callable[..., Any], tagged: bool) -> tuple[list[Any], Callable[..., Any]]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    buffers = [torch.zeros_like(p) for p in model.parameters()]
    step = jitmagic.jit(update) if tagged else update
    seen: list[Any] = []
    for number in range(4):
        model.zero_grad()
        model(torch.randn(7, 6)).square().mean().backward()
        seen.append(step(model, buffers, 0.1 / (1 + number)))
    seen += [tensor.detach().clone() for tensor in (*model.parameters(), *buffers)]
    seen += [p._version for p in model.parameters()]
    return seen, step


def same(ours: Sequence[Any], eager: Sequence[Any]) -> None:
    for one, other in zip(ours, eager, strict=True):
        if isinstance(other, Tensor):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        else:
            assert one == other


@pytest.mark.parametrize("update", [decorated, in_a_block, through_data])
def test_an_update_written_by_hand_is_one_graph(update: Callable[..., Any]) -> None:
    ours, step = trained(update, True)
    same(ours, trained(update, False)[0])
    found = counts_of(step)
    assert (found.graphs, found.breaks) == (2, 0)  # the second with the rate as data


def clip_through_data(p: Tensor) -> None:
    p.data.clamp_(-0.5, 0.5)


def clip_through_detach(p: Tensor) -> None:
    p.detach().clamp_(-0.5, 0.5)


def test_only_eagers_writes_are_counted() -> None:
    for clip, counted in ((clip_through_data, False), (clip_through_detach, True)):
        for run in (clip, step := jitmagic.jit(clip)):
            p = torch.tensor([-2.0, 0.1, 3.0], requires_grad=True)
            loss = (p * p).sum()
            run(p)
            assert p.tolist() == pytest.approx([-0.5, 0.1, 0.5])
            assert p._version == counted
            if counted:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    loss.backward()
            else:
                loss.backward()
                assert torch.equal(p.grad, 2 * p.detach())
        assert counts_of(step) == Counts(1, 0, 1)


def follows(target: nn.Module, source: nn.Module) -> None:
    for p, q in zip(target.parameters(), source.parameters(), strict=True):
        p.data.mul_(0.9)
        p.data.add_(q.data, alpha=0.1)


def follow_then_call(target: nn.Module, source: nn.Module, x: Tensor) -> Tensor:
    follows(target, source)
    return (target(x) - source(x)).square().sum()


def call_then_follow(target: nn.Module, source: nn.Module, x: Tensor) -> Tensor:
    loss = (target(x) - source(x)).square().sum()
    follows(target, source)
    return loss


def unrolled(target: nn.Module, source: nn.Module, x: Tensor) -> Tensor:
    target[0].weight.data.mul_(0.9)
    target[0].bias.data.add_(1)
    target[2].weight.data.clamp_(-0.1, 0.1)
    target[2].bias.data.copy_(source[2].bias.data)
    return (target(x) - source(x)).square().sum()


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", [follow_then_call, call_then_follow, unrolled])
def test_any_number_of_writes_beside_history_is_one_graph(
    fn: Callable[..., Tensor], backend: str
) -> None:
    """Of parameters that take part in autograd in the same frame. What is written through `.data`
    after it was saved is what a backward finds.
    """

    def run(step: Callable[..., Tensor]) -> list[Any]:
        torch.manual_seed(3)
        models = [
            nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)) for _ in ("target", "source")
        ]
        seen: list[Any] = []
        for _ in range(3):
            loss = step(*models, torch.randn(4, 6))
            loss.backward()
            seen += [loss.detach(), *(p.detach().clone() for m in models for p in m.parameters())]
            seen += [p.grad.clone() for m in models for p in m.parameters() if p.grad is not None]
        return seen

    compiled = jitmagic.jit(fn, backend=backend, fullgraph=True)
    same(run(compiled), run(fn))
    assert counts_of(compiled).breaks == 0
