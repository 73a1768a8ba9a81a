"""Gradients taken in the frame of operations that autocast has cast: whole steps, one graph each.

A family: where the casts end x what the model is like x who runs the graph. Two copies of a model
train on the same batches, one with a tagged step.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic
from tests.covering import covered

from ..counts import counts_of

Step = Callable[..., Tensor]
LOW = {"rtol": 3e-2, "atol": 3e-2}  # bfloat16: eager keeps casts of a weight, we cast it anew


def around_the_loss(model: nn.Module, opt: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    return loss.detach()


def around_backward(model: nn.Module, opt: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x), y) / 2
        loss.backward()
    result = loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=False)
    return result


def around_a_part(model: nn.Module, opt: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = model(x)
        with torch.autocast("cpu", enabled=False):
            loss = F.cross_entropy(made.float(), y)
    grads = torch.autograd.grad(loss, list(model.parameters()))
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        parameter.grad = grad
    opt.step()
    return loss.detach()


class Twice(nn.Module):
    """One weight in two products, and an operation in float32 between them."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.last = nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(F.layer_norm(self.block(self.block(x).softmax(-1)), (6,)))
        return made


MODELS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5)),
    "conv": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 5)
    ),
    "twice": Twice,
}


@covered(
    step=[around_the_loss, around_backward, around_a_part],
    model=MODELS,
    backend=["eager", "native"],
)
def test_a_step_is_one_graph(step: Step, model: str, backend: str) -> None:
    torch.manual_seed(0)
    plain = MODELS[model]()
    ours = copy.deepcopy(plain)
    compiled = jitmagic.jit(step, backend=backend, fullgraph=True)
    sides: list[Any] = [(f, m, torch.optim.SGD(m.parameters(), 0.05, momentum=0.9))
                        for f, m in ((step, plain), (compiled, ours))]  # fmt: skip
    for _ in range(3):
        x, y = torch.randn(4, 6), torch.randint(0, 5, (4,))
        wanted, got = (function(model, opt, x, y) for function, model, opt in sides)
        torch.testing.assert_close(got, wanted, **LOW)
        for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
            torch.testing.assert_close(b, a, **LOW)
            assert (a.grad is None) == (b.grad is None)
            if a.grad is not None:
                torch.testing.assert_close(b.grad, a.grad, **LOW)
    assert counts_of(compiled).breaks == 0


def test_a_gradient_of_a_gradient() -> None:
    def penalty(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made = torch.tanh(x @ w).float().pow(2).sum()
        (g,) = torch.autograd.grad(made, w, create_graph=True)
        return torch.autograd.grad(g.pow(2).sum(), x)[0]

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    for backend in ("eager", "native"):
        got = jitmagic.jit(penalty, backend=backend, fullgraph=True)(x, w)
        torch.testing.assert_close(got, penalty(x, w), rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("saves", [True, False])
def test_a_second_backward_raises_where_eager_raises(saves: bool) -> None:
    """What the casts kept for the first is gone; a sum keeps nothing."""

    def twice(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made = (x @ w).sum() if saves else x.sum()
        made.backward()
        made.backward()
        return made.detach()

    def outcome(function: Callable[..., Tensor]) -> object:
        x, w = torch.ones(3, 4, requires_grad=True), torch.ones(4, 2, requires_grad=True)
        try:
            return function(x, w), x.grad
        except RuntimeError as error:
            return str(error)[:60]

    assert str(outcome(jitmagic.jit(twice))) == str(outcome(twice))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_step_with_scaled_gradients_is_one_graph(backend: str) -> None:
    """Whether a gradient is infinite is read in torch's code: it is as in the call compiled for,
    and eager runs where it is not.
    """

    def step(
        model: nn.Module, opt: torch.optim.Optimizer, scaler: torch.amp.GradScaler, x: Tensor
    ) -> Tensor:
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        return loss.detach()

    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    pair = [model, copy.deepcopy(model)]
    opts = [torch.optim.SGD(one.parameters(), 0.1, momentum=0.9) for one in pair]
    scalers = [torch.amp.GradScaler("cpu", growth_interval=2) for _ in pair]
    compiled = jitmagic.jit(step, backend=backend)
    for n in range(6):
        x = torch.randn(5, 4)
        x[0, 0] = float("inf") if n in (2, 3) else 1.0
        ours, theirs = (
            run(pair[i], opts[i], scalers[i], x) for i, run in ((0, compiled), (1, step))
        )
        torch.testing.assert_close(ours, theirs, **LOW, equal_nan=True)
        assert scalers[0].get_scale() == scalers[1].get_scale()
    for mine, plain in zip(*(one.parameters() for one in pair), strict=True):
        torch.testing.assert_close(mine, plain, **LOW)
    assert counts_of(compiled).breaks == 0


def _step_by_hand(x: Tensor) -> Tensor:
    loss = (x @ torch.ones(6, 3)).float().square().sum()  # once: else bf16 gradients are added up
    loss.backward()
    with torch.no_grad():
        x.sub_(x.grad)
    x.grad = None
    return loss


def _product_and_write(x: Tensor) -> Tensor:
    y = x @ x
    with torch.no_grad():
        x.add_(1)
    return y


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
@pytest.mark.parametrize("program", [_step_by_hand, _product_and_write])
def test_what_a_block_keeps_behind_a_call(program: Callable[..., Any], backend: str) -> None:
    """The frame writes to a leaf that it has cast: what comes later in the block finds the cast."""

    def seen(step: Callable[..., Any]) -> list[list[float]]:
        x = torch.randn(6, 6, generator=torch.Generator().manual_seed(3)).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16), warnings.catch_warnings():
            warnings.simplefilter("ignore", jitmagic.FallbackWarning)
            made = [step(x), step(x), x @ x]
        return [t.detach().float().flatten().tolist() for t in (*made, x)]

    assert seen(jitmagic.jit(program, backend=backend)) == seen(program)


@pytest.mark.parametrize("calls", [1, 3])
def test_a_step_within_a_block_is_compiled(calls: int) -> None:
    """And runs as eager from its second call in a block on, which takes the casts of the first."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))

    def run(jit: Callable[..., Any]) -> tuple[list[float], Callable[..., Any]]:
        own = copy.deepcopy(model)
        optimizer = torch.optim.SGD(own.parameters(), lr=0.5)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = own(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        made, losses = jit(step), []
        for n in range(3):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(n))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                losses += [made(x).item() for _ in range(calls)]
                losses.append(own(x).sum().item())
        return losses, made

    wanted, _ = run(lambda step: step)
    found, tagged = run(partial(jitmagic.jit, backend="aot_eager", fullgraph=True))
    assert found == pytest.approx(wanted, rel=1e-6)
    assert counts_of(tagged).graphs > 0


def test_a_step_in_which_nothing_can_raise_is_one_graph() -> None:
    """Its calls are not tried on the tensors before their casts."""

    def step(model: nn.Module, opt: Any, x: Tensor) -> Tensor:
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        opt.step()
        return loss.detach()

    compiled = jitmagic.jit(step, backend="eager", fullgraph=True)
    losses = []
    for run in (step, compiled):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        opt = torch.optim.AdamW(model.parameters(), 0.01)
        losses.append([run(model, opt, torch.randn(5, 4)) for _ in range(3)])
    torch.testing.assert_close(losses[1], losses[0], **LOW)
    assert counts_of(compiled).breaks == 0
