"""Whole training steps as one graph: forward, backward(), clipping and the optimizer's update.

A family: optimizers x clipping x how gradients are taken away x what the model and the losses are
like. Two copies of a model train on the same batches, one with a tagged step. Compared at each step
are the loss, parameters and buffers, gradients (which are None, their layout), and the optimizer's
state; at the end what was compiled: one graph, and no break.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic

from ..counts import counts_of
from .test_optimizers import agree

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
STEPS = 4
TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-9}


class Tied(nn.Module):
    """One weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 6, bias=False), nn.Linear(6, 6)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.decode(torch.tanh(self.encode(x)))
        return made


class Shared(nn.Module):
    """A module called twice, a parameter that nothing uses, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.unused, self.frozen = nn.Linear(6, 6), nn.Linear(3, 3), nn.Linear(6, 6)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.frozen(torch.relu(self.block(torch.relu(self.block(x)))))
        return made


def normalized() -> nn.Module:
    """No bias in front: its gradient is nothing but rounding."""
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 6))


def dropped() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.0), nn.LayerNorm(8), nn.Linear(8, 6))


def convolved() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 6))


MODELS = {
    "batch norm": normalized, "dropout": dropped, "tied": Tied, "shared": Shared, "conv": convolved,
}  # fmt: skip
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, 1e-2),
    "amsgrad": lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-2, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
    "nadam": lambda p: torch.optim.NAdam(p, 1e-2),
    "nadam, lists": lambda p: torch.optim.NAdam(p, 1e-2, foreach=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, 1e-2),
    "a rate in a tensor": lambda p: torch.optim.Adam(p, torch.tensor(1e-2)),
}


@dataclass(frozen=True)
class Kind:
    """How a step is put together."""

    clip: str = ""
    to_none: bool = True
    losses: str = "one"
    given: bool = False  # the input requires grad

    def step(self) -> Callable[..., Any]:
        def train(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Any:
            optimizer.zero_grad(set_to_none=self.to_none)
            loss = LOSSES[self.losses](model, x, y)
            if self.clip == "norm":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            elif self.clip == "value":
                nn.utils.clip_grad_value_(model.parameters(), 0.05)
            optimizer.step()
            return loss

        return train


def one(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    return loss.detach()


def returned(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A loss that nobody detached."""
    loss = F.mse_loss(model(x), y)
    loss.backward()
    return loss


def two(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Two backwards through one history."""
    out = model(x)
    first, second = F.mse_loss(out, y), out.abs().mean()
    first.backward(retain_graph=True)
    second.backward()
    return first.detach() + second.detach()


def parts(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Gradients accumulated over two micro-batches."""
    total = torch.zeros((), dtype=x.dtype)
    for part, wanted in zip(x.chunk(2), y.chunk(2), strict=True):
        loss = F.mse_loss(model(part), wanted) / 2
        loss.backward()
        total += loss.detach()
    return total


def seeded(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A gradient of the caller's instead of a loss."""
    out = model(x)
    torch.autograd.backward([out, out.sum()], [y, torch.tensor(0.5, dtype=x.dtype)])
    return out.detach().sum()


def penalized(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The norm of gradients that backward() has left with a history is part of the loss."""
    loss = F.mse_loss(model(x), y)
    loss.backward(create_graph=True)
    norms = [(p.grad**2).sum() for p in model.parameters() if p.grad is not None]
    total = loss + 0.1 * torch.stack(norms).sum()
    model.zero_grad()
    total.backward()
    return total.detach()


PLAIN = (one, returned, two, parts, seeded)
LOSSES: dict[str, Loss] = {f.__name__: f for f in (*PLAIN, penalized)}


def grads(model: nn.Module) -> Iterator[Any]:
    for parameter in model.parameters():
        grad = parameter.grad
        yield None if grad is None else (grad.detach().clone(), grad.stride(), grad.requires_grad)


def trained(step: Any, made: tuple[nn.Module, Any], kind: Kind, dtype: torch.dtype) -> list[Any]:
    """All that the steps show."""
    model, optimizer = made
    generator = torch.Generator().manual_seed(3)
    seen: list[Any] = []
    for _ in range(STEPS):
        x = torch.randn(8, 6, generator=generator, dtype=dtype).requires_grad_(kind.given)
        y = torch.randn(8, 6, generator=generator, dtype=dtype)
        loss = step(model, optimizer, x, y)
        seen += [loss.detach().clone(), loss.requires_grad, *grads(model)]
        seen.append(None if x.grad is None else x.grad.clone())
        seen.append(copy.deepcopy((dict(model.state_dict()), optimizer.state_dict())))
    return seen


def check(kind: Kind, model: str, optimizer: str, dtype: torch.dtype, backend: str) -> None:
    torch.manual_seed(7)
    start = MODELS[model]().to(dtype)
    pairs = [(copied := copy.deepcopy(start), OPTIMIZERS[optimizer](copied.parameters()))]
    pairs.append((start, OPTIMIZERS[optimizer](start.parameters())))
    step = kind.step()
    tagged = jitmagic.jit(step, backend=backend, fullgraph=True)
    want = trained(step, pairs[0], kind, dtype)
    got = trained(tagged, pairs[1], kind, dtype)
    agree(want, got, TOLERANCE[dtype])
    counts = counts_of(tagged)
    assert (counts.breaks, counts.graphs) in {(0, 1), (0, 2)}, counts


NAMES = [loss.__name__ for loss in PLAIN]
KINDS = [Kind(*parts) for parts in itertools.product(("", "norm", "value"), (True, False), NAMES)]


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_family_on_the_traced_graph(number: int) -> None:
    """Each kind of step in both dtypes, with a model and an optimizer that change from one to the
    next: all of these in both dtypes too.
    """
    models, optimizers = list(MODELS), list(OPTIMIZERS)
    for offset in range(2):
        dtype = (torch.float32, torch.float64)[(number + offset) % 2]
        model = models[(number + offset * 3) % len(models)]
        optimizer = optimizers[(number * 3 + offset * 5) % len(optimizers)]
        check(KINDS[number], model, optimizer, dtype, "eager")


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("model", MODELS)
def test_a_penalty_on_gradients(model: str, backend: str) -> None:
    kind = Kind(losses="penalized", clip="norm")
    check(kind, model, "adam", torch.float64, backend)


@pytest.mark.parametrize("number", range(0, len(KINDS), 4))
def test_family_on_generated_kernels(number: int) -> None:
    models, optimizers = list(MODELS), list(OPTIMIZERS)
    dtype = (torch.float32, torch.float64)[number // 4 % 2]
    check(KINDS[number], models[number % 5], optimizers[number % 7], dtype, "native")
