"""Branches on tensors whose values are known to lie in a range: no break, eager's random numbers.

What could be otherwise for some input, draw, nan, rounding or write has to stay a break.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitmagic

from ..counts import Counts, counts_of
from ..harness import Program, check

Condition = Callable[[Tensor], Tensor]
_HALF = torch.float16


def filled_view(x: Tensor) -> Tensor:
    y = torch.zeros(4)
    y[1:].fill_(3.0)
    return y[0] > 1


def drawn_in_place(x: Tensor) -> Tensor:
    return torch.empty(2).uniform_(2, 3).mul_(2).min() > 3.5


def read_before_the_write(x: Tensor) -> Tensor:
    y = torch.zeros(())
    z = y * 1
    y.fill_(5)
    return z == 0


def overwritten(x: Tensor) -> Tensor:
    y = torch.rand(())
    y.copy_(x.sum())
    return y < 0


def overwritten_through_a_view(x: Tensor) -> Tensor:
    y = torch.rand(1)
    y.view(-1)[0] = -1.0
    return y < 0


KNOWN: dict[str, Condition] = {
    "a draw is not negative": lambda x: torch.rand([]) < 0.0,
    "a draw is below one": lambda x: torch.rand([], dtype=torch.float64) < 1,
    "a draw with an int": lambda x: torch.rand_like(x).amax() >= 2,
    "a draw in place": drawn_in_place,
    "a draw in place, half-open": lambda x: torch.empty(()).uniform_() == 1.0,
    "an integer draw": lambda x: torch.randint(3, 7, ()) < 3,
    "a negated draw": lambda x: -torch.rand(()) > 0.5,
    "negation": lambda x: ~(torch.rand(()) >= 0),
    "both": lambda x: (torch.rand(3) >= 0).all() & (torch.rand(()) > 2).logical_not(),
    "relu of nan": lambda x: F.relu(x * float("nan")).min() < 0,
    "absolute values": lambda x: x.abs().max() < 0,
    "clamped, with nan": lambda x: (x * float("nan")).clamp(1, 2).amax() < 1,
    "sigmoid": lambda x: torch.sigmoid(x).max() > 1.5,
    "softmax": lambda x: torch.softmax(x, 0)[0] < 0,
    "full": lambda x: torch.full((), 3) == 3,
    "arithmetic": lambda x: torch.zeros(()) * 2 + 1 > 0.5,
    "converted": lambda x: torch.rand(3).to(torch.bfloat16).float().view(3, 1)[0, 0] < 0,
    "a truth as a number": lambda x: (torch.rand(()) < 0).float() + 1,
    "unsigned": lambda x: (x > 0).to(torch.uint8)[0] < 0,
    "read before the write": read_before_the_write,
}  # fmt: skip
OPEN: dict[str, Condition] = {
    "inside the range": lambda x: torch.rand([]) < 0.5,
    "a half draw may be one": lambda x: torch.rand([], dtype=_HALF) < 1.0,
    "zero is no rare half draw": lambda x: torch.rand([], dtype=torch.bfloat16) < 1e-30,
    "uniform may round up": lambda x: torch.empty(()).uniform_(1, 3) < 3,
    "nan is not above": lambda x: F.relu(x * float("nan")).max() >= 0,
    "nan is no number": lambda x: torch.sigmoid(x * float("nan")).max() <= 2,
    "infinity": lambda x: (torch.rand(()) * 1e300 * 1e300) * x.abs().max() >= 0,
    "overflow": lambda x: torch.rand(()) * 1e300 >= 0,
    "integers wrap around": lambda x: (x.to(torch.int8).abs() + 1).min() > 0,
    "a number rounds to the bound": lambda x: torch.rand(()) * 0 + 0.1 > 0.1,
    "a view of another dtype": lambda x: torch.rand(()).view(torch.int32) < 0,
    "overwritten": overwritten,
    "overwritten through a view": overwritten_through_a_view,
    "part of it written": filled_view,
}  # fmt: skip


def _branching(condition: Condition) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        if condition(x):
            return x * 2, torch.rand(2)
        return x - 1, torch.rand(2)

    return program


def _inputs() -> list[tuple[Tensor]]:
    return [(torch.tensor([-1.5, 0.0, 2.0]),)]


@pytest.mark.parametrize("name", KNOWN)
def test_known(name: str) -> None:
    check(Program(name, lambda: _branching(KNOWN[name]), _inputs, graphs=1))


@pytest.mark.parametrize("name", OPEN)
def test_open(name: str) -> None:
    target = _branching(OPEN[name])
    run = jitmagic.jit(target, backend="eager")
    for seed in range(3):
        torch.manual_seed(seed)
        expected = target(*_inputs()[0]), torch.rand(1)
        torch.manual_seed(seed)
        torch.testing.assert_close((run(*_inputs()[0]), torch.rand(1)), expected, equal_nan=True)
    assert counts_of(run).breaks == 1


def layer_drop(x: Tensor, scale: Tensor, probability: float) -> Tensor:
    for _ in range(3):
        if torch.rand([]) < probability:
            continue
        x = torch.tanh(x * scale) + torch.rand(())
    return x


@pytest.mark.parametrize("probability", [0.0, 1e-30, 5e-7])
def test_layers_that_are_hardly_dropped_are_one_graph(probability: float) -> None:
    x, scale = torch.randn(4), torch.randn(4, requires_grad=True)
    run = jitmagic.jit(layer_drop)
    results = []
    for function in (layer_drop, run):
        torch.manual_seed(7)
        result = function(x, scale, probability)
        (gradient,) = torch.autograd.grad(result.sum(), scale)
        results.append((result, gradient, torch.rand(1)))
    torch.testing.assert_close(results[1], results[0])
    assert counts_of(run) == Counts(graphs=1, breaks=0, kernels=counts_of(run).kernels)


def test_the_rare_draw_takes_the_rare_way() -> None:
    x, scale = torch.randn(4), torch.randn(4, requires_grad=True)
    torch.manual_seed(0)
    rare = int((torch.rand(1 << 23) < 5e-7).nonzero()[0])
    run = jitmagic.jit(layer_drop)
    results = []
    for function in (layer_drop, run):
        torch.manual_seed(0)
        torch.rand(rare)
        results.append((function(x, scale, 5e-7), torch.rand(1)))
        torch.manual_seed(0)
        results[-1] += (function(x, scale, 5e-7), torch.rand(1))
    torch.testing.assert_close(results[1], results[0])
    assert counts_of(run).breaks == 0


def test_a_drop_that_happens_stays_a_break() -> None:
    run = jitmagic.jit(layer_drop, backend="eager")
    run(torch.randn(4), torch.randn(4), 0.1)
    assert counts_of(run).breaks > 0
