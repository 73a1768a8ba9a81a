"""Forward hooks and parametrizations are run in the graph; changing them is noticed."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import jitmagic

from ..counts import counts_of
from ..harness import Program, check


class Hooked(nn.Module):
    """Hooks that change arguments and results, one that only looks, one that takes keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seen: list[Any] = []
        self.layer.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
        self.layer.register_forward_pre_hook(self.shift, with_kwargs=True)
        self.layer.register_forward_hook(self.look)
        self.layer.register_forward_hook(lambda module, args, result: result * 2)

    def shift(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        return (args[0] * 3,), kwargs

    def look(self, module: nn.Module, args: Any, result: Tensor) -> None:
        self.seen[:] = [tuple(result.shape)]  # a list that grows is not worth a variant per call

    def forward(self, x: Tensor) -> Any:
        return self.layer(x) + 1, len(self.seen)


class Upper(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).mT


def _symmetric() -> nn.Module:
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Upper())
    return layer


def _weight_hook() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(nn.Linear(4, 3))


def _pruned() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    prune.l1_unstructured(net[0], "weight", 0.4)
    prune.ln_structured(net[2], "weight", 0.3, n=2, dim=0)
    prune.l1_unstructured(net[2], "weight", 0.2)
    return net


MODULES = {
    "hooks": Hooked,
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(4, 3)),
    "spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(4, 3)),
    "parametrization": _symmetric,
    "pruned": _pruned,
    "weight_norm by a hook": lambda: nn.Sequential(_weight_hook()),
}


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_one_graph(name: str, train: bool) -> None:
    def calls() -> list[tuple[Tensor]]:
        return [(torch.linspace(-1, 1, 8).reshape(2, 4),), (torch.ones(2, 4),)]

    check(Program(name, MODULES[name], calls, graphs=1, train=train))


def test_adding_and_removing_hooks_recompiles() -> None:
    layer = nn.Linear(3, 3)
    run = jitmagic.jit(lambda x: layer(x))
    x = torch.ones(2, 3)
    plain = run(x)
    handle = layer.register_forward_hook(lambda module, args, result: result * 2)
    assert torch.equal(run(x), plain * 2)
    other = layer.register_forward_hook(lambda module, args, result: result + 1)
    assert torch.equal(run(x), plain * 2 + 1)
    handle.remove()
    assert torch.equal(run(x), plain + 1)
    other.remove()
    assert torch.equal(run(x), plain)
    assert counts_of(run).breaks == 0


def test_cached_parametrization() -> None:
    """Within `cached()` the parametrization runs once: the state that says so is guarded."""
    calls = []

    class Counted(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            calls.append(1)
            return weight * 2

    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Counted())
    run = jitmagic.jit(lambda x: layer(x) + layer(x))
    x = torch.ones(2, 3)
    calls.clear()
    wanted = run(x)
    assert len(calls) == 2
    with parametrize.cached():
        torch.testing.assert_close(run(x), wanted)
    assert len(calls) == 3


def test_always_called_hooks_and_hooks_with_kwargs() -> None:
    """One that runs always is called where the forward raises too."""
    seen: list[Any] = []

    class Scaled(nn.Module):
        def forward(self, x: Tensor, *, scale: float) -> Tensor:
            if scale == 0.0:
                raise ValueError("no scale")
            return x * scale

    net = Scaled()
    net.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {"scale": kwargs["scale"] * 3}), with_kwargs=True
    )
    net.register_forward_hook(lambda m, args, kwargs, y: y + kwargs["scale"], with_kwargs=True)
    net.register_forward_hook(lambda m, args, y: seen.append(y is None), always_call=True)
    run = jitmagic.jit(lambda x, scale: net(x, scale=scale))
    x = torch.ones(2)
    assert torch.equal(run(x, 2.0), x * 6 + 6)
    assert counts_of(run).graphs == 1
    assert counts_of(run).breaks == 0
    with pytest.raises(ValueError, match="no scale"):
        run(x, 0.0)
    assert torch.equal(run(x, 2.0), x * 6 + 6)
    assert seen == [False, True, False]


def test_adding_and_removing_global_hooks_recompiles() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    run = jitmagic.jit(lambda x: net(x))
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    seen: list[str] = []

    def look(module: nn.Module, args: Any, result: Tensor) -> None:
        seen.append(type(module).__name__)

    def double(module: nn.Module, args: Any) -> tuple[Tensor, ...]:
        return (args[0] * 2,)

    hooks = nn.modules.module
    before = run(x)
    for register in (
        lambda: hooks.register_module_forward_hook(look),
        lambda: hooks.register_module_forward_pre_hook(double),
    ):
        handle = register()
        try:
            assert torch.equal(run(x), net(x))
        finally:
            handle.remove()
    assert torch.equal(run(x), before)
    assert seen == ["Linear", "ReLU", "Sequential"] * 2
    assert counts_of(run).breaks == 0


def features_by_hooks(net: nn.Module, x: Tensor) -> Any:
    features: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, result: Tensor) -> None:
            features[name] = result.detach()

        return hook

    handles = [part.register_forward_hook(keep(name)) for name, part in net.named_children()]
    result = net(x)
    for handle in handles:
        handle.remove()
    return result, features


def doubled_for_a_while(net: nn.Module, x: Tensor) -> Any:
    first = next(net.children())
    with first.register_forward_pre_hook(lambda module, args: (args[0] * 2,)):
        doubled = net(x)
    return doubled, net(x), len(first._forward_pre_hooks)


@pytest.mark.parametrize("function", [features_by_hooks, doubled_for_a_while])
def test_hooks_registered_and_removed_in_one_call(function: Any) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    run = jitmagic.jit(function)
    for x in (torch.ones(2, 3), torch.randn(2, 3), torch.randn(2, 3)):
        torch.testing.assert_close(run(net, x), function(net, x))
    assert (counts_of(run).graphs, counts_of(run).breaks) == (1, 0)
    assert not net[0]._forward_hooks


def test_hooks_registered_in_a_call_persist() -> None:
    """Each has a number of its own, and the handle removes it."""
    net, handles, seen = nn.Linear(3, 3), [], []
    run = jitmagic.jit(lambda x: handles.append(net.register_forward_hook(look)) or net(x))

    def look(module: nn.Module, args: Any, result: Tensor) -> None:
        seen.append(tuple(result.shape))

    for count in (1, 2):
        run(torch.ones(count, 3))
    assert seen == [(1, 3), (2, 3), (2, 3)]
    assert len({handle.id for handle in handles}) == len(net._forward_hooks) == 2
    handles[0].remove()
    assert list(net._forward_hooks) == [handles[1].id]
