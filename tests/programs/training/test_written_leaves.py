"""Parameters that are written to and then used: clipped, averaged or stepped before a forward.

Autograd takes a leaf as it is when it is read: what is written under no_grad before that is no part
of any history, what is written to after it was saved is an error of the backward. Both are so
within one graph, whose node saves the parameter itself, not a copy of what was written to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic

from ..counts import counts_of
from ..harness import assert_alike

TIERS: list[dict[str, Any]] = [
    {"backend": "native"},
    {"backend": "native", "options": {"cpu_tier": "aten"}},
    {"backend": "aot_eager"},
    {"backend": "eager"},
]
Use = Callable[[nn.Linear, Tensor], Tensor]
torch.optim.SGD([torch.zeros(1)])  # the first one of a process patches its class


def clipped(m: nn.Linear, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.weight.clamp_(-0.2, 0.2)
    return m(x).relu()


def averaged(m: nn.Linear, x: Tensor) -> Tensor:
    with torch.no_grad():
        for p in m.parameters():
            p.mul_(0.9).add_(torch.ones_like(p), alpha=0.1)
    return m(x).square()


def normalised(m: nn.Linear, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.weight.div_(m.weight.norm(dim=1, keepdim=True))
    return m(x)


def rows_replaced(m: nn.Linear, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.weight.copy_(x[:3].detach())
        m.weight[0].zero_()
    return m(x) * m.weight.sum()


def through_data(m: nn.Linear, x: Tensor) -> Tensor:
    m.weight.data.clamp_(-0.2, 0.2)
    m.bias.detach().mul_(0.5)
    return m(x) * m.bias.exp()


def view_of_before(m: nn.Linear, x: Tensor) -> Tensor:
    row = m.weight[0]
    with torch.no_grad():
        m.weight.clamp_(-0.2, 0.2)
    return (row * row).sum() + m(x)


def read_but_not_saved(m: nn.Linear, x: Tensor) -> Tensor:
    """The history of `before` leads to both parameters, and has saved neither."""
    before = m(x.detach()) + m.bias
    with torch.no_grad():
        m.weight.mul_(0.5)
        m.bias.mul_(0.5)
    return m(x.detach()).tanh() + before


def stepped(m: nn.Linear, x: Tensor) -> Tensor:
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
    m(x.detach()).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return m(x).tanh()


def written_twice(m: nn.Linear, x: Tensor) -> Tensor:
    total = torch.zeros(())
    for factor in (0.5, 0.25):
        with torch.no_grad():
            m.bias.mul_(factor)
        total = total + m.bias.sum()
    return total + m(x).sum()


USES = [
    clipped,
    averaged,
    normalised,
    rows_replaced,
    through_data,
    view_of_before,
    read_but_not_saved,
    stepped,
    written_twice,
]


def seen(use: Use, calls: int = 3, **how: Any) -> list[Any]:
    """All that three calls show: results, gradients, parameters and their versions."""
    torch.manual_seed(0)
    module = nn.Linear(3, 3)
    run = jitmagic.jit(use, fullgraph=True, **how) if how else use
    shown: list[Any] = []
    for _ in range(calls):
        module.zero_grad()
        x = torch.randn(4, 3, requires_grad=True)
        result = run(module, x)
        result.sum().backward()
        shown += [result.detach(), x.grad]
        for p in module.parameters():
            assert p.grad is not None
            shown += [p.detach().clone(), p.grad.clone(), p._version]
    return shown


@pytest.mark.parametrize("how", TIERS, ids=["cpp", "aten", "aot", "eager"])
@pytest.mark.parametrize("use", USES)
def test_what_is_written_before_is_what_is_used(use: Use, how: dict[str, Any]) -> None:
    assert_alike(seen(use, **how), seen(use))


def meddled(run: Use, meddle: Callable[[nn.Linear], object]) -> object:
    """The gradient, or what backward raises, if `meddle` comes between."""
    torch.manual_seed(0)
    module = nn.Linear(3, 3)
    x = torch.randn(4, 3, requires_grad=True)
    result = run(module, x)
    with torch.no_grad():
        meddle(module)
    try:
        result.sum().backward()
    except RuntimeError as error:
        return str(error).partition("[")[0]
    return x.grad


def write_weight(m: nn.Linear) -> None:
    m.weight.mul_(2)


def write_bias(m: nn.Linear) -> None:
    m.bias.mul_(2)


def write_data(m: nn.Linear) -> None:
    m.weight.data.mul_(2)


@pytest.mark.parametrize("how", TIERS[:3], ids=["cpp", "aten", "aot"])
@pytest.mark.parametrize("meddle", [write_weight, write_bias, write_data])
def test_a_write_between_forward_and_backward_is_seen_as_in_eager(
    meddle: Callable[[nn.Linear], object], how: dict[str, Any]
) -> None:
    expected = meddled(averaged, meddle)
    found = meddled(jitmagic.jit(averaged, fullgraph=True, **how), meddle)
    if isinstance(expected, Tensor):
        torch.testing.assert_close(found, expected)
    else:
        assert found == expected


def equal_by_chance(m: nn.Linear, x: Tensor) -> Tensor:
    """What is saved has the value of the parameter, and a memory of its own."""
    with torch.no_grad():
        scaled = m.weight * 0.5
        m.weight.mul_(0.5)
    return x @ scaled + m.bias


def test_a_write_to_what_only_has_the_saved_value_is_no_error() -> None:
    expected = meddled(equal_by_chance, write_weight)
    assert isinstance(expected, Tensor)
    found = meddled(jitmagic.jit(equal_by_chance, fullgraph=True), write_weight)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("use", [clipped, averaged, written_twice])
def test_a_gradient_of_gradients_reaches_the_parameter(use: Use) -> None:
    def penalty(run: Use) -> list[Tensor | None]:
        torch.manual_seed(0)
        module = nn.Linear(3, 3)
        x = torch.randn(4, 3, requires_grad=True)
        result = run(module, x).square().sum()
        (gradient,) = torch.autograd.grad(result, x, create_graph=True)
        gradient.square().sum().backward()
        return [x.grad, *(p.grad for p in module.parameters()), *module.parameters()]

    with pytest.warns(jitmagic.FallbackWarning, match="differentiated twice"):
        found = penalty(jitmagic.jit(use, fullgraph=True))
    assert_alike(found, penalty(use))


def saved_then_written(m: nn.Linear, x: Tensor) -> Tensor:
    loss = (m.weight * m.weight).sum()
    with torch.no_grad():
        m.weight.mul_(0.5)
    return loss + m(x).sum()


@pytest.mark.parametrize("how", TIERS, ids=["cpp", "aten", "aot", "eager"])
def test_what_was_saved_before_the_write_is_an_error_of_backward(how: dict[str, Any]) -> None:
    run = jitmagic.jit(saved_then_written, **how)
    message = meddled(run, lambda m: None)
    assert message == meddled(saved_then_written, lambda m: None)
    assert "modified by an inplace operation" in str(message)
    found = counts_of(run)
    assert (found.graphs, found.breaks) == (2, 1)
