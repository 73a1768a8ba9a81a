"""Slices of ModuleList and Sequential are new containers with eager's keys, hooks and forward."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import jitmagic

from ..counts import counts_of

X = torch.linspace(-1, 1, 12).reshape(3, 4)
CONTAINERS: dict[str, Callable[[], Any]] = {
    "counted": lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.GELU()),
    "named": lambda: nn.Sequential(OrderedDict(z=nn.ReLU(), a=nn.Linear(4, 4), q=nn.Tanh())),
    "list": lambda: nn.ModuleList([nn.Linear(4, 4), nn.Tanh(), nn.GELU()]),
}


def slices(net: Any, x: Tensor) -> tuple[Any, ...]:
    return net[1:], net[::-1], net[1:][1:], net[:], net[3:], x + 1


def called(net: nn.Sequential, x: Tensor) -> Tensor:
    return net[1:](x) * net[:2][::-1](x)


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_returned_slice_has_eagers_keys_and_modules(name: str) -> None:
    net = CONTAINERS[name]()
    made = jitmagic.jit(slices)
    for _ in range(2):
        *wanted, _ = slices(net, X)
        *found, _ = made(net, X)
        for one, other in zip(found, wanted, strict=True):
            assert type(one) is type(other)
            assert list(one._modules.items()) == list(other._modules.items())
    assert counts_of(made).breaks == 0


@pytest.mark.parametrize("name", ["counted", "named"])
def test_a_slice_is_called_in_the_graph(name: str) -> None:
    net = CONTAINERS[name]()
    made = jitmagic.jit(called)
    torch.testing.assert_close(made(net, X), called(net, X))
    assert counts_of(made).breaks == 0


def test_global_hooks_see_the_slice() -> None:
    net, seen = CONTAINERS["counted"](), list[str]()
    made = jitmagic.jit(called)
    with register_module_forward_hook(lambda module, i, o: seen.append(type(module).__name__)):
        called(net, X)
        wanted = seen[:]
        for _ in range(2):
            seen.clear()
            made(net, X)
            assert seen == wanted
    seen.clear()
    torch.testing.assert_close(made(net, X), called(net, X))
    assert not seen


def test_a_replaced_forward_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    net, made = CONTAINERS["counted"](), jitmagic.jit(called)
    torch.testing.assert_close(made(net, X), called(net, X))
    monkeypatch.setattr(nn.Sequential, "forward", lambda self, x: x + len(self))
    torch.testing.assert_close(made(net, X), called(net, X))
