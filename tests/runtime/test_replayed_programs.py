"""Whole programs whose graphs are replayed, by the stand-in for CUDA graphs."""

from __future__ import annotations

import pytest
import torch

import jitmagic

from .fake_graphs import graphs_on_the_cpu, no_gpu

__all__ = ["graphs_on_the_cpu", "no_gpu"]

pytestmark = pytest.mark.usefixtures("graphs_on_the_cpu")


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    return torch.nn.Sequential(*layers)


def loss_of(net, x):
    return net(x).square().mean()


def replayed(fn):
    return jitmagic.jit(fn, options={"cuda_graphs": True, "keep": "compiled"})


def batches(count: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(3, 8) for _ in range(count)]


def trained(call, net, xs, zeroed_every: int = 1, forwards: int = 1) -> list[torch.Tensor]:
    """Losses, which are all held, and gradients of each step."""
    losses, gradients = [], []
    for step in range(0, len(xs), forwards):
        if step // forwards % zeroed_every == 0:
            net.zero_grad()
        parts = [call(net, x) for x in xs[step : step + forwards]]
        losses += parts
        sum(parts).backward()
        gradients.append([p.grad.clone() for p in net.parameters()])
    return [*losses, *(grad for step in gradients for grad in step)]


@pytest.mark.parametrize(("zeroed_every", "forwards"), [(1, 1), (3, 1), (1, 3), (2, 2)])
def test_training(zeroed_every, forwards):
    xs = batches(12)
    want = trained(loss_of, network(), xs, zeroed_every, forwards)
    got = trained(replayed(loss_of), network(), xs, zeroed_every, forwards)
    torch.testing.assert_close(got, want)


def test_results_of_a_forward_stay_whole():
    net = network()
    call = replayed(lambda x: net(x))
    with torch.no_grad():
        held = [(call(x), x) for x in batches(10)]
        for got, x in held:
            torch.testing.assert_close(got, net(x))


def test_a_state_that_is_returned_and_passed_again():
    net = torch.nn.GRUCell(4, 4)
    call = replayed(lambda x, h: net(x, h))
    with torch.no_grad():
        got = want = torch.zeros(2, 4)
        for _ in range(10):
            x = torch.randn(2, 4)
            got, want = call(x, got), net(x, want)
            torch.testing.assert_close(got, want)
