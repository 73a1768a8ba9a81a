"""Backwards in stages: autograd gets gradients while later stages have not run yet."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic import api
from jitmagic.autograd.backward_graphs import stages_of
from jitmagic.autograd.joint import trace_joint
from jitmagic.autograd.nodes import placeholders
from jitmagic.autograd.partition import partition
from jitmagic.autograd.stages import mark_stages, split_stages
from jitmagic.spec import spec_of

from .lifting import lift

LAYERS = 4
ran: list[str] = []
options: dict[str, object] = {}


@torch.library.custom_op("tests_stages::noted", mutates_args=())
def noted(x: Tensor, layer: int) -> Tensor:
    return x.clone()


@torch.library.custom_op("tests_stages::noted_backward", mutates_args=())
def noted_backward(grad: Tensor, layer: int) -> Tensor:
    ran.append(f"backward of {layer}")
    return grad.clone()


noted.register_fake(lambda x, layer: torch.empty_like(x))
noted_backward.register_fake(lambda grad, layer: torch.empty_like(grad))
noted.register_autograd(
    lambda ctx, grad: (noted_backward(grad, ctx.layer), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "layer", inputs[1]),
)
noted_backward.register_autograd(lambda ctx, grad: (grad.clone(), None))


class Model(nn.Module):
    """Layers of 16 x 16, each of which notes its backward."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(LAYERS))
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        for n, layer in enumerate(self.layers):
            x = torch.tanh(layer(noted(x, n)))
            x = nn.functional.dropout(x, self.drop, self.training)
        return x


@pytest.fixture(autouse=True, params=[None, True], ids=["static", "dynamic"])
def buckets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile as within DistributedDataParallel, with buckets of one layer each."""
    monkeypatch.setattr(api, "gradient_bucket", lambda: 1024)
    monkeypatch.setitem(options, "dynamic", request.param)
    ran.clear()


def both(drop: float = 0.0, **more: object) -> tuple[Model, Model]:
    return jitmagic.jit(Model(drop), **options, **more), Model(drop)  # type: ignore[call-overload]


def same(compiled: Model, eager: Model) -> None:
    for made, wanted in zip(compiled.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(made.grad, wanted.grad)


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_hooks_of_gradients_run_between_the_stages(backend: str) -> None:
    compiled, eager = both(backend=backend)
    for model in (compiled, eager):
        for n, layer in enumerate(model.layers):
            layer.weight.register_post_accumulate_grad_hook(
                lambda _, n=n: ran.append(f"gradient of {n}")
            )
    x = torch.randn(3, 16, requires_grad=True)
    orders = []
    for model in (compiled, eager):
        ran.clear()
        model(x).sum().backward()
        orders.append([*ran])
    same(compiled, eager)
    for order in orders:
        for n in range(1, LAYERS):
            assert order.index(f"gradient of {n}") < order.index(f"backward of {n - 1}")


def order_of_backward(model: Model, rows: int) -> list[str]:
    """Return the order in which the layers' backwards run and their gradients are complete."""
    ran.clear()
    model.zero_grad()
    x = torch.linspace(-1, 1, rows * 16).view(rows, 16).requires_grad_()
    model(x).square().sum().backward()
    return [*ran]


def test_stages_serve_all_sizes() -> None:
    compiled, eager = both()
    for model in (compiled, eager):
        for n, layer in enumerate(model.layers):
            layer.weight.register_post_accumulate_grad_hook(
                lambda _, n=n: ran.append(f"gradient of {n}")
            )
    for rows in (8, 8, 3, 5, 1, 7, 64):
        order = order_of_backward(compiled, rows)
        for n in range(1, LAYERS):
            assert order.index(f"gradient of {n}") < order.index(f"backward of {n - 1}")
        order_of_backward(eager, rows)
        same(compiled, eager)
    traced = [one for one in api.handle_of(compiled).journal if one.result("trace") is not None]
    assert len(traced) <= 3  # for one size, for all, and for one row


def test_draws_are_those_of_the_forward() -> None:
    compiled, eager = both(0.5)
    x = torch.randn(3, 16)
    for seed in range(3):
        for model in (compiled, eager):
            torch.manual_seed(seed)
            model.zero_grad()
            model(x).sum().backward()
        same(compiled, eager)


def test_a_graph_is_differentiated_twice_if_it_is_retained() -> None:
    compiled, eager = both()
    x = torch.randn(3, 16)
    for model in (compiled, eager):
        made = model(x)
        made.sum().backward(retain_graph=True)
        made.square().sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            made.sum().backward()
    same(compiled, eager)


def test_stages_that_no_wanted_gradient_needs_do_not_run() -> None:
    compiled, eager = both()
    x = torch.randn(3, 16)
    for _ in range(2):
        ran.clear()
        made = torch.autograd.grad(compiled(x).sum(), [compiled.layers[-1].weight])
        wanted = torch.autograd.grad(eager(x).sum(), [eager.layers[-1].weight])
        torch.testing.assert_close(made, wanted)
        assert ran == []


@pytest.mark.filterwarnings("ignore:.*differentiated twice")
def test_gradients_are_differentiable() -> None:
    compiled, eager = both()
    x = torch.randn(3, 16)
    for model in (compiled, eager):
        weights = [layer.weight for layer in model.layers]
        grads = torch.autograd.grad(model(x).square().sum(), weights, create_graph=True)
        sum(grad.square().sum() for grad in grads).backward()  # type: ignore[union-attr]
    same(compiled, eager)


def test_an_error_in_a_stage_ends_the_backward() -> None:
    compiled, _ = both()
    last = compiled.layers[-1].weight
    handle = last.register_post_accumulate_grad_hook(lambda _: 1 / 0)
    x = torch.randn(3, 16)
    with pytest.raises(ZeroDivisionError):
        compiled(x).sum().backward()
    handle.remove()
    compiled.zero_grad()
    eager = Model()
    for model in (compiled, eager):
        model(x).sum().backward()
    same(compiled, eager)


def test_results_may_have_different_histories() -> None:
    class Two(Model):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            first, second, *_ = self.layers
            return first(x).tanh() @ second.weight, second(x).sigmoid()

    compiled, eager = jitmagic.jit(Two(), **options), Two()  # type: ignore[call-overload]
    x = torch.randn(3, 16)
    for losses in (lambda a, b: a.sum(), lambda a, b: b.sum(), lambda a, b: (a * b).sum()):
        for model in (compiled, eager):
            model.zero_grad()
            losses(*model(x)).backward()
        same(compiled, eager)


def test_the_stages_of_a_graph_compute_its_gradients() -> None:
    def run(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return ((x @ a).relu() @ b + x).softmax(-1) @ c.t()

    given = tuple(torch.randn(8, 8, requires_grad=n > 0) for n in range(4))
    gm, inputs = lift(run, given)
    parts = partition(trace_joint(gm, [spec_of(x) for x in inputs]))
    assert parts.backward is not None
    assert split_stages(parts.backward) is None
    mark_stages(parts.backward, 256)
    assert sorted(stages_of(parts.backward)) == [0, 1, 2]
    split = split_stages(parts.backward)
    assert split is not None
    shapes = [node.meta["spec"].shape for node in placeholders(parts.backward)]
    values = [torch.randn(shape) for shape in shapes]
    wanted = parts.backward(*values)
    for stage in split.subgraphs:
        values += stage.graph(*(values[slot] for slot in stage.inputs))
    for slot, gradient in zip(split.outputs, wanted, strict=True):
        torch.testing.assert_close(values[slot], gradient)
