"""Backward with create_graph=True: gradients of gradients, as eager gives them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jitmagic

from .lifting import close
from .test_functions import t

pytestmark = pytest.mark.filterwarnings("ignore:.*op by op:jitmagic.errors.FallbackWarning")

grad = torch.autograd.grad
BACKENDS = pytest.mark.parametrize("backend", ["native", "aot_eager"])


def second(function, *inputs):
    """Gradients and the gradients of a function of them, for all inputs that require grad."""
    wanted = [x for x in inputs if x.requires_grad]
    made = function(*inputs)
    results = made if isinstance(made, tuple) else (made,)
    weights = [torch.linspace(0.5, 1.5, r.numel(), dtype=r.dtype).view(r.shape) for r in results]
    first = grad(sum((r * w).sum() for r, w in zip(results, weights)), wanted, create_graph=True)
    again = grad(sum((g * g).sum() for g in first), wanted, allow_unused=True)
    return [*first, *again]


def check(function, *inputs, **options):
    """`second` of the compiled function is eager's, and as near to float64 as that."""
    wide = [
        x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x
        for x in inputs
    ]
    ours = second(jitmagic.jit(function, fullgraph=True, **options), *inputs)
    for a, e, w in zip(ours, second(function, *inputs), second(function, *wide), strict=True):
        assert (a is None) == (e is None)
        if a is not None:
            close(a, e, w)


# -------------------------------------------------------------------------------- what people do


def train(model, loss_of, steps=20, seed=0):
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare_training(model, loss_of, **options):
    eager, exact, ours = copy.deepcopy(model), copy.deepcopy(model).double(), model
    compiled = jitmagic.jit(ours, **options)
    ours, eager = train(compiled, loss_of), train(eager, loss_of)
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)
    assert eager[-1] < eager[0]
    return ours, exact


def mlp(*sizes, activation=nn.Tanh):
    torch.manual_seed(1)
    layers = [m for a, b in zip(sizes, sizes[1:]) for m in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers[:-1])


@BACKENDS
def test_a_physics_informed_network(backend):
    x = torch.linspace(-1, 1, 32).unsqueeze(1).requires_grad_()

    def loss_of(model):
        u = model(x)
        u_x = grad(u.sum(), x, create_graph=True)[0]
        u_xx = grad(u_x.sum(), x, create_graph=True)[0]
        return (u_xx + torch.pi**2 * torch.sin(torch.pi * x)).pow(2).mean() + u[[0, -1]].pow(
            2
        ).sum()

    compare_training(mlp(1, 16, 16, 1), loss_of, backend=backend)


def test_a_network_whose_residual_is_one_compiled_function():
    """The differentiation is inside: the frame has breaks there, and the pieces go together."""
    model = mlp(1, 8, 1)

    @jitmagic.jit
    def residual(x):
        u = model(x)
        u_x = grad(u.sum(), x, create_graph=True)[0]
        return (u_x - u * x).pow(2).mean()

    def gradients(function):
        model.zero_grad()
        function(torch.linspace(0, 1, 8).unsqueeze(1).requires_grad_()).backward()
        return [p.grad.clone() if p.grad is not None else None for p in model.parameters()]

    for a, e in zip(gradients(residual), gradients(residual.__wrapped__)):
        assert (a is None) == (e is None)
        if a is not None:
            torch.testing.assert_close(a, e)


def test_a_gradient_penalty():
    torch.manual_seed(0)
    critic = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(4, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(8 * 16, 1),
    )
    real, fake = torch.randn(6, 1, 8, 8), torch.randn(6, 1, 8, 8) * 0.5 + 1

    def loss_of(model):
        mix = torch.rand(6, 1, 1, 1)
        between = (mix * real + (1 - mix) * fake).requires_grad_()
        slope = grad(model(between).sum(), between, create_graph=True)[0]
        penalty = (slope.flatten(1).norm(2, dim=1) - 1).pow(2).mean()
        return model(fake).mean() - model(real).mean() + 10 * penalty

    compare_training(critic, loss_of)


def test_forces_and_their_gradients():
    class Energy(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(2)
            self.net = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 1))

        def forward(self, pos):
            apart = (pos.unsqueeze(0) - pos.unsqueeze(1)).pow(2).sum(-1) + torch.eye(len(pos)).to(
                pos
            )
            r = apart.sqrt()
            basis = torch.stack([torch.exp(-((r - c) ** 2)) for c in (0.5, 1.0, 1.5, 2.0)], -1)
            return self.net(basis).sum()

    torch.manual_seed(3)
    pos, wanted = torch.randn(5, 3), torch.randn(5, 3) * 0.1

    def loss_of(model):
        at = pos.clone().requires_grad_()
        forces = -grad(model(at), at, create_graph=True)[0]
        return (forces - wanted).pow(2).mean()

    compare_training(Energy(), loss_of)


def test_a_step_of_maml():
    x, y = torch.linspace(-2, 2, 16).unsqueeze(1), torch.linspace(-2, 2, 16).unsqueeze(1).sin()

    def loss_of(model):
        weights = dict(model.named_parameters())
        for _ in range(2):
            inner = F.mse_loss(torch.func.functional_call(model, weights, (x[::2],)), y[::2])
            slopes = grad(inner, list(weights.values()), create_graph=True)
            weights = {n: w - 0.1 * g for (n, w), g in zip(weights.items(), slopes)}
        return F.mse_loss(torch.func.functional_call(model, weights, (x[1::2],)), y[1::2])

    compare_training(mlp(1, 16, 1), loss_of)


def test_maml_by_hand():
    @jitmagic.jit(fullgraph=True)
    def net(x, w, b, v):
        return torch.tanh(x @ w + b) @ v

    def outer(net):
        x, w, b, v = t(8, 2, grad=False), t(2, 4), t(4), t(4, 1)
        inner = net(x, w, b, v).pow(2).mean()
        slopes = grad(inner, (w, b, v), create_graph=True)
        stepped = [p - 0.3 * g for p, g in zip((w, b, v), slopes)]
        return grad((net(x, *stepped) - 1).pow(2).mean(), (w, b, v))

    for a, e in zip(outer(net), outer(net.__wrapped__)):
        torch.testing.assert_close(a, e)


def test_hessian_vector_product_and_the_whole_hessian():
    def f(x):
        return (x.sin() * x.roll(1)).sum().exp()

    compiled = jitmagic.jit(f, fullgraph=True)
    x, v = t(5), t(5, grad=False)
    for function in (torch.autograd.functional.hvp, torch.autograd.functional.vhp):
        torch.testing.assert_close(function(compiled, x, v), function(f, x, v))
    hessian = torch.autograd.functional.hessian
    torch.testing.assert_close(hessian(compiled, x), hessian(f, x))


def test_four_orders():
    def orders(f, x):
        made = [f(x).sum()]
        for _ in range(4):
            made.append(grad(made[-1].sum(), x, create_graph=True)[0])
        return made[1:]

    def f(x):
        return (x.sin() * x).exp()

    x = t(6)
    wide = x.detach().double().requires_grad_()
    for a, e, w in zip(orders(jitmagic.jit(f), x), orders(f, x), orders(f, wide), strict=True):
        close(a, e, w)


# --------------------------------------------------------------------------------- operations


@BACKENDS
@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: F.layer_norm(x, (4,), w[0], w[1]),
        lambda x, w: F.gelu(x @ w),
        lambda x, w: F.gelu(x @ w, approximate="tanh"),
        lambda x, w: (x @ w).softmax(-1),
        lambda x, w: F.log_softmax(x @ w, 0),
        lambda x, w: F.silu(x) * F.softplus(x @ w),
        lambda x, w: F.cross_entropy(x @ w, torch.tensor([0, 3, 1])),
        lambda x, w: F.binary_cross_entropy_with_logits(x @ w, (x.detach() > 0).to(x)),
        lambda x, w: (x @ w).std(0) + (x * x).mean(),
        lambda x, w: torch.cat([x, x @ w]).norm(dim=1),
        lambda x, w: torch.einsum("ab,cb->ac", x, w).cumsum(0).prod(1),
        lambda x, w: torch.where(x > 0, x.exp(), x @ w),
        lambda x, w: (x.detach() * x @ w).pow(3),
        lambda x, w: (-2.0) ** (x @ w).round() * w[0],
        lambda x, w: torch.view_as_real(torch.view_as_complex((x @ w).view(3, 2, 2)) ** 2),
        lambda x, w: x[[0, 2, 0]] ** 2 @ w.t(),
        lambda x, w: (
            F.conv1d(x.unsqueeze(0).tanh(), w.view(2, 1, 8)[:, :, :3].expand(2, 3, 3)) ** 2
        ),
        lambda x, w: F.avg_pool1d(x.unsqueeze(0), 2) ** 2 + F.max_pool1d((x @ w).unsqueeze(0), 2),
        lambda x, w: F.interpolate((x @ w).view(1, 1, 3, 4), scale_factor=2, mode="bilinear") ** 2,
    ],
)
def test_operations(function, backend):
    check(function, t(3, 4), t(4, 4, scale=0.7), backend=backend)


def test_attention():
    def attend(q, k, v):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v)

    def by_hand(q, k, v):
        return ((q @ k.transpose(-2, -1)) / 2).softmax(-1) @ v

    parts = t(1, 2, 3, 4), t(1, 2, 3, 4, scale=0.7), t(1, 2, 3, 4, scale=-0.4)
    check(by_hand, *parts)
    ours, eager = second(jitmagic.jit(attend), *parts), second(attend, *parts)
    for a, e in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, e)


def test_what_eager_cannot_differentiate_twice_raises_as_there():
    def attend(q):
        return F.scaled_dot_product_attention(q, q, q)

    q = t(1, 2, 3, 4)
    said = []
    for function in (attend, jitmagic.jit(attend)):
        with pytest.raises(RuntimeError) as info:
            second(function, q)
        said.append(str(info.value).splitlines()[0])
    assert "is not implemented" in said[0]
    assert said[1] == said[0]


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Tanh()).train(training)
    other = copy.deepcopy(model)
    x = t(4, 2, 5, 5)
    compiled = jitmagic.jit(model, fullgraph=True)
    for a, e in zip(second(compiled, x), second(other, x), strict=True):
        close(a, e, None)
    for (name, ours), theirs in zip(model.named_buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)  # written once, not by the replay too
    assert model[1].num_batches_tracked.item() == (1 if training else 0)


@pytest.mark.parametrize("draw", ["dropout", "noise", "product"])
def test_draws_are_the_same_again(draw):
    functions = {
        "dropout": lambda x, w: F.dropout((x @ w).tanh(), 0.5),
        "noise": lambda x, w: (x + torch.randn_like(x)) @ w,
        "product": lambda x, w: torch.rand_like(x) * (x @ w) ** 2,
    }
    function, x, w = functions[draw], t(6, 6), t(6, 6)
    states = []

    def run(function):
        torch.manual_seed(3)
        made = function(x, w)
        torch.rand(7)  # the generator goes on before the backward
        first = grad((made**2).sum(), (x, w), create_graph=True)
        again = grad(sum((g * g).sum() for g in first), (x, w))
        states.append(torch.get_rng_state())
        return [made, *first, *again]

    for a, e in zip(run(jitmagic.jit(function, fullgraph=True)), run(function), strict=True):
        close(a, e, None)
    assert torch.equal(*states)


def test_modes_are_those_of_the_call():
    def function(x, w):
        with torch.no_grad():
            scale = x.exp()
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ w
        return (y.float() * scale).sin() * w.detach()

    def casting(x, w):
        return (x @ w).float().tanh().pow(2)

    x, w = t(4, 4), t(4, 4)
    compiled = jitmagic.jit(function)
    for a, e in zip(second(compiled, x, w), second(function, x, w), strict=True):
        torch.testing.assert_close(a, e, rtol=2e-2, atol=2e-2)

    def under(function):
        with torch.autocast("cpu", torch.bfloat16):
            y = function(x, w)
        first = grad(y.sum(), (x, w), create_graph=True)
        return [*first, *grad(sum((g * g).sum() for g in first), (x, w))]

    for a, e in zip(under(jitmagic.jit(casting)), under(casting), strict=True):
        torch.testing.assert_close(a, e, rtol=2e-2, atol=2e-2)
    assert not torch.is_autocast_enabled("cpu")
