"""A backward after the compiled call runs the hooks of modules in the call, as eager does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from tests.programs.counts import breaks_of

from .differentiating import Seen, assert_same, once, parts, twice, with_second_derivatives

pytestmark = pytest.mark.filterwarnings("ignore:.* is differentiated twice")


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.pair = nn.Linear(8, 8), nn.Tanh(), Pair()
        self.last = nn.Linear(8, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.second(self.first(x))
        a, b = self.pair(hidden, 2.0, hidden.sin())
        return self.last(a * b)


class Pair(nn.Module):
    def forward(self, a: Tensor, factor: float, b: Tensor) -> tuple[Tensor, Tensor]:
        return a * b * factor, a + b


def looks(model: Layers, seen: Seen) -> None:
    for name, module in model.named_children():
        module.register_full_backward_hook(
            lambda module, i, o, name=name: seen.append((name, *(g and g.norm() for g in (*i, *o))))
        )


def changes(model: Layers, seen: Seen) -> None:
    model.second.register_full_backward_hook(lambda module, i, o: (i[0] * o[0],))
    model.second.register_full_backward_hook(lambda module, i, o: seen.append(i[0].sum()))
    model.second.register_full_backward_pre_hook(lambda module, o: (o[0] * 2,))
    model.pair.register_full_backward_pre_hook(lambda module, o: (o[1], o[0]))


def returns_too_much(model: Layers, seen: Seen) -> None:
    model.second.register_full_backward_hook(lambda module, i, o: (i[0], i[0]))


def forwards(model: Layers, seen: Seen) -> None:
    model.second.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model.second.register_forward_hook(lambda module, args, made: seen.append(made.detach() + 0))

    def hooked(module: nn.Module, args: Any, made: Tensor) -> None:
        made.register_hook(lambda gradient: seen.append(gradient + 0))

    model.first.register_forward_hook(hooked)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("on_data", [False, True])
@pytest.mark.parametrize("hook", [looks, changes, returns_too_much, forwards])
@pytest.mark.parametrize("differentiate", [once, twice, with_second_derivatives])
def test_hooks_of_modules_are_one_graph(hook, differentiate, on_data):
    found = []
    for compile_ in (jitmagic.jit, lambda model: model):
        model, seen = Layers(), []
        hook(model, seen)
        run, answers = compile_(model), []
        for scale in (1, 2):
            x = (torch.ones(3, 8, dtype=torch.float64) * scale).requires_grad_(not on_data)
            leaf = model.first.weight if on_data else x
            try:
                made = differentiate(run(x).square().sum(), leaf, model.last.weight)
            except RuntimeError as error:
                made = str(error)
            answers += [made, x, *model.parameters()]
        found.append(parts([answers, seen]))
        assert compile_ is not jitmagic.jit or not breaks_of(run)
    assert_same(*found)


def test_a_result_of_a_hooked_module_refuses_writes_as_in_eager():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    model[1].register_full_backward_hook(lambda module, incoming, outgoing: None)
    made = jitmagic.jit(model)(torch.ones(3, 8))
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        made.add_(1)


@pytest.mark.parametrize("kind", ["forward", "full_backward"])
def test_handles_of_module_hooks_are_removed_inside_and_outside(kind):
    model, seen = Layers(), []

    def run(x: Tensor, keeps: bool) -> Any:
        handle = getattr(model.second, f"register_{kind}_hook")(lambda *_: seen.append(1))
        made = model(x).sum()
        if not keeps:
            handle.remove()
        return made, handle

    tagged = jitmagic.jit(run)
    for keeps in (False, True, True):
        seen.clear()
        made, handle = tagged(torch.ones(3, 8, dtype=torch.float64, requires_grad=True), keeps)
        made.backward()
        assert seen == [1]
        handle.remove()
        assert not model.second._forward_hooks and not model.second._backward_hooks
    assert not breaks_of(tagged)
