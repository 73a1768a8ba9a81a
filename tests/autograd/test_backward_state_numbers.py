"""Numbers that vary, and draws, of graphs whose backward looks at Python's state again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import dropout, elu
from torch.utils.checkpoint import checkpoint

import jitmagic
from tests.programs.counts import counts_of

from .test_backward_state import function

pytestmark = pytest.mark.filterwarnings("ignore:.*op by op:jitmagic.errors.FallbackWarning")

STATE = SimpleNamespace(scale=2.0)


def number_in_a_cell(x: Tensor, p: float) -> Tensor:
    return checkpoint(lambda y: (elu(y, p) * STATE.scale).sin(), x, use_reentrant=False)


def number_as_argument(x: Tensor, p: float) -> Tensor:
    return checkpoint(lambda y, q: (elu(y, q) * STATE.scale).sin(), x, p, use_reentrant=False)


def number_computed_before(x: Tensor, p: float) -> Tensor:
    half = p / 2
    return checkpoint(lambda y: (elu(y, half) * STATE.scale).sin(), x * p, use_reentrant=False)


SCALED = function(lambda ctx, g: g * ctx.kept * STATE.scale)


def number_on_ctx(x: Tensor, p: float) -> Tensor:
    return SCALED.apply(x * p, p)


def number_read_before(x: Tensor, p: float) -> Tensor:
    return number_in_a_cell(x * p, p)


NUMBERS = [
    number_in_a_cell, number_as_argument, number_computed_before, number_on_ctx, number_read_before,
]  # fmt: skip


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("program", NUMBERS, ids=lambda f: f.__name__)
def test_numbers_that_vary(program, second):
    compiled = jitmagic.jit(program)
    for p in (0.1, 0.25, 0.3, 0.45):
        found = []
        for run in (compiled, program):
            x = torch.linspace(-1, 1, 6, requires_grad=True)
            made = run(x, p)
            STATE.scale = 5.0 if second else 2.0
            try:
                found += torch.autograd.grad(made.sum(), x)
            finally:
                STATE.scale = 2.0
        torch.testing.assert_close(*found)
    assert (counts_of(compiled).breaks, counts_of(compiled).graphs) == (0, 2)


NOISE = SimpleNamespace(on=False)
NOISY = function(lambda ctx, g: g * torch.rand_like(g) if NOISE.on else g * 2)


def noise_after_draws(x: Tensor) -> Tensor:
    return dropout(NOISY.apply(x * 3, None), 0.5)


def noise_before_draws(x: Tensor) -> Tensor:
    return NOISY.apply(dropout(x, 0.5), None)


def noise_after_a_region(x: Tensor) -> Tensor:
    y = checkpoint(lambda y: dropout(y.sin(), 0.5), x * 3, use_reentrant=False)
    return NOISY.apply(y, None).exp()


DRAWING = [noise_after_draws, noise_before_draws, noise_after_a_region]


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("program", DRAWING, ids=lambda f: f.__name__)
def test_a_backward_that_draws_draws_new_numbers(program, differentiable):
    """The graph runs again with its own draws; what is drawn between and after is eager's."""
    found = []
    for run in (jitmagic.jit(program), program):
        for noise in (False, True, True):
            torch.manual_seed(1)
            x = torch.linspace(0.5, 1.5, 6, requires_grad=True)
            made = run(x)
            NOISE.on = noise
            try:
                found.append(torch.rand(2))
                found += torch.autograd.grad(made.sum(), x, create_graph=differentiable)
                found.append(torch.rand(2))
            finally:
                NOISE.on = False
    half = len(found) // 2
    torch.testing.assert_close(found[:half], found[half:])
