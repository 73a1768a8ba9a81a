"""Learning rates that change within the step: whole steps, the scheduler's state as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedulers

import jitmagic

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step": lambda opt: schedulers.StepLR(opt, 2),
    "cosine": lambda opt: schedulers.CosineAnnealingLR(opt, 5),
    "function": lambda opt: schedulers.LambdaLR(opt, lambda epoch: 0.9**epoch),
}


def step(model: nn.Module, opt: Any, scheduler: Any, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    scheduler.step()
    return loss.detach(), scheduler.get_last_lr()[0]


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS.keys())
def test_a_step_of_a_scheduler_belongs_to_the_graph(make: Callable[[Any], Any]) -> None:
    plain = nn.Linear(6, 3)
    sides: list[Any] = []
    for model in (plain, copy.deepcopy(plain)):
        opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        sides.append((model, opt, make(opt)))
    compiled = jitmagic.jit(step, backend="eager", fullgraph=True)
    for _ in range(5):
        x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
        wanted, got = step(*sides[0], x, y), compiled(*sides[1], x, y)
        torch.testing.assert_close(got[0], wanted[0])
        assert got[1] == wanted[1]
        assert sides[0][2].last_epoch == sides[1][2].last_epoch
