"""torch.distributions: one graph, whose checks of arguments raise what eager raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributions as D
from torch import Tensor

import jitmagic

from ..counts import counts_of
from ..harness import Program, check


def scores(m: Tensor, s: Tensor) -> Any:
    normal = D.Normal(m, s)
    return normal.log_prob(m + 1), normal.entropy(), normal.mean, normal.stddev, normal.cdf(m)


def draws(m: Tensor, s: Tensor) -> Any:
    normal = D.Normal(m, s)
    return normal.rsample(), normal.sample((3,)), torch.rand(2)


def divergence(m: Tensor, s: Tensor) -> Any:
    return D.kl_divergence(D.Normal(m, s), D.Normal(torch.zeros_like(m), torch.ones_like(s)))


def choices(m: Tensor, s: Tensor) -> Any:
    chosen = D.Categorical(logits=m)
    which = chosen.sample()
    return which, chosen.log_prob(which), chosen.entropy(), D.Bernoulli(logits=m).sample()


def several(m: Tensor, s: Tensor) -> Any:
    joint = D.Independent(D.Normal(m, s), 1)
    many = D.MultivariateNormal(m, torch.diag(s))
    squashed = D.TransformedDistribution(D.Normal(m, s), [D.TanhTransform()])
    return joint.log_prob(m), many.log_prob(m + 1), squashed.rsample()


def families(m: Tensor, s: Tensor) -> Any:
    inside = torch.sigmoid(m)
    return (
        D.Gamma(s, s).log_prob(s), D.Beta(s, s).log_prob(inside), D.Laplace(m, s).log_prob(m),
        D.Uniform(m, m + s).log_prob(m + s / 2), D.Exponential(s).log_prob(s),
    )  # fmt: skip


PROGRAMS = [scores, draws, divergence, choices, several, families]


def _calls() -> list[tuple[Tensor, Tensor]]:
    made = []
    for seed in range(2):
        m = torch.randn(4, generator=torch.Generator().manual_seed(seed))
        made.append((m, m.abs() + 0.5))
    return made


@pytest.mark.parametrize("target", PROGRAMS, ids=lambda target: target.__name__)
def test_one_graph(target: Callable[..., Any]) -> None:
    check(Program(target.__name__, lambda: target, _calls, graphs=1))


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("written", [1 << 2, 1 << 19])
def test_invalid_arguments(written: int, backend: str) -> None:
    def program(m: Tensor, s: Tensor, seen: Tensor) -> Tensor:
        seen.add_(1)
        return D.Normal(m, s).log_prob(m) * 2

    run = jitmagic.jit(program, backend=backend)
    (m, s), _ = _calls()
    ours, plain = torch.zeros(written), torch.zeros(written)
    torch.testing.assert_close(run(m, s, ours), program(m, s, plain))
    with pytest.raises(ValueError, match="to satisfy the constraint") as wanted:
        program(m, -s, plain)
    with pytest.raises(ValueError, match="to satisfy the constraint") as found:
        run(m, -s, ours)
    assert str(found.value) == str(wanted.value)
    assert torch.equal(ours, plain)
    assert counts_of(run).breaks == 0


def test_an_error_that_the_program_catches() -> None:
    def program(m: Tensor, s: Tensor) -> Tensor:
        try:
            return D.Normal(m, s).log_prob(m)
        except ValueError:
            return m * 2

    run = jitmagic.jit(program)
    (m, s), _ = _calls()
    for scale in (s, -s, s):
        torch.testing.assert_close(run(m, scale), program(m, scale))
