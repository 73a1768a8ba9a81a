"""Full backward hooks of modules: a backward in the same frame runs them in its graph."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import jitmagic

from ..counts import counts_of

Step = Callable[[nn.Module, Tensor], Any]
X = torch.linspace(-1, 1, 20).reshape(5, 4)


def network() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def trained(net: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor | None]]:
    net.zero_grad()
    loss = net(x).pow(2).mean()
    loss.backward()
    return loss, [p.grad for p in net.parameters()]


def looking(net: nn.Module, seen: list[Any]) -> None:
    net[1].register_full_backward_hook(lambda module, i, o: seen.append((i[0] * 1, o[0].norm())))


def changing(net: nn.Module, seen: list[Any]) -> None:
    net[2].register_full_backward_hook(lambda module, incoming, outgoing: (incoming[0] * 0.5,))
    net[2].register_full_backward_hook(lambda module, i, o: seen.append(i[0].sum() + o[0].sum()))
    net[2].register_full_backward_pre_hook(lambda module, outgoing: (outgoing[0] * 2,))


def on_data(net: nn.Module, seen: list[Any]) -> None:
    """The input has no gradient: torch warns, at the line of the backward."""
    net[0].register_full_backward_hook(lambda module, i, o: seen.append((i, o[0].abs().sum())))


def of_the_whole(net: nn.Module, seen: list[Any]) -> None:
    net.register_full_backward_hook(lambda module, i, o: seen.append(len(i)))
    net.register_forward_hook(lambda module, args, y: seen.append(y.detach() * 2))
    net.register_full_backward_pre_hook(lambda module, outgoing: None)


def said(function: Step, net: nn.Module, x: Tensor) -> tuple[Any, list[tuple[str, int]]]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = function(net, x)
    return result, [(str(one.message), one.lineno) for one in told]


@pytest.mark.parametrize("hook", [looking, changing, on_data, of_the_whole])
def test_backward_in_the_frame_runs_hooks_in_one_graph(hook: Any) -> None:
    nets = network(), network()
    logs: tuple[list[Any], list[Any]] = ([], [])
    for net, seen in zip(nets, logs, strict=True):
        hook(net, seen)
    run = jitmagic.jit(trained)
    for scale in (1.0, 2.0, -1.0):
        ours, eager = said(run, nets[0], X * scale), said(trained, nets[1], X * scale)
        torch.testing.assert_close(ours[0], eager[0])
        assert ours[1] == eager[1]
        torch.testing.assert_close(logs[0][-2:], logs[1][-2:])
        assert len(logs[0]) == len(logs[1])
    assert counts_of(run).breaks == 0


def several_gradients(net: nn.Module, x: Tensor) -> Any:
    made = net(x, x * 2)
    (made[0].sum() + made[1].sum()).backward()
    return x.grad


class Pair(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a * b, a + b


def test_several_gradients_break_the_graph() -> None:
    seen: list[Any] = []
    net = Pair()
    net.register_full_backward_hook(lambda module, i, o: seen.append([g.sum() for g in (*i, *o)]))
    results = []
    for function in (several_gradients, run := jitmagic.jit(several_gradients)):
        results.append(function(net, X.clone().requires_grad_()))
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*seen)
    assert counts_of(run).breaks


def test_backward_after_the_frame_runs_hooks() -> None:
    net = network()
    other = copy.deepcopy(net)
    logs: tuple[list[Any], list[Any]] = ([], [])
    for hooked, seen in zip((net, other), logs, strict=True):
        looking(hooked, seen)
    run = jitmagic.jit(lambda x: net(x).sum())
    run(X).backward()
    other(X).sum().backward()
    torch.testing.assert_close(*logs)
    assert counts_of(run).breaks == 0


def test_forbidden_writes_raise_as_in_eager() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    net[0].register_full_backward_hook(lambda module, incoming, outgoing: None)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        jitmagic.jit(trained)(net, X)


class Counted(NamedTuple):
    value: Tensor
    count: int


class Paired(nn.Linear):
    def forward(self, x: Tensor) -> Counted:
        return Counted(super().forward(x), 3)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_a_hooked_module_returns_its_named_tuple() -> None:
    seen: list[Any] = []
    net = Paired(4, 2)
    net.register_full_backward_hook(lambda module, i, o: seen.append((o[0] * 1, o[1])))

    def step(net: Paired, x: Tensor) -> Any:
        pair = net(x)
        pair.value.sum().backward()
        return type(pair), pair.count, pair.value.detach()

    made = jitmagic.jit(step)
    wanted = step(net, X)
    found = made(net, X)
    assert found[:2] == wanted[:2] == (Counted, 3)
    torch.testing.assert_close(found[2], wanted[2])
    torch.testing.assert_close(*seen)
    assert counts_of(made).breaks == 0
