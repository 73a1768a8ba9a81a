"""Whole training steps: the optimizer's update is compiled, and does what eager does.

Each scenario trains two copies of a model, one with a tagged step. Compared are losses, parameters,
the optimizer's state (keys, step counts, moments), and what was compiled.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic
from jitmagic.diagnostics.explain import Explanation, explanation_of

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]
RESULTS_AGREE = 1e-6  # relative: the update is computed with the same roundings, sums are not


class Small(nn.Module):
    """Weights, biases and a scalar, so that 0-dim parameters take part."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 20), nn.Linear(20, 4)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.second(torch.tanh(self.first(x))) * self.scale
        return made


@dataclass
class Training:
    """One model being trained; `step` may be tagged."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[[Tensor, Tensor], Tensor]
    losses: list[float]

    def run(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.losses += [float(self.step(x, y).detach()) for x, y in batches]

    @property
    def explanation(self) -> Explanation:
        return explanation_of(self.step)


def update_only(model: nn.Module, make: MakeOptimizer, tagged: bool, **options: Any) -> Training:
    """A plain forward and backward around a tagged update: gradients are bitwise those of eager."""
    optimizer = make(model)

    def update() -> None:
        optimizer.step()

    apply = jitmagic.jit(update, **options) if tagged else update

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x).float(), y)
        loss.backward()
        apply()
        return loss

    made = Training(model, optimizer, step, [])
    made.step.update = apply  # type: ignore[attr-defined]
    return made


def pair(
    make: MakeOptimizer, model: nn.Module | None = None, **options: Any
) -> tuple[Training, Training]:
    torch.manual_seed(3)
    model = Small() if model is None else model
    other = copy.deepcopy(model)
    return update_only(model, make, False), update_only(other, make, True, **options)


def batches(count: int, seed: int = 5) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(8, 12, generator=generator), torch.randn(8, 4, generator=generator))
        for _ in range(count)
    ]


def compiled(training: Training) -> Explanation:
    return explanation_of(training.step.update)  # type: ignore[attr-defined]


def agree(eager: Any, ours: Any, tolerance: float = RESULTS_AGREE) -> None:
    """Same structure; tensors relative to their largest element, everything else equal."""
    assert type(eager) is type(ours)
    if isinstance(eager, Tensor):
        assert (eager.dtype, eager.shape, eager.requires_grad) == (
            ours.dtype,
            ours.shape,
            ours.requires_grad,
        )
        bound = tolerance * eager.double().abs().max().clamp(min=1e-30) if eager.numel() else 0
        assert ((eager.double() - ours.double()).abs() <= bound).all()
    elif isinstance(eager, dict):
        assert list(eager) == list(ours)
        for key in eager:
            agree(eager[key], ours[key], tolerance)
    elif isinstance(eager, list | tuple):
        assert len(eager) == len(ours)
        for one, other in zip(eager, ours, strict=True):
            agree(one, other, tolerance)
    else:
        assert eager == ours


def same(eager: Training, ours: Training, tolerance: float = RESULTS_AGREE) -> None:
    agree(eager.losses, ours.losses) if tolerance == 0 else None
    agree(dict(eager.model.state_dict()), dict(ours.model.state_dict()), tolerance)
    agree(eager.optimizer.state_dict(), ours.optimizer.state_dict(), tolerance)


def train(make: MakeOptimizer, steps: int = 200, **more: Any) -> tuple[Training, Training]:
    """Both trained on the same batches under "no warnings", compared, handed back."""
    eager, ours = pair(make, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for made in (eager, ours):
            made.run(batches(steps))
    same(eager, ours)
    return eager, ours


OPTIMIZERS: dict[str, tuple[MakeOptimizer, int]] = {
    # The update, and how many graphs it is compiled to over 200 steps: SGD's first step with
    # momentum makes its buffers.
    "adam": (lambda m: torch.optim.Adam(m.parameters()), 1),
    "adam_decay": (lambda m: torch.optim.Adam(m.parameters(), 1e-2, weight_decay=0.01), 1),
    "adam_amsgrad": (lambda m: torch.optim.Adam(m.parameters(), amsgrad=True), 1),
    "adam_maximize": (lambda m: torch.optim.Adam(m.parameters(), 1e-4, maximize=True), 1),
    "adam_betas": (lambda m: torch.optim.Adam(m.parameters(), betas=(0.0, 0.5)), 1),
    "adamw": (lambda m: torch.optim.AdamW(m.parameters(), weight_decay=0.1), 1),
    "sgd": (lambda m: torch.optim.SGD(m.parameters(), 0.05), 1),
    "sgd_momentum": (lambda m: torch.optim.SGD(m.parameters(), 0.05, momentum=0.9), 2),
    "sgd_nesterov": (
        lambda m: torch.optim.SGD(
            m.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=0.01
        ),
        2,
    ),
    "rmsprop": (lambda m: torch.optim.RMSprop(m.parameters(), 1e-3), 1),
    "rmsprop_centered": (
        lambda m: torch.optim.RMSprop(m.parameters(), 1e-3, momentum=0.9, centered=True),
        1,
    ),
    "adagrad": (lambda m: torch.optim.Adagrad(m.parameters(), lr_decay=0.01), 1),
    "adadelta": (lambda m: torch.optim.Adadelta(m.parameters()), 1),
    "adamax": (lambda m: torch.optim.Adamax(m.parameters()), 1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_update_is_compiled_and_agrees(name: str) -> None:
    make, graphs = OPTIMIZERS[name]
    _, ours = train(make)
    found = compiled(ours)
    assert not found.outcomes
    assert (found.graph_count, found.graph_break_count) == (graphs, 1), found
    assert found.externs == ()
