"""Programs of research notebooks: adapters around models, samplers, losses, sets of numbers.

Each runs plainly and compiled, twice over, and must show the same; see harness.py.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, MultivariateNormal, Normal, kl_divergence

import jitmagic

from ..harness import Program, check


def r(*shape: int, grad: bool = False) -> Tensor:
    """A tensor that depends on its shape alone."""
    generator = torch.Generator().manual_seed(sum(shape) + 7 * len(shape))
    return torch.randn(*shape, generator=generator).requires_grad_(grad)


class Adapter(nn.Module):
    """Unknown names are looked up in its settings, then in what it wraps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.settings = {"alpha": 0.5}

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in self.__dict__["settings"]:
                return self.settings[name]
            return getattr(self.inner, name)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.alpha + self.weight.sum() + self.bias


class CachedAttention(nn.Module):
    """Rotary embeddings, keys and values in buffers that decoding fills."""

    def __init__(self, width: int = 8, heads: int = 2, length: int = 6) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        angles = torch.outer(torch.arange(length), torch.tensor([1.0, 0.1]))
        self.register_buffer(
            "turns", torch.polar(torch.ones_like(angles), angles), persistent=False
        )
        self.register_buffer("keys", torch.zeros(1, length, heads, width // heads))
        self.register_buffer("values", torch.zeros(1, length, heads, width // heads))

    def turned(self, x: Tensor, start: int) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        turns = self.turns[start : start + x.size(1), None]
        return torch.view_as_real(pairs * turns).flatten(3)

    def forward(self, x: Tensor, start: int, cached: bool) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in self.qkv(x).chunk(3, -1))
        q, k = self.turned(q, start), self.turned(k, start)
        if cached:
            stop = start + x.size(1)
            self.keys[:, start:stop], self.values[:, start:stop] = k.detach(), v.detach()
            k, v = self.keys[:, :stop].clone(), self.values[:, :stop].clone()
        weights = torch.einsum("bqhd,bkhd->bhqk", q, k).div(2).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2)


def squashed_policy(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    policy = Normal(mean, log_std.clamp(-5, 2).exp())
    raw = policy.mean + policy.stddev * noise
    action = raw.tanh()
    density = policy.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)
    return action, density.sum(-1), policy.entropy().mean()


def masked_choice(logits: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    policy = Categorical(logits=torch.where(allowed, logits, torch.tensor(-1e8)))
    action = policy.sample()
    return action, policy.log_prob(action), policy.entropy()


def message_passing(x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    source, target = edges
    scores = (x[source] * x[target]).sum(-1)
    highest = x.new_full((len(x),), -1e9).scatter_reduce(0, target, scores, "amax")
    weights = (scores - highest[target]).exp()
    sums = x.new_zeros(len(x)).scatter_add(0, target, weights)
    shares = weights / (sums[target] + 1e-16)
    return torch.zeros_like(x).index_add_(0, target, shares[:, None] * x[source]), shares


def sinkhorn(cost: Tensor, softness: float, rounds: int) -> tuple[Tensor, Tensor]:
    u, v = torch.zeros(cost.size(0)), torch.zeros(cost.size(1))
    for _ in range(rounds):
        u = -softness * torch.logsumexp((v[None] - cost) / softness, 1)
        v = -softness * torch.logsumexp((u[:, None] - cost) / softness, 0)
    plan = torch.exp((u[:, None] + v[None] - cost) / softness)
    return plan, (plan * cost).sum()


def spectral_norms(x: Tensor) -> list[str]:
    spectrum = torch.fft.rfft(x)
    return [f"{k:>2d} {v:8.3f}" for k, v in enumerate((spectrum * spectrum.conj()).real.tolist())]


def greeks(S: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    """Two inputs whose names differ by case, two derivatives."""
    S, s = (t.detach().clone().requires_grad_() for t in (S, s))
    value = S * Normal(0.0, 1.0).cdf(torch.log(S / 1.5) / s)
    delta, vega = torch.autograd.grad(value.sum(), (S, s), create_graph=True)
    (gamma,) = torch.autograd.grad(delta.sum(), S)
    return value.detach(), delta.detach(), vega.detach(), gamma


def divergence(mean: Tensor, factor: Tensor) -> Tensor:
    width = mean.size(0)
    posterior = MultivariateNormal(mean, scale_tril=torch.tril(factor, -1) + torch.eye(width))
    prior = MultivariateNormal(torch.zeros(width), torch.eye(width))
    return kl_divergence(posterior, prior)


EDGES = torch.tensor([[0, 1, 2, 3, 0, 2], [1, 2, 3, 0, 2, 1]])
PROGRAMS = [
    Program("adapter", Adapter, lambda: [(r(2, 3, grad=True),)], train=True),
    Program(
        "cached attention",
        CachedAttention,
        lambda: [(r(1, 3, 8, grad=True), 0, True), (r(1, 1, 8), 3, True), (r(1, 2, 8), 1, False)],
        graphs=1,
    ),
    Program(
        "squashed policy",
        lambda: squashed_policy,
        lambda: [(r(3, 2, grad=True), r(3, 2), r(2)), (r(3, 2), r(3, 2, grad=True), r(3, 2))],
        graphs=1,
        breaks=0,  # the distribution looks at its parameters within the graph
    ),
    Program(
        "masked choice",
        lambda: masked_choice,
        lambda: [(r(4, 3, grad=True), r(4, 3) > -0.5), (r(4, 3), r(4, 3) > -0.5)],
    ),
    Program(
        "message passing",
        lambda: message_passing,
        lambda: [(r(4, 3, grad=True), EDGES), (r(4, 3), EDGES)],
        graphs=1,
    ),
    Program(
        "sinkhorn",
        lambda: sinkhorn,
        lambda: [(r(3, 4, grad=True).abs(), 0.5, 3), (r(3, 4).abs(), 0.25, 3)],
        graphs=1,
    ),
    Program("greeks", lambda: greeks, lambda: [(r(4).exp(), r(3, 4)[0].exp())], graphs=1),
    Program(
        "divergence",
        lambda: divergence,
        lambda: [(r(3, grad=True), r(3, 3, grad=True)), (r(3), r(3, 3, grad=True))],
        graphs=1,
        breaks=0,
    ),
    Program("spectral norms", lambda: spectral_norms, lambda: [(torch.arange(6.0),)]),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_behaves_as_eager(program: Program) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", jitmagic.FallbackWarning)
        check(program)
