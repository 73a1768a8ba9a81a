"""Programs with inner graphs at dynamic sizes: gradients, autograd functions, transforms, and calls
whose C++ reads sizes as ints. One trace and one joint graph serve all sizes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import _meta_registrations
from torch._functorch import eager_transforms
from torch.nn import functional as F

import jitmagic
from jitmagic.api import handle_of
from jitmagic.records import COMPILED

SIZES = (8, 5, 9, 16, 3, 12, 7)
W = torch.randn(4, requires_grad=True)
NET = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
CLASSES = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))
IMAGES = torch.nn.Sequential(
    torch.nn.Conv1d(1, 3, 3), torch.nn.BatchNorm1d(3), torch.nn.ReLU(), torch.nn.Flatten()
)
LSTM = torch.nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True)


class Scaled(torch.autograd.Function):
    """Reads sizes in its backward, of what it saved and of what its context holds."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        ctx.rows = x.shape[0]
        return x * x * w

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        return 2 * grad * x * w / x.shape[0], (grad * x * x).sum(0) * ctx.rows


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.clamp(-1, 1)


def gradient(loss: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Any]:
    """Compute the gradient of a loss with respect to a leaf that the program makes."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.detach().requires_grad_()
        return torch.autograd.grad(loss(y), y)[0]

    return program


def equation(x: torch.Tensor) -> Any:
    """Second derivatives within a loss that is differentiated."""
    y = x.detach().requires_grad_()
    u = NET(y)
    du = torch.autograd.grad(u.sum(), y, create_graph=True)[0]
    d2 = torch.autograd.grad(du.sum(), y, create_graph=True)[0]
    loss = (d2[:, 0] + du[:, 1] - u[:, 0]).square().mean()
    loss.backward()
    made = [p.grad.clone() for p in NET.parameters() if p.grad is not None]
    NET.zero_grad()
    return loss.detach(), made


def penalty(x: torch.Tensor) -> torch.Tensor:
    y = x.detach().requires_grad_()
    out = NET(y)
    d = torch.autograd.grad(out, y, torch.ones_like(out), create_graph=True)[0]
    return ((d.norm(2, dim=1) - 1) ** 2).mean()


def attack(x: torch.Tensor) -> torch.Tensor:
    y = x.detach().requires_grad_()
    F.cross_entropy(CLASSES(y), torch.arange(y.shape[0]) % 3).backward()
    CLASSES.zero_grad()
    return (y + 0.1 * y.grad.sign()).detach()


def per_sample(x: torch.Tensor) -> torch.Tensor:
    def loss(w: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return (w * row).sum().square()

    return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(W.detach(), x)


GRAPHS: dict[str, Callable[[torch.Tensor], Any]] = {
    "a gradient": gradient(lambda y: (y.sin() * torch.arange(y.shape[0])[:, None]).sum()),
    "of a view": gradient(lambda y: y.view(-1, y.shape[0]).sin().sum()),
    "of a diagonal": gradient(lambda y: (y @ y.mT).softmax(0).diagonal().sum()),
    "of an image": gradient(lambda y: F.interpolate(y[None], size=7, mode="linear").sin().sum()),
    "of a norm": gradient(lambda y: IMAGES(y[:, None]).square().sum()),
    "of an LSTM": gradient(lambda y: LSTM(y.view(1, -1, 4))[0].square().sum()),
    "of a function": lambda x: torch.autograd.grad(Scaled.apply(x, W).sum(), W)[0],
    "equation": equation,
    "penalty": penalty,
    "attack": attack,
    "function": lambda x: Scaled.apply(x, W) * 2,
    "straight through": gradient(lambda y: (Rounded.apply(y) * y).sum()),
    "vmap": lambda x: torch.vmap(lambda row: (row * row).sum() / row.shape[0] + x.shape[0])(x),
    "grad": lambda x: torch.func.grad(lambda y: (y.sin() * y.shape[0]).sum())(x),
    "per sample": per_sample,
    "jvp": lambda x: torch.func.jvp(lambda y: y.sin().cumsum(0), (x,), (x * 2,))[1],
    "jacrev": lambda x: torch.func.jacrev(lambda y: (y @ y.mT).sum(0))(x),
    "cov": lambda x: (torch.cov(x), torch.corrcoef(x.mT)),
    "weighted": lambda x: torch.cov(x.mT, aweights=x[:, 0].abs() + 1),
}
CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "linspace": lambda x: torch.linspace(0.0, 1.0, x.shape[0])[:, None] * x,
    "logspace": lambda x: torch.logspace(0.0, 1.0, x.shape[0] + 1, dtype=torch.float64),
    "tril": lambda x: torch.tril_indices(x.shape[0], x.shape[0], 1) + 1,
    "triu": lambda x: torch.triu_indices(x.shape[0], x.shape[0] + 1, -1) + 1,
    "bilinear": lambda x: F.interpolate(
        x[None, None], size=(x.shape[0] // 2 + 1, 5), mode="bilinear"
    ),
    "nearest": lambda x: F.interpolate(x[None], scale_factor=1.5) * 2,
    "bicubic": lambda x: F.interpolate(
        x[None, None], scale_factor=2, mode="bicubic", align_corners=True
    ),
    "antialiased": lambda x: F.interpolate(x[None, None], (4, 9), mode="bilinear", antialias=True),
    "exact": lambda x: F.interpolate(x[None], size=7, mode="nearest-exact"),
}
DIFFERENTIATED: dict[str, Callable[[torch.Tensor], Any]] = {
    "var": lambda x: (x.var(0), x.var(), torch.std_mean(x, 1)[0]),
    "smoothed": lambda x: F.cross_entropy(x, torch.arange(x.shape[0]) % 4, label_smoothing=0.1),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.mT[None].contiguous()] * 3),
    "pooled": lambda x: F.max_pool1d(x.mT, 2, padding=1) * 2,
    "pooled once": lambda x: F.max_pool1d(x.mT[None], (3,), 1, ceil_mode=True),
}


def _leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for item in value for leaf in _leaves(item)]


def _as_eager(program: Callable[[torch.Tensor], Any]) -> Any:
    """Run at all sizes; the records of its compiles."""
    compiled = jitmagic.jit(program, dynamic=True)
    for size in SIZES:
        x = torch.randn(size, 4)
        made, wanted = _leaves(compiled(x.clone())), _leaves(program(x.clone()))
        for a, b in zip(made, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
            assert (a.requires_grad, a.stride()) == (b.requires_grad, b.stride())
            if a.requires_grad:
                kept = [W, *NET.parameters()]
                grads = [torch.autograd.grad(t.sum(), kept, allow_unused=True) for t in (a, b)]
                assert [g is None for g in grads[0]] == [g is None for g in grads[1]]
                pairs = [p for p in zip(*grads, strict=True) if p[0] is not None]
                torch.testing.assert_close(
                    *map(list, zip(*pairs, strict=True)), rtol=1e-3, atol=1e-4
                )
    handle = handle_of(compiled)
    assert handle is not None
    assert all(record.outcome == COMPILED for record in handle.journal)
    return handle.journal


def _kept(journal: Any, word: str) -> list[str]:
    return [str(s.result) for record in journal for s in record.stages if s.stage == word]


def _makes_ints_of_sizes() -> bool:
    """torch 2.11's jacrev counts the rows of its basis in a tensor."""
    source = inspect.getsource(eager_transforms._chunked_standard_basis_for_)
    return "torch.tensor(tensor_numels)" in source


@pytest.mark.parametrize("name", [*GRAPHS, *CALLS])
def test_sizes_are_symbols_in_it(name: str) -> None:
    journal = _as_eager({**GRAPHS, **CALLS}[name])
    if name == "jacrev" and _makes_ints_of_sizes():
        pytest.skip("this torch's jacrev reads sizes as ints: results are eager's, a graph each")
    assert sum(record.result("trace") is not None for record in journal) == 1
    assert not [kept for kept in _kept(journal, "joint for all sizes") if kept.startswith("only")]


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_formulas_of_autograd_compute_with_sizes(name: str) -> None:
    program = DIFFERENTIATED[name]
    compiled = jitmagic.jit(program, dynamic=True)
    for size in SIZES:
        x = torch.randn(size, 4, requires_grad=True)
        totals = [sum(part.sum() for part in _leaves(f(x))) for f in (compiled, program)]
        torch.testing.assert_close(*totals, rtol=1e-4, atol=1e-4)
        ours, eager = (torch.autograd.grad(total, x)[0] for total in totals)
        torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-4)
    handle = handle_of(compiled)
    assert handle is not None
    # torch 2.11 branches on what pooling leaves over: a graph of odd sizes, one of even ones.
    halves = name == "pooled" and "r != 0" in inspect.getsource(_meta_registrations.div_rtn)
    traces = sum(record.result("trace") is not None for record in handle.journal)
    assert traces == 1 + halves
    joints = _kept(handle.journal, "joint for all sizes")
    assert not [kept for kept in joints if kept.startswith("only")]


def test_an_assertion_fails_at_another_size() -> None:
    compiled = jitmagic.jit(lambda x: torch.cov(x.mT, aweights=x[:, 0]), dynamic=True)
    x = torch.rand(6, 4) + 1
    torch.testing.assert_close(compiled(x), torch.cov(x.mT, aweights=x[:, 0]))
    with pytest.raises(RuntimeError, match="cannot be negative"):
        compiled(-torch.rand(9, 4) - 1)
    y = torch.rand(7, 4) + 1
    torch.testing.assert_close(compiled(y), torch.cov(y.mT, aweights=y[:, 0]))


def test_a_gradient_meets_the_hooks_of_an_input() -> None:
    @jitmagic.jit
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(x.sin().sum(), x)[0]

    x = torch.randn(5, requires_grad=True)
    torch.testing.assert_close(program(x), x.cos())
    x.register_hook(lambda grad: grad * 2)
    torch.testing.assert_close(program(x), 2 * x.cos())


@pytest.mark.parametrize("number", [4, 4.5, True])
def test_a_number_that_a_batching_rule_copies(number: float) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: row.sum() + number)(x)

    compiled = jitmagic.jit(program, options={"on_error": "raise"})
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(x), program(x))


# The call, sizes of the first dimension that it takes, one that it refuses, and the variants that
# serve those it takes: the guards may be stricter than the call, never laxer.
REFUSING = {
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x[None, None], 2), (6, 8, 20, 4), 7, 1),
    "thirds": (lambda x: F.pixel_unshuffle(x[None, None, :, :3], 3), (6, 9, 21, 3), 8, 3),
    "channel_shuffle": (lambda x: F.channel_shuffle(x[None, :, :, None], 4), (8, 16, 20, 4), 6, 2),
    "group_norm": (lambda x: F.group_norm(x[None], 3), (6, 9, 21, 3), 7, 1),
    "a least size": (lambda x: F.max_pool1d(x.T[None], 4, 1), (6, 8, 20, 4), 3, 2),
}


@pytest.mark.parametrize("name", REFUSING)
def test_sizes_refused_by_a_call_do_not_affect_others(name: str) -> None:
    call, taken, refused, variants = REFUSING[name]

    def program(x: torch.Tensor) -> torch.Tensor:
        return call(x) * 2

    compiled = jitmagic.jit(program, dynamic=True)
    for rows in taken:
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), program(x))
    handle, x = handle_of(compiled), torch.randn(refused, 4)
    assert handle is not None
    assert handle.ledger.added <= variants
    with pytest.raises(RuntimeError) as eager:
        program(x)
    with pytest.raises(RuntimeError) as ours:
        compiled(x)
    assert str(ours.value) == str(eager.value)
    added = handle.ledger.added
    for rows in taken:
        compiled(torch.randn(rows, 4))
    assert handle.ledger.added == added
