"""Backwards in which some results got no gradient: what only those need does not run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import jitmagic
from jitmagic.autograd.backward_graphs import freed_parts
from tests.covering import covered

from .lifting import compile_like
from .test_functions import t

PLACES = torch.tensor([[0, 2, 1], [2, 0, 0], [1, 1, 2]])
LOOKING_AT_DATA = {  # operations whose backward looks up or divides what it saved
    "scatter_reduce": lambda x: x.scatter_reduce(0, PLACES, x * 2, "amax"),
    "scatter_mean": lambda x: x.scatter_reduce(0, PLACES, x * 2, "mean"),
    "gather": lambda x: x.gather(0, PLACES).gather(1, PLACES),
    "index": lambda x: x.sin()[PLACES, PLACES],
    "take": lambda x: (x * x).take(PLACES),
    "embedding": lambda x: nn.functional.embedding(PLACES, x * x),
    "cross_entropy": lambda x: nn.functional.cross_entropy(x, PLACES[0]),
    "inverse": lambda x: (x @ x.t() + torch.eye(3)).inverse(),
    "max": lambda x: x.max(0).values,
}


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
@pytest.mark.parametrize("name", LOOKING_AT_DATA)
def test_work_for_missing_tangents_does_not_run(name, backend):
    """It may look at stand-ins for saved values: memory beyond their end, if it did."""

    def run(x):
        y = x.tanh() + 1
        z = y * 1
        return LOOKING_AT_DATA[name](z), y * 3

    call = jitmagic.jit(run, backend=backend)
    for wanted in ([1], [0], [0, 1], [1]):

        def gradient(f, chosen=tuple(wanted)):
            x = torch.linspace(-2, 3, 9).view(3, 3).requires_grad_()
            results = f(x)
            sum(results[i].sum() for i in chosen).backward()
            return x.grad

        torch.testing.assert_close(gradient(call), gradient(run), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
@pytest.mark.parametrize("name", ["round", "floor", "ceil", "trunc", "sign", "zero_", "detach"])
def test_zeros_for_a_gradient_are_made_where_there_is_one(name, backend):
    """Zero times infinity is NaN, if the gradient of these is there at all; none is none."""

    def run(x, w):
        y = x.tanh()
        return getattr(y @ w, name)(), y * 3

    call = jitmagic.jit(run, backend=backend)
    for wanted in ([1], [0, 1], [0], [1]):

        def gradients(f, chosen=tuple(wanted)):
            x = torch.linspace(-2, 3, 9).view(3, 3).requires_grad_()
            w = torch.tensor([[1.0, torch.inf, 0.5]] * 3, requires_grad=True)
            losses = [r.sum() for n, r in enumerate(f(x, w)) if n in chosen and r.requires_grad]
            for loss in losses[:1]:
                sum(losses[1:], loss).backward()
            return x.grad, w.grad

        for have, want in zip(gradients(call), gradients(run), strict=True):
            assert (have is None) == (want is None), wanted
            if want is not None:
                torch.testing.assert_close(have, want, equal_nan=True)


GIVING_NOTHING = {  # differentiable results whose formula hands no gradient on
    "no_reflectors": lambda a, tau: torch.linalg.householder_product(a, tau),
    "beside_a_gradient": lambda a, tau: (torch.linalg.householder_product(a, tau), a.sin())[0],
    "behind_an_operation": lambda a, tau: torch.linalg.householder_product(a.sin(), tau * 2).neg(),
    "before_an_operation": lambda a, tau: torch.linalg.householder_product(a, tau) * 3 + 1,
}


@covered(
    name=GIVING_NOTHING,
    shape=[(0, 0), (5, 5), (5, 3)],
    backend=["native", "aot_eager"],
    dtype=[torch.float32, torch.float64],
)
def test_results_without_gradient_flow_give_none(name, backend, shape, dtype):
    """They require grad as in eager, a backward runs, and what it gives is None, not zeros."""
    run = GIVING_NOTHING[name]

    def outcome(f, unused, only):
        a = torch.linspace(-1, 2, shape[0] * shape[1], dtype=dtype).view(shape).requires_grad_()
        tau = torch.ones(0, dtype=dtype, requires_grad=not only)
        y = f(a, tau)
        wanted = (a,) if only else (a, tau)
        try:
            found = torch.autograd.grad(y.sum(), wanted, allow_unused=unused, retain_graph=True)
        except RuntimeError as error:
            found = str(error)
        else:
            found = [grad if grad is None else grad.tolist() for grad in found]
        y.sum().backward()
        grads = [leaf.grad if leaf.grad is None else leaf.grad.tolist() for leaf in (a, tau)]
        return y.tolist(), y.requires_grad, y.is_leaf, found, grads

    call = jitmagic.jit(run, backend=backend, fullgraph=True)
    for unused in (True, False):
        for only in (False, True):
            assert outcome(call, unused, only) == outcome(run, unused, only)


SAVING = {  # what such a gradient is multiplied by on its way is read, though no tangent flows in
    "sqrt": lambda x: x.abs().sqrt(),
    "pow": lambda x: x**3,
    "product": lambda x: x * x.flip(0),
    "norm": lambda x: x / x.norm(dim=1, keepdim=True),
    "matmul": lambda x: x @ x,
}


@covered(name=SAVING, flat=["floor", "sign"], backend=["native", "aot_eager"])
def test_a_gradient_without_tangents_reads_what_was_saved(name, flat, backend):
    """It read a stand-in: memory beyond its end (fuzz --sizes 9800833)."""

    def run(x, other):
        return getattr(SAVING[name](-x), flat)(), other.sum()

    x, other = t(3, 3), t(3)
    parts = compile_like(run, (x, other))[2]
    holders = [n for n in parts.backward.graph.nodes if n.op == "placeholder" and n.users]
    kept = set(range(len(holders))) - {len(holders) - 1}  # the last one is the tangent of `other`
    read = {i for tangents, saved in freed_parts(parts) if 0 in tangents for i in saved}
    assert kept <= read
    call = jitmagic.jit(run, backend=backend)
    for wanted in ([0], [1], [0, 1], [0]):

        def gradients(f, chosen=tuple(wanted)):
            x = torch.linspace(-2, 3, 9).view(3, 3).requires_grad_()
            other = torch.ones(3, requires_grad=True)
            results = f(x, other)
            sum(results[i].sum() for i in chosen).backward()
            return x.grad, other.grad

        assert gradients(call)[0] is None or not gradients(call)[0].any()
        for have, want in zip(gradients(call), gradients(run), strict=True):
            assert (have is None) == (want is None), wanted
            if want is not None:
                torch.testing.assert_close(have, want, rtol=0, atol=0)


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient.sin()


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_a_sum_with_the_gradient_of_an_autograd_function_keeps_its_other_part(backend):
    def run(x):
        return Sine.apply(x) * 2, (x * x).sin()

    call = jitmagic.jit(run, backend=backend)
    for wanted in ([1], [0], [0, 1]):
        found = []
        for function in (call, run):
            x = torch.tensor([1.0, 2.0], requires_grad=True)
            results = function(x)
            sum(results[i].square().sum() for i in wanted).backward()
            found.append(x.grad)
        torch.testing.assert_close(*found)
