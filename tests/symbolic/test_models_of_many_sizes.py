"""Layers, networks and steps of training at 16 batch sizes and lengths: how often a frame is
compiled, and each result and gradient against eager's, with float64 as the judge of roundings.

A frame is compiled twice, with dynamic=True once; and once more where a size is one. The round of
a loop is compiled once, and once more for a batch of one: the first one, where both states are
one tensor without a history, belongs to the frame.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jitmagic
from jitmagic.api import handle_of
from tests.covering import covered

from .test_sizes_that_change import MODELS, SIZES, Block, Decoder, Model

Sizes = tuple[int, int]
CALLS: dict[str, list[Sizes]] = {
    "batch": [(n, 6) for n in SIZES],
    "length": [(3, n) for n in SIZES],
    "both": [(n, SIZES[(5 * i + 3) % 16]) for i, n in enumerate(SIZES)],  # equal ones are a symbol
}


class Residual(nn.Module):
    """A small ResNet: a stem, blocks at two resolutions, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.down = nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.first, self.second, self.head = Block(), Block(), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.first(self.stem(x)), 2)
        return self.head(self.second(self.down(x)).mean((2, 3)))


class Step(nn.Module):
    """The loss of a step of training a GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Decoder()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.model(x)
        return F.cross_entropy(logits.flatten(0, 1), x.roll(-1, 1).flatten())


ROW: dict[str, Model] = {
    "transformer layer": MODELS["encoder"],
    "mlp": MODELS["mlp"],
    "resnet": (Residual, lambda b, n: torch.randn(b, 3, n + 7, n + 7)),
    "gpt step": (Step, lambda b, n: torch.randint(0, 50, (b, n))),
    "lstm": MODELS["recurrent"],
}


def seen(run: Callable[..., Any], model: nn.Module, x: torch.Tensor, train: bool) -> list[Any]:
    """The result, and the gradients that a loss gives."""
    with torch.set_grad_enabled(train):
        result = run(x)
    if not train:
        return [result]
    model.zero_grad()
    result.square().mean().backward()
    return [result.detach(), *(p.grad for p in model.parameters())]


def within(ours: list[Any], theirs: list[Any], exact: list[Any]) -> None:
    """No further from the exact numbers than four times eager's, or than roundings of the largest:
    a gradient that is zero by rights (that of the keys' bias) is made of them.
    """
    floor = 16 * torch.finfo(torch.float32).eps * max(t.abs().max().item() for t in exact)
    for mine, other, judge in zip(ours, theirs, exact, strict=True):
        assert (mine.dtype, mine.shape, mine.stride()) == (other.dtype, other.shape, other.stride())
        error, allowed = ((t.double() - judge).abs().max().item() for t in (mine, other))
        assert error <= 4 * allowed + floor


def compiles(fn: Any) -> tuple[int, int]:
    """Return the compiles of the frame and of its most often compiled resume function."""
    records = handle_of(fn).journal.records
    traced = Counter(r.frame for r in records if r.result("trace") is not None)
    own = traced.pop(records[0].frame)
    return own, max(traced.values(), default=0)


def check(name: str, calls: list[Sizes], train: bool, **options: Any) -> tuple[int, int]:
    """Every call is right; how often the frame and what goes on behind a loop were compiled."""
    make, inputs = ROW[name]
    torch.manual_seed(0)
    model = make().train(train)
    plain, judge = copy.deepcopy(model), copy.deepcopy(model).double()
    made = jitmagic.jit(model, options={"keep": "compiled"}, **options)
    for b, n in calls:
        x = inputs(b, n)
        exact = x.double() if x.is_floating_point() else x
        ours, theirs = seen(made, model, x, train), seen(plain, plain, x, train)
        within(ours, theirs, seen(judge, judge, exact, train))
    assert handle_of(made).given_up is None
    return compiles(made)


def allowed(name: str, changing: str, dynamic: bool | None) -> tuple[int, int]:
    """The most compiles of the frame, and of what goes on behind a loop."""
    ones = any(1 in sizes for sizes in CALLS[changing])
    return (1 if dynamic else 2) + ones, (1 + ones if name == "lstm" else 0)


@covered(name=ROW, how=[*((c, True) for c in CALLS), ("both", None)], train=[False, True])
def test_compiles_of_a_frame(name: str, how: tuple[str, bool | None], train: bool) -> None:
    changing, dynamic = how
    found = check(name, CALLS[changing], train, dynamic=dynamic, backend="aot_eager")
    assert all(map(operator.le, found, allowed(name, changing, dynamic)))


@pytest.mark.parametrize("name", ROW)
def test_generated_code_of_training(name: str) -> None:
    found = check(name, CALLS["both"], True, dynamic=True)
    assert all(map(operator.le, found, allowed(name, "both", True)))
