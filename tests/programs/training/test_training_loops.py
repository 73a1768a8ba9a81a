"""Loops of training steps: Python runs them, and one compiled round serves all rounds.

Each pair of a scheduler and an optimizer of torch, in a function and with global variables, as at
the top level of a notebook's cell.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import SWALR

import jitmagic

from ...covering import covered
from ..counts import breaks_of, counts_of, eager_of

Make = Callable[[Any], Any]
STEPS = 12

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda params: torch.optim.SGD(params, 0.05, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, 0.01),
    "adamw": lambda params: torch.optim.AdamW(params, 0.01),
    "rmsprop": lambda params: torch.optim.RMSprop(params, 0.001, momentum=0.5),
}
# Each with the number of graphs that twelve steps may have: the first step, which creates the
# optimizer's state, the later ones, and one more where the program takes another branch.
SCHEDULERS: dict[str, tuple[Make, int]] = {
    "step": (lambda opt: schedulers.StepLR(opt, 5), 5),
    "milestones": (lambda opt: schedulers.MultiStepLR(opt, [3, 8]), 5),
    "constant": (lambda opt: schedulers.ConstantLR(opt, total_iters=4), 5),
    "linear": (lambda opt: schedulers.LinearLR(opt, total_iters=6), 4),
    "exponential": (lambda opt: schedulers.ExponentialLR(opt, 0.9), 2),
    "polynomial": (lambda opt: schedulers.PolynomialLR(opt, 8, power=0.9), 4),
    "cosine": (lambda opt: schedulers.CosineAnnealingLR(opt, 60), 2),
    "restarts": (lambda opt: schedulers.CosineAnnealingWarmRestarts(opt, 5), 3),
    "one cycle": (lambda opt: schedulers.OneCycleLR(opt, 0.1, total_steps=STEPS + 1), 4),
    "cyclic": (lambda opt: schedulers.CyclicLR(opt, 1e-3, 0.1, step_size_up=5), 4),
    "lambda": (lambda opt: schedulers.LambdaLR(opt, lambda epoch: 0.95**epoch), 2),
    "factor": (lambda opt: schedulers.MultiplicativeLR(opt, lambda epoch: 0.95), 2),
    "plateau": (lambda opt: schedulers.ReduceLROnPlateau(opt, patience=2), 3),
    "chained": (
        lambda opt: schedulers.ChainedScheduler(
            [schedulers.ConstantLR(opt, total_iters=3), schedulers.ExponentialLR(opt, 0.9)]
        ),
        4,
    ),
    "sequential": (
        lambda opt: schedulers.SequentialLR(
            opt, [schedulers.LinearLR(opt, total_iters=5), schedulers.ExponentialLR(opt, 0.9)], [5]
        ),
        6,
    ),
    "averaging": (lambda opt: SWALR(opt, 0.01, anneal_epochs=5), 4),
}

CELL = """\
def cell():
    global loss, rates, step
    rates = []
    for step in range(steps):
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        scheduler.step(*(loss.item(),) * by_loss)
        rates.append(opt.param_groups[0]["lr"])
"""


def fit(
    model: nn.Module, x: Tensor, y: Tensor, opt: Any, scheduler: Any, steps: int, by_loss: bool
) -> tuple[Tensor, list[float]]:
    rates = []
    for _ in range(steps):
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        scheduler.step(*(loss.item(),) * by_loss)
        rates.append(opt.param_groups[0]["lr"])
    return loss, rates


def made(optimizer: str, scheduler: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    x, y = torch.randn(8, 4).double(), torch.randn(8, 2).double()
    opt = OPTIMIZERS[optimizer](model.parameters())
    make, _ = SCHEDULERS[scheduler]
    names = "model", "x", "y", "opt", "scheduler", "steps", "by_loss"
    values = model, x, y, opt, make(opt), STEPS, scheduler == "plateau"
    return dict(zip(names, values, strict=True))


def run_cell(given: dict[str, Any], tag: Callable[[Any], Any]) -> tuple[Tensor, list[float]]:
    """As notebook/cell.py has the top level of a cell."""
    namespace = {"F": F, **given}
    exec(CELL, namespace)
    tag(namespace["cell"])()
    return namespace["loss"], namespace["rates"]


def state_of(given: dict[str, Any]) -> list[Any]:
    """What can be compared, schedulers within a scheduler included."""

    def numbers(state: dict[str, Any]) -> dict[str, Any]:
        return {name: v for name, v in state.items() if type(v) in (int, float, bool)}

    scheduler = given["scheduler"]
    parts = [scheduler, *getattr(scheduler, "_schedulers", ())]
    state = given["opt"].state_dict()
    return [
        *(list(given["model"].parameters())),
        [list(of_one.values()) for of_one in state["state"].values()],
        *(numbers(group) for group in state["param_groups"]),
        *(numbers(part.state_dict()) for part in parts),
    ]


@covered(scheduler=SCHEDULERS, optimizer=OPTIMIZERS, place=("function", "cell"))
def test_rounds_of_a_training_loop_share_graphs(scheduler: str, optimizer: str, place: str) -> None:
    eager, ours = made(optimizer, scheduler), made(optimizer, scheduler)
    tagged: list[Any] = []

    def tag(function: Any) -> Any:
        tagged.append(jitmagic.jit(function, backend="eager"))
        return tagged[0]

    if place == "cell":
        wanted, got = run_cell(eager, lambda function: function), run_cell(ours, tag)
    else:
        wanted, got = fit(**eager), tag(fit)(**ours)
    torch.testing.assert_close(got[0], wanted[0])
    assert got[1] == pytest.approx(wanted[1], rel=1e-12, abs=0.0)
    for mine, other in zip(state_of(ours), state_of(eager), strict=True):
        torch.testing.assert_close(mine, other)
    assert not eager_of(tagged[0])
    assert counts_of(tagged[0]).graphs <= SCHEDULERS[scheduler][1]


def loops(model: nn.Module, x: Tensor, opt: Any, rounds: int, form: str) -> Tensor:
    if form == "range":
        for _ in range(rounds):
            opt.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            opt.step()
    elif form == "while":
        step = 0
        while step < rounds:
            step += 1
            opt.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            opt.step()
    elif form == "batches":
        for _, part in enumerate([x, x + 1] * (rounds // 2)):
            opt.zero_grad()
            loss = model(part).square().sum()
            loss.backward()
            opt.step()
    elif form == "epochs":
        for epoch in range(2):
            for n in range(rounds // 2):
                loss = model(x).square().sum() * (epoch + n)
                loss.backward()
                opt.step()
                opt.zero_grad()
    else:
        loss = loops(model, x, opt, rounds, "range")
    return loss


@pytest.mark.parametrize("form", ["range", "while", "batches", "epochs", "callee"])
@pytest.mark.parametrize("rounds", [2, 40])
def test_a_training_loop_is_rolled_unless_it_is_short(form: str, rounds: int) -> None:
    torch.manual_seed(0)
    sides = []
    x = torch.randn(3, 4).double()
    for tag in (lambda fn: fn, lambda fn: jitmagic.jit(fn, backend="eager")):
        torch.manual_seed(1)
        model = nn.Linear(4, 2).double()
        opt = torch.optim.Adam(model.parameters(), 0.01)
        compiled = tag(loops)
        loss = compiled(model, x, opt, rounds, form)
        sides.append([loss, *model.parameters(), opt.state_dict()["state"]])
    torch.testing.assert_close(sides[1], sides[0])
    is_rolled = any("computes gradients" in reason for reason in breaks_of(compiled))
    assert is_rolled == (rounds > 2 or form == "while")  # whose trip count is not known
    assert counts_of(compiled).graphs <= (4 if is_rolled else 1)


def test_few_rounds_are_one_graph() -> None:
    """Micro-batches whose gradients are accumulated."""

    def step(model: nn.Module, parts: list[Tensor]) -> None:
        for part in parts:
            model(part).square().sum().backward()

    model = nn.Linear(4, 2)
    compiled = jitmagic.jit(step, backend="eager")
    compiled(model, [torch.randn(3, 4) for _ in range(4)])
    assert not breaks_of(compiled)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_the_loop_of_lbfgs_is_pythons_and_the_closure_is_compiled(
    search: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch.compile, where it has run in this process, has disabled the method and what it calls.
    plain = torch.no_grad()(inspect.unwrap(torch.optim.LBFGS.step))
    monkeypatch.setattr(torch.optim.LBFGS, "step", plain)

    def step(model: nn.Module, x: Tensor, opt: Any) -> Tensor:
        def closure() -> Tensor:
            opt.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            return loss

        return opt.step(closure)  # type: ignore[no-any-return]

    x = torch.randn(3, 4).double()
    sides = []
    for tag in (lambda fn: fn, lambda fn: jitmagic.jit(fn, backend="eager")):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
        opt = torch.optim.LBFGS(model.parameters(), 0.1, line_search_fn=search)
        compiled = tag(step)
        losses = [compiled(model, x, opt) for _ in range(3)]
        sides.append([losses, *model.parameters()])
    torch.testing.assert_close(sides[1], sides[0])
    assert counts_of(compiled).graphs == 1
