"""Parameters made in a frame, and other leaves that it hands out: one graph, eager's gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

import jitmagic
from tests.covering import covered

from ..counts import counts_of
from ..harness import assert_alike

Results = tuple[Any, ...]


def ones() -> Parameter:
    return Parameter(torch.ones(3))


def returned_twice(x: Tensor) -> Results:
    w = ones()
    return w, w, (x * w).sum()


def beside_its_data(x: Tensor) -> Results:
    w = ones()
    return w, w.detach(), w.data, x * w


def views_of_one(x: Tensor) -> Results:
    w = Parameter(torch.ones(4))
    v = w.view(2, 2)
    return w, v, v[0] * 2, x[:2] * w[1:3]


def a_view_alone(x: Tensor) -> Results:
    return Parameter(torch.ones(4)).view(2, 2), x * 2


def of_an_input(x: Tensor) -> Results:
    w = Parameter(x)
    return w, (w * 2).sum()


def of_another(x: Tensor) -> Results:
    a = ones()
    b = Parameter(a)
    return a, b, (a * b).sum()


def frozen(x: Tensor) -> Results:
    w, of_x = Parameter(torch.ones(3), requires_grad=False), Parameter(x, False)
    return w, w * x, of_x, of_x * 2


def its_source_is_written(x: Tensor) -> Results:
    source = torch.zeros(3)
    w = Parameter(source)
    source.add_(1)
    return source, w, (w * x).sum()


def written_behind_its_use(x: Tensor) -> Results:
    w = ones()
    y = (w * x).sum()
    with torch.no_grad():
        w.mul_(2)
    return w, w.sum(), y.detach()


def through_data(x: Tensor) -> Results:
    w = ones()
    w.data.fill_(2)
    return w, (w * x).sum()


def initialised(x: Tensor) -> Results:
    w, b = Parameter(torch.empty(3, 3)), Parameter(torch.empty(3))
    nn.init.xavier_uniform_(w)
    nn.init.zeros_(b)
    return w, b, F.linear(x, w, b)


def what_it_says(x: Tensor) -> Results:
    w = ones()
    facts = w.requires_grad, w.is_leaf, w.grad_fn is None, w.grad is None
    return isinstance(w, Parameter), type(w) is Parameter, *facts, w * x


def with_its_gradient(x: Tensor) -> Results:
    w = ones()
    (w * x.detach()).square().sum().backward()
    return w, w.grad


def without_grad_mode(x: Tensor) -> Results:
    with torch.no_grad():
        w = ones()
        y = w * x
    return w, y, w * x


def a_chain(x: Tensor) -> Results:
    a = ones()
    b = a * 2
    c = Parameter(b.detach())
    return a, b, c, (b * c).sum()


def linear(x: Tensor) -> Results:
    made = nn.Linear(3, 2)
    return made(x), made.weight, made.bias


def parameters_that_die(x: Tensor) -> Results:
    return nn.Linear(3, 2)(x), nn.ParameterList([ones(), ones()])[1] + x


def normalised(x: Tensor) -> Results:
    made = nn.BatchNorm1d(3)
    y = made(torch.stack([x, x * 2]))
    return y, made.weight, made.running_mean, made.num_batches_tracked


def in_a_dict(x: Tensor) -> Results:
    held = nn.ParameterDict({"a": ones(), "b": ones()})
    return held["a"], held["b"], held["a"] * x + held["b"]


def a_leaf_of_no_class(x: Tensor) -> Results:
    leaf = (x.detach() + 1).requires_grad_()
    return leaf, leaf.exp(), x * leaf


def complex_numbers(x: Tensor) -> Results:
    w = Parameter(torch.ones(3, dtype=torch.complex64))
    return w, (w * x).abs().sum()


def many(x: Tensor) -> Results:
    made = [Parameter(torch.full((3,), float(n))) for n in range(3)]
    return *made, sum(w * x for w in made)


WHOLE = [
    *(returned_twice, beside_its_data, views_of_one, a_view_alone, of_an_input, of_another),
    *(frozen, its_source_is_written, through_data, initialised),
    *(what_it_says, with_its_gradient, without_grad_mode, a_chain, linear, parameters_that_die),
    *(normalised, in_a_dict, a_leaf_of_no_class, complex_numbers, many),
]


def differentiated(x: Tensor) -> Results:
    w = ones()
    y = (w * x.detach()).square().sum()
    return w, torch.autograd.grad(y, w, create_graph=True)[0]


def a_view_from_before(x: Tensor) -> Results:
    leaf = torch.zeros(4)
    view = leaf[:2]
    leaf.requires_grad_()
    return leaf, view, leaf * 2


def switched_off(x: Tensor) -> Results:
    w = ones().requires_grad_(False)
    return w, w * x


def hooked(x: Tensor) -> Results:
    w = ones()
    w.register_hook(lambda grad: grad * 2)
    return w, w * x


BROKEN = [written_behind_its_use, differentiated, a_view_from_before, switched_off, hooked]


def told(part: Any) -> list[Any]:
    """What can be seen of a result."""
    if not isinstance(part, Tensor):
        return [part]
    grad = part.grad.clone() if part.is_leaf and part.grad is not None else None
    facts = type(part), part.requires_grad, part.is_leaf, part._version, grad is None
    return [facts, part.detach().clone(), torch.zeros(()) if grad is None else grad]


def seen(program: Callable[[Tensor], Results], grad: bool, seed: int) -> list[Any]:
    """The results, what they share, and the gradients between them."""
    torch.manual_seed(seed)
    x = torch.randn(3, requires_grad=grad)
    results = program(x)
    tensors = [part for part in results if isinstance(part, Tensor)]
    told_of = [fact for part in (*results, x) for fact in told(part)]
    pairs = [(a, b) for n, a in enumerate(tensors) for b in tensors[:n]]
    shared = [a.data_ptr() == b.data_ptr() for a, b in pairs]
    same = [a is b for a, b in pairs]
    leaves = [t for t in (*tensors, x) if t.is_leaf and t.requires_grad]
    gradients = [
        torch.zeros(()) if found is None else found.clone()
        for head in tensors
        if head.grad_fn is not None and leaves
        for found in torch.autograd.grad(
            head.abs().sum(), leaves, retain_graph=True, allow_unused=True
        )
    ]
    return [*told_of, shared, same, *gradients]


@covered(program=WHOLE + BROKEN, backend=["eager", "aot_eager", "native"], grad=[False, True])
def test_as_eager(program: Callable[[Tensor], Results], backend: str, grad: bool) -> None:
    tagged = jitmagic.jit(program, backend=backend)
    for seed in range(2):
        assert_alike(seen(tagged, grad, seed), seen(program, grad, seed))
    assert program in BROKEN or counts_of(tagged).breaks == 0


class MadeLate(nn.Module):
    """Has its parameters when it is called for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = None

    def forward(self, x: Tensor) -> Tensor:
        if self.scale is None:
            self.scale = Parameter(torch.ones(x.shape[-1]))
        if not hasattr(self, "shift"):
            self.register_parameter("shift", Parameter(torch.zeros(x.shape[-1])))
        return x * self.scale + self.shift


class Renewed(nn.Module):
    """Other parameters and another submodule at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(3, 3), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        before = self.linear.weight
        self.linear.weight = Parameter(before.detach() + 1)
        self.linear.bias = Parameter(torch.zeros(3))
        self.act = nn.Tanh()
        return self.act(self.linear(x) / 8) + before.mean().detach()


class PutBack(Renewed):
    def forward(self, x: Tensor) -> Tensor:
        before = self.linear.weight
        self.linear.weight = Parameter(torch.ones(3, 3))
        y = self.linear(x)
        self.linear.weight = before
        return y + self.linear(x)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("kind", [MadeLate, Renewed, PutBack])
def test_parts_of_a_live_module(kind: type[nn.Module], backend: str) -> None:
    seen_by = []
    for tag in (lambda module: module, lambda m: jitmagic.jit(m, backend=backend, fullgraph=True)):
        torch.manual_seed(0)
        module, steps = kind(), []
        call = tag(module)
        for _ in range(3):
            loss = call(torch.randn(2, 3)).square().sum()
            loss.backward()
            gradients = [p.grad for p in module.parameters() if p.grad is not None]
            steps.append([loss.detach(), *module.state_dict().values(), *gradients])
        names = [name for name, _ in module.named_parameters()], list(vars(module)["_modules"])
        seen_by.append((names, [type(m) for m in module.modules()], steps))
    assert seen_by[0][:2] == seen_by[1][:2]
    torch.testing.assert_close(seen_by[0][2], seen_by[1][2])


def test_registration_hook_runs() -> None:
    module, seen = Renewed(), []
    tagged = jitmagic.jit(module, backend="eager")
    tagged(torch.randn(2, 3))
    register = nn.modules.module.register_module_parameter_registration_hook
    handle = register(lambda module, name, value: seen.append(name))
    try:
        tagged(torch.randn(2, 3))
        assert seen == ["weight", "bias"]
    finally:
        handle.remove()
