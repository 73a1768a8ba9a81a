"""torch.autograd.grad within compiled code: gradients that are results, or part of a loss."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jitmagic

from .custom import Clipped, Exp, Square, x
from .lifting import close
from .test_custom_functions import BACKENDS, check, reasons, shown, total, wide

grad = torch.autograd.grad
W = torch.linspace(-1, 1, 4)


def score(a):
    """Guidance: a leaf of its own, whatever the caller's mode."""
    with torch.enable_grad():
        leaf = a.detach().requires_grad_()
        (made,) = grad((leaf.sin() * leaf).sum(), leaf)
    return a + made


def penalty(a, b):
    """WGAN-GP: the norm of a gradient in the loss."""
    between = (a * 0.3 + b * 0.7).detach().clone()
    between.requires_grad = True
    made = (between * a).tanh().sum(1)
    (slope,) = grad(made, between, torch.ones_like(made), create_graph=True)
    return ((slope.norm(2, dim=1) - 1) ** 2).mean() + made.mean()


def curved(a):
    """Derivatives of derivatives with respect to an input of the function."""
    u = (a * a).sin() * a
    (first,) = grad(u.sum(), a, create_graph=True)
    (second,) = grad(first, [a], torch.ones_like(first), create_graph=True)
    return u + first * second


def steps(a, b):
    """MAML: inner steps of gradient descent, differentiated through."""
    for _ in range(2):
        (slope,) = grad(((a * b).tanh() ** 2).mean(), a, create_graph=True)
        a = a - 0.1 * slope
    return ((a * b) ** 2).mean()


def first_order(a, b):
    loss = ((a * b).tanh() ** 2).mean()
    (slope,) = grad(loss, a, retain_graph=True)
    return loss + ((a - 0.1 * slope) * b).sum()


def unused(a, b):
    made, nothing = grad((a * 2).sum(), (a, b), create_graph=True, allow_unused=True)
    return a * b if nothing is None else made


def several(a, b):
    u, v = a * b, a.exp()
    one, two = grad([u, v], [a, b], [torch.ones_like(u), v.detach()], create_graph=True)
    return one * two


def through_functions(a):
    u = Exp.apply(Square.apply(a) * 0.5) + Clipped.apply(a, -0.5)
    (made,) = grad(u.sum(), a, create_graph=True)
    return made * u


PAIR = lambda: (x(), x(seed=1))  # noqa: E731
PROGRAMS = {
    score: lambda: (x(),),
    penalty: PAIR,
    curved: lambda: (x(),),
    steps: PAIR,
    first_order: PAIR,
    unused: PAIR,
    several: PAIR,
    through_functions: lambda: (x(),),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_gradients_within_are_eager_s(function, backend):
    inputs = PROGRAMS[function]
    compiled = jitmagic.jit(function, backend=backend, fullgraph=True)
    for _ in range(2):
        ours, ours_said = shown(compiled, inputs(), False)
        eager, eager_said = shown(function, inputs(), False)
        exact, _ = shown(function, wide(inputs()), False)
        assert repr(ours_said) == repr(eager_said)
        for a, e, w in zip(ours, eager, exact, strict=True):
            assert (a is None) == (e is None)
            if a is not None:
                close(a, e, w)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_a_leaf_of_its_own_in_any_mode(mode):
    compiled = jitmagic.jit(score, fullgraph=True)
    with mode():
        torch.testing.assert_close(compiled(x(grad=False)), score(x(grad=False)))


@pytest.mark.parametrize("function", [curved, steps, penalty])
def test_derivatives_are_derivatives(function):
    inputs = tuple(wide(PROGRAMS[function]()))
    if function is not penalty:  # whose leaf is cut off, which finite differences do not know
        assert torch.autograd.gradcheck(jitmagic.jit(function), inputs)
    torch.testing.assert_close(jitmagic.jit(function)(*inputs), function(*inputs))


def test_a_physics_informed_network_learns_as_in_eager():
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    net.load_state_dict(
        {k: torch.linspace(-1, 1, v.numel()).view(v.shape) for k, v in net.state_dict().items()}
    )

    def residual(points):
        points = points.detach().clone().requires_grad_(True)
        u = net(points)
        du = grad(u, points, torch.ones_like(u), create_graph=True)[0]
        ux, ut = du[:, 0:1], du[:, 1:2]
        uxx = grad(ux, points, torch.ones_like(ux), create_graph=True)[0][:, 0:1]
        return F.mse_loss(ut + u * ux, 0.01 * uxx) + (u**2).mean()

    shows = []
    for run in (residual, jitmagic.jit(residual, fullgraph=True)):
        net.zero_grad()
        loss = run(torch.linspace(-1, 1, 14).view(7, 2))
        loss.backward()
        shows.append([loss.detach(), *(p.grad.clone() for p in net.parameters())])
    torch.testing.assert_close(shows[1], shows[0])


# ----------------------------------------------------------------------------- what is not followed


def freed(a, b):
    """Eager has freed what the gradient of the loss needs."""
    loss = ((a * b).tanh() ** 2).mean()
    (slope,) = grad(loss, a)
    return loss + slope.sum()


@pytest.mark.filterwarnings("ignore:.*:jitmagic.errors.FallbackWarning")
def test_a_result_whose_history_is_freed_raises_as_in_eager():
    assert not reasons(check(freed, total, PAIR))


def cast(a, b):
    with torch.autocast("cpu", torch.bfloat16):
        u = (a @ b.t()).float()
    return grad(u.sum(), a, create_graph=True)[0] * 2


def test_autocast_in_the_frame_is_followed():
    assert not reasons(check(cast, total, PAIR))


def not_used(a, b):
    return grad((a * 2).sum(), (a, b))[0]


def leaf_at_a_break(a, b):
    leaf = (a * b).detach().requires_grad_()
    jitmagic.graph_break()
    return a * grad((leaf * leaf).sum(), leaf)[0]


def history_outside(a, b):
    h = a * b
    jitmagic.graph_break()
    return grad((h * a).sum(), a, create_graph=True)[0] * 2


def batched(a, b):
    u = a * 2
    return (
        grad(u, a, torch.eye(12).view(12, 3, 4), retain_graph=True, is_grads_batched=True)[0].sum()
        + u.sum() * 0
    )


@pytest.mark.parametrize(
    "function",
    [not_used, leaf_at_a_break, history_outside, batched],
    ids=lambda f: f.__name__,
)
@pytest.mark.filterwarnings("ignore:.*:jitmagic.errors.FallbackWarning")
def test_unsupported_differentiation_runs_in_eager(function):
    compiled = check(function, total, PAIR)
    assert reasons(compiled)
