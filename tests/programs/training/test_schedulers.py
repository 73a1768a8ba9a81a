"""Learning rates that change within the step: whole steps, the scheduler's state as in eager."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedulers

import jitmagic

from ..counts import counts_of, eager_of

Make = Callable[[Any], Any]
_WARM = 3


def _warmed(epoch: int) -> float:
    """As model libraries write it."""
    if epoch < _WARM:
        return epoch / max(1, _WARM)
    progress = float(epoch - _WARM) / float(max(1, 40 - _WARM))
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * 0.5 * 2.0 * progress)))


# Each with the number of variants that 30 steps may have: one for the first step, which makes the
# optimizer's state, one for the others, one for each place where the program takes another branch.
SCHEDULERS: dict[str, tuple[Make, int]] = {
    "step": (lambda opt: schedulers.StepLR(opt, 10), 5),
    "milestones": (lambda opt: schedulers.MultiStepLR(opt, [5, 20]), 5),
    "cosine": (lambda opt: schedulers.CosineAnnealingLR(opt, 7, eta_min=1e-4), 4),
    "restarts": (lambda opt: schedulers.CosineAnnealingWarmRestarts(opt, 15), 4),
    "one cycle": (lambda opt: schedulers.OneCycleLR(opt, 0.1, total_steps=50), 4),
    "function": (lambda opt: schedulers.LambdaLR(opt, lambda epoch: 0.9**epoch), 2),
    "warmed": (lambda opt: schedulers.LambdaLR(opt, _warmed), 4),
    "root": (lambda opt: schedulers.LambdaLR(opt, lambda n: min((n + 1) ** -0.5, n * 0.01)), 3),
    "power": (lambda opt: schedulers.PolynomialLR(opt, 60, power=0.9), 3),
    "linear": (lambda opt: schedulers.LinearLR(opt, total_iters=10), 4),
    "exponential": (lambda opt: schedulers.ExponentialLR(opt, 0.97), 2),
}


def step(model: nn.Module, opt: Any, scheduler: Any, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    scheduler.step()
    return loss.detach(), scheduler.get_last_lr()[0]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_steps_of_a_scheduler_belong_to_one_graph(name: str, backend: str) -> None:
    make, most = SCHEDULERS[name]
    plain = nn.Linear(6, 3)
    sides: list[Any] = []
    for model in (plain, copy.deepcopy(plain)):
        opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        sides.append((model, opt, make(opt)))
    compiled = jitmagic.jit(step, backend=backend, fullgraph=True)
    for _ in range(30):
        x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
        wanted, got = step(*sides[0], x, y), compiled(*sides[1], x, y)
        torch.testing.assert_close(got[0], wanted[0])
        assert got[1] == wanted[1]
        assert sides[0][2].last_epoch == sides[1][2].last_epoch
    assert not eager_of(compiled)
    assert counts_of(compiled).graphs <= most


def fit(make: Make, w: Tensor, x: Tensor, pause: bool) -> tuple[Any, Any]:
    """All that a notebook's function of that name makes and returns."""
    weight = nn.Parameter(w.clone())
    opt = torch.optim.SGD([weight], 0.1, momentum=0.9)
    scheduler = make(opt)
    for _ in range(3):
        opt.zero_grad()
        (x @ weight).square().mean().backward()
        opt.step()
        scheduler.step()
        if pause:
            print(end="")
    return opt, scheduler


@pytest.mark.parametrize("pause", [False, True])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_made_within_goes_on_as_eagers(name: str, pause: bool) -> None:
    make, _ = SCHEDULERS[name]
    compiled = jitmagic.jit(fit, backend="eager", fullgraph=not pause)
    w, x = torch.randn(6), torch.randn(4, 6)
    shown = []
    for run in (fit, compiled, compiled):
        opt, scheduler = run(make, w, x, pause)
        opt.step()
        scheduler.step()
        state = {k: v for k, v in scheduler.state_dict().items() if not callable(v)}
        state.pop("lr_lambdas", None)
        [weight] = opt.param_groups[0]["params"]
        shown.append([weight.detach(), state, opt.step.__name__, scheduler.optimizer is opt])
    for got in shown[1:]:
        torch.testing.assert_close(got[0], shown[0][0])
        assert got[1:] == shown[0][1:]
    assert not eager_of(compiled)


def test_a_divisor_that_becomes_zero_raises_as_in_eager() -> None:
    class Clock:
        def __init__(self) -> None:
            self.now = 0

    def program(x: Tensor, clock: Clock) -> Tensor:
        clock.now += 1
        return x * (2.0 / (1 + math.cos(math.pi * clock.now / 8)))

    ours, eager = Clock(), Clock()
    compiled, x = jitmagic.jit(program), torch.ones(3)
    for call in range(1, 20):
        if call == 8:
            with pytest.raises(ZeroDivisionError):
                program(x, eager)
            with pytest.raises(ZeroDivisionError):
                compiled(x, ours)
        else:
            assert torch.equal(compiled(x, ours), program(x, eager))
        assert ours.now == eager.now == call
    assert counts_of(compiled).graphs == 2
