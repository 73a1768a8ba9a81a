"""torch.func in traced code beyond values: randomness, errors, tensors that the inner function
reads, writes and stores, modules called with other tensors. Programs that are not one graph break
and are right.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, stack_module_state, vjp, vmap

import jitmagic

from ..counts import counts_of
from ..harness import Program, check

torch.manual_seed(0)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3, bias=False)
        self.b = nn.Linear(3, 3, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)))


class ReadsTables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        total = sum(p.sum() for p in self.parameters())
        return total * self.inner(x) + self.inner._parameters["weight"].sum()


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.n = self.n + 1
        return x + self.n


class CountsInPlace(Counts):
    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        return x + self.n


class Drops(Counts):
    def forward(self, x: Tensor) -> Tensor:
        made, self.n = x + self.n, None
        return made


class Raises(Counts):
    def forward(self, x: Tensor) -> Tensor:
        self.n = self.n + 1
        raise ValueError("no result")


class Square(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient * ctx.saved_tensors[0]


TIED, TABLES, COUNTS = Tied(), ReadsTables(), Counts()
COUNTED = [Counts(), CountsInPlace(), Drops()]
RAISES, TWICE = Raises(), nn.Sequential(*[CountsInPlace()] * 2)
NORMED = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())
MODELS = [nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)) for _ in range(3)]
STACKED, _ = stack_module_state(MODELS)  # type: ignore[arg-type]
SKELETON = copy.deepcopy(MODELS[0]).to("meta")


def _own(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in module.named_parameters()}


# -- whole -----------------------------------------------------------------------------------------


def draws_per_row(x: Tensor, w: Tensor) -> Any:
    def row(r: Tensor) -> Tensor:
        return F.dropout(r @ w, 0.5, True) + torch.rand_like(r).sum() + torch.randn(4)

    return vmap(row, randomness="different")(x)


def draws_once(x: Tensor, w: Tensor) -> Any:
    return vmap(lambda r: F.dropout(r @ w, 0.5, True), randomness="same")(x)


def draws_under_grad(x: Tensor, w: Tensor) -> Any:
    return grad(lambda w: F.dropout(x @ w, 0.5, True)[torch.randperm(4)][0].pow(2).sum())(w)


def makes_tensors(x: Tensor, w: Tensor) -> Any:
    def row(r: Tensor) -> Tensor:
        made = torch.zeros(3) + torch.tensor([1.0, 2.0, 3.0]) + torch.arange(3, device="cpu")
        return r + made.to(r.dtype) + torch.ones_like(r) + r.new_full((3,), 2.0).to("cpu")

    return vmap(row)(x)


def raises_and_is_caught(x: Tensor, w: Tensor) -> Any:
    def refuse(x: Tensor) -> Tensor:
        raise ValueError("no")

    try:
        return grad(refuse)(x)
    except ValueError:
        return x + 1


def counts_its_calls(x: Tensor, w: Tensor) -> Any:
    calls = 0
    seen: list[Any] = []

    def loss(x: Tensor, w: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        seen.append((tuple(x.shape), x.requires_grad, torch.is_grad_enabled()))
        return (x @ w).sum()

    with torch.no_grad():
        return grad(loss)(x, w), calls, seen


def keeps_what_nobody_reads(x: Tensor, w: Tensor) -> Any:
    kept: dict[str, Tensor] = {}

    def loss(x: Tensor) -> Tensor:
        kept["h"] = torch.tanh(x @ w)
        return kept["h"].sum()

    return grad(loss)(x), list(kept)


def aux_is_an_argument(x: Tensor, w: Tensor) -> Any:
    gradient, aux = grad(lambda x, w: ((x @ w).sum(), w), has_aux=True)(x, w)
    return gradient, aux is w


def functions_of_torch(x: Tensor, w: Tensor) -> Any:
    scaled = vmap(functools.partial(torch.mul, w[0, 0]))(x)
    return scaled, vmap(torch.dot)(x, x), grad(torch.sum)(x)


def low_precision(x: Tensor, w: Tensor) -> Any:
    half, weight = x.bfloat16(), w.bfloat16()
    rows = vmap(lambda r: torch.softmax(r @ weight, -1))(half)
    return rows, grad(lambda h: torch.softmax(h @ weight, -1)[..., 0].sum())(half)


def keeps_a_pullback(x: Tensor, w: Tensor) -> Any:
    return [vjp(torch.sin, x)[1](x)[0], len({1: vjp(torch.cos, x)[1]})]


def tied_weights(x: Tensor, w: Tensor) -> Any:
    doubled = {name: value * 2 for name, value in _own(TIED).items()}
    gradient = grad(lambda p: functional_call(TIED, p, x).sum())(doubled)
    return functional_call(TIED, doubled, (x,)), gradient, TIED(x).detach()


def untied_weights(x: Tensor, w: Tensor) -> Any:
    return functional_call(TIED, {"a.weight": w[:, :3]}, x, tie_weights=False)


def a_module_that_reads_its_tables(x: Tensor, w: Tensor) -> Any:
    given = {"inner.weight": w[:, :3], "inner.bias": w[0, :3]}
    return functional_call(TABLES, given, (x,))


def statistics_in_a_dictionary(x: Tensor, w: Tensor) -> Any:
    buffers = {name: buffer.clone() for name, buffer in NORMED.named_buffers()}
    return functional_call(NORMED, (_own(NORMED), buffers), (x,)), buffers


def buffers_are_replaced(x: Tensor, w: Tensor) -> Any:
    made = []
    for module in COUNTED:
        buffers = {"n": w[:, 0].detach() * 1}
        made += functional_call(module, buffers, (x,)), buffers, module.n.clone()
    return made


def a_buffer_is_replaced_before_an_error(x: Tensor, w: Tensor) -> Any:
    buffers = {"n": w[:, 0].detach() * 1}
    try:
        functional_call(RAISES, buffers, (x,))
    except ValueError as error:
        return str(error), buffers, RAISES.n.clone()


def an_ensemble(x: Tensor, w: Tensor) -> Any:
    """Run the code of a meta module with the weights of three."""
    weights = {name: value.detach().to(x.dtype) for name, value in STACKED.items()}
    return vmap(lambda p, x: functional_call(SKELETON, p, (x,)), (0, None))(weights, x)


def gradients_per_sample(x: Tensor, w: Tensor) -> Any:
    weights = {name: value.detach().to(x.dtype) for name, value in _own(MODELS[0]).items()}

    def loss(p: dict[str, Tensor], row: Tensor) -> Tensor:
        return functional_call(MODELS[0], p, (row[None],)).pow(2).mean()

    return vmap(grad(loss), (None, 0))(weights, x)


WHOLE = [
    draws_per_row, draws_once, draws_under_grad, makes_tensors, raises_and_is_caught,
    counts_its_calls, keeps_what_nobody_reads, aux_is_an_argument, functions_of_torch,
    low_precision, keeps_a_pullback, tied_weights, untied_weights, a_module_that_reads_its_tables,
    statistics_in_a_dictionary, buffers_are_replaced, a_buffer_is_replaced_before_an_error,
    an_ensemble, gradients_per_sample,
]  # fmt: skip

# -- with a graph break ----------------------------------------------------------------------------


def draws_where_it_must_not(x: Tensor, w: Tensor) -> Any:
    return vmap(lambda r: F.dropout(r, 0.5, True))(x)


def no_scalar(x: Tensor, w: Tensor) -> Any:
    return grad(lambda x: x @ w)(x)


def wrong_in_dims(x: Tensor, w: Tensor) -> Any:
    return vmap(torch.mul, in_dims=(0,))(x, w)


def sizes_differ(x: Tensor, w: Tensor) -> Any:
    return vmap(lambda a, b: a.sum() + b.sum())(x, w)


def tangents_of_another_dtype(x: Tensor, w: Tensor) -> Any:
    return jvp(lambda x: x.sin(), (x,), (x.to(torch.int64),))


def batched_written_to_plain(x: Tensor, w: Tensor) -> Any:
    def row(r: Tensor) -> Tensor:
        made = torch.zeros(3, dtype=r.dtype)
        return made.add_(r)

    return vmap(row)(x)


def looks_at_data(x: Tensor, w: Tensor) -> Any:
    return vmap(lambda r: r * r.sum().item())(x)


def keeps_a_tensor(x: Tensor, w: Tensor) -> Any:
    kept = []

    def loss(x: Tensor) -> Tensor:
        kept.append((x @ w).detach())
        return kept[0].sum() + x.sum()

    return grad(loss)(x), tuple(kept[0].shape)


def changes_a_list_in_chunks(x: Tensor, w: Tensor) -> Any:
    calls = []

    def row(r: Tensor) -> Tensor:
        calls.append(1)
        return r.sum()

    return vmap(row, chunk_size=2)(x), len(calls)


def writes_to_its_argument(x: Tensor, w: Tensor) -> Any:
    y = x.clone()
    return vmap(lambda r: r.add_(1).sum())(y.detach()), y


def asks_what_requires_grad(x: Tensor, w: Tensor) -> Any:
    seen = []

    def row(r: Tensor) -> Tensor:
        seen.append((w * 2).requires_grad)
        return r @ w

    return vmap(row)(x), seen


def calls_an_autograd_function(x: Tensor, w: Tensor) -> Any:
    return grad(lambda x: Square.apply(x).sum())(x)


def under_autocast(x: Tensor, w: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return grad(lambda x: (x @ w).float().sum())(x).to(torch.float32)


def two_values_for_a_tied_tensor(x: Tensor, w: Tensor) -> Any:
    return functional_call(TIED, {"a.weight": w[:, :3], "b.weight": w[:, 1:]}, (x,))


def a_name_that_is_none(x: Tensor, w: Tensor) -> Any:
    return functional_call(TABLES, {"nothing": w}, (x,)).detach(), hasattr(TABLES, "nothing")


def a_module_under_two_names(x: Tensor, w: Tensor) -> Any:
    buffers = {"0.n": w[:, 0].detach() * 1}
    return functional_call(TWICE, buffers, (x,)), buffers, TWICE[0].n


BROKEN = [
    draws_where_it_must_not, no_scalar, wrong_in_dims, sizes_differ, tangents_of_another_dtype,
    batched_written_to_plain, looks_at_data, keeps_a_tensor, changes_a_list_in_chunks,
    writes_to_its_argument, asks_what_requires_grad, calls_an_autograd_function, under_autocast,
    two_values_for_a_tied_tensor, a_name_that_is_none, a_module_under_two_names,
]  # fmt: skip


def _calls() -> Any:
    torch.manual_seed(7)
    return [(torch.randn(4, 3, requires_grad=True), torch.randn(3, 4, requires_grad=True))]


def _double(function: Any) -> Any:
    """Compare modules in float32 with the program itself instead of float64."""
    return lambda x, w: function(x.float(), w.float())


MODULES = (
    tied_weights, untied_weights, a_module_that_reads_its_tables, statistics_in_a_dictionary,
    buffers_are_replaced, a_buffer_is_replaced_before_an_error,
)  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", WHOLE, ids=lambda f: f.__name__)
def test_whole(function: Any, backend: str) -> None:
    run = _double(function) if function in MODULES else function
    options = {"backend": backend, "fullgraph": True}
    check(Program(function.__name__, lambda: run, _calls, options=options))


@pytest.mark.filterwarnings("ignore::jitmagic.errors.FallbackWarning")
@pytest.mark.parametrize("function", BROKEN, ids=lambda f: f.__name__)
def test_with_a_break(function: Any) -> None:
    run = _double(function)
    check(Program(function.__name__, lambda: run, _calls, options={"backend": "eager"}))
    jitmagic.reset()
    tagged = jitmagic.jit(lambda x, w: function(x, w), backend="eager")
    try:
        tagged(*_calls()[0])
    except (RuntimeError, ValueError):
        pass
    assert counts_of(tagged).breaks


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_number_that_outlives_the_function(backend: str) -> None:
    """From the second value on the number is a symbol, computed in the graph of the function."""

    def run(x: Tensor, scale: float) -> Any:
        twice = 0.0

        def loss(x: Tensor) -> Tensor:
            nonlocal twice
            twice = scale * 2.0
            return (x * scale + twice).sin().sum()

        return grad(loss)(x) * twice

    x, tagged = _calls()[0][0].detach(), jitmagic.jit(run, backend=backend)
    for scale in (0.5, 1.5, 2.5):
        torch.testing.assert_close(tagged(x, scale), run(x, scale))


def test_escaping_vjp_function_runs_in_eager() -> None:
    """The function is called after its graph has been released."""
    x, _ = _calls()[0]
    tagged = jitmagic.jit(lambda x: vjp(torch.sin, x)[1], backend="eager")
    assert torch.equal(tagged(x)(x)[0], torch.cos(x) * x)
    assert counts_of(tagged).breaks


def test_transformed_function_escapes_the_graph() -> None:
    made = jitmagic.jit(lambda w: grad(lambda x: (x @ w).pow(2).sum()), fullgraph=True)
    x, w = _calls()[0]
    assert torch.equal(made(w)(x), grad(lambda x: (x @ w).pow(2).sum())(x))
