"""`tensor.data = other` gives the object the memory of another tensor; views keep the old one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic

from ..counts import counts_of

Step = Callable[[nn.Linear, Tensor], Any]


def by_hand(model: nn.Linear, x: Tensor) -> Any:
    model.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    for p in model.parameters():
        p.data = p.data - 0.1 * p.grad.data
    return loss.detach(), model.weight.requires_grad, model.weight.is_leaf


def there_and_back(model: nn.Linear, x: Tensor) -> Any:
    """Sharpness-aware minimisation: the gradient is another point's."""
    old = {p: p.data.clone() for p in model.parameters()}
    for p in model.parameters():
        p.data = p.data + 0.05
    model.zero_grad()
    model(x).square().mean().backward()
    for p, before in old.items():
        p.data = before
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    return model.weight.sum().detach()


def of_a_leaf_made_inside(model: nn.Linear, x: Tensor) -> Any:
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(2):
        model(x + delta).square().sum().backward()
        delta.data = (delta + 0.1 * delta.grad.sign()).clamp(-0.15, 0.15)
        delta.grad.zero_()
    return (x + delta).detach()


def added_and_taken_away(model: nn.Linear, x: Tensor) -> Any:
    model.weight.data += x[0]
    y = model(x).detach()
    model.weight.data -= x[0]
    return y


def swapped(model: nn.Linear, x: Tensor) -> Any:
    u, v = x * 2, x * 3
    u.data, v.data = v.data, u.data
    u += 1
    return u, v


def shared_with_another(model: nn.Linear, x: Tensor) -> Any:
    y = torch.ones_like(model.weight)
    model.weight.data = y
    y.mul_(2)
    with torch.no_grad():
        model.weight.add_(0.5)
    return y, model.weight.sum().detach()


def views_keep_the_old_memory(model: nn.Linear, x: Tensor) -> Any:
    view = model.weight.data[0]
    model.weight.data = model.weight.data + 1
    view.zero_()
    return view, model.weight[0].detach()


def written_before(model: nn.Linear, x: Tensor) -> Any:
    old = model.weight.data
    with torch.no_grad():
        model.weight.mul_(2)
        model.weight.data = model.weight * 3
        model.weight.sub_(1)
    return old, model.weight.detach()


def of_one_that_came_in(model: nn.Linear, x: Tensor) -> Any:
    y = x.clone()
    model.bias.data = x[0, :2]
    model.bias.data.add_(1)
    return x, y


def behind_the_result(model: nn.Linear, x: Tensor) -> Any:
    """The backward reaches the parameter when it is called."""
    model.weight.data = torch.nn.functional.normalize(model.weight.data)
    return model(x).square().sum()


def used_before(model: nn.Linear, x: Tensor) -> Any:
    """The write does not change the values that the loss was computed with."""
    y = (model.weight * model.weight).sum()
    model.weight.data = model.weight.data * 5
    return y


def of_another_shape(model: nn.Linear, x: Tensor) -> Any:
    y = x.clone()
    y.data = x[0]
    return y * 2


def of_no_tensor(model: nn.Linear, x: Tensor) -> Any:
    y = x.clone()
    y.data = 3
    return y


WHOLE = [
    by_hand,
    there_and_back,
    of_a_leaf_made_inside,
    added_and_taken_away,
    swapped,
    shared_with_another,
    of_one_that_came_in,
    used_before,
    views_keep_the_old_memory,
    written_before,
]
CUT = [behind_the_result, of_another_shape, of_no_tensor]
STEPS = [*WHOLE, *CUT]


def trained(step: Step, tagged: bool, backend: str) -> tuple[list[Any], Any]:
    torch.manual_seed(3)
    model = nn.Linear(3, 2)
    run = jitmagic.jit(step, backend=backend) if tagged else step
    seen: list[Any] = []
    for _ in range(3):
        x = torch.randn(4, 3)
        view = model.weight.data.view(-1)
        try:
            made = run(model, x)
        except Exception as error:
            made = type(error)
        if isinstance(made, Tensor) and made.requires_grad:
            made.backward()
        seen += [made, x, view, *(p.detach().clone() for p in model.parameters())]
        seen += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        seen += [(p.requires_grad, p.is_leaf, p._version) for p in model.parameters()]
    return seen, run


def same(ours: Any, eager: Any) -> None:
    if isinstance(eager, list | tuple):
        assert len(ours) == len(eager)
        for one, other in zip(ours, eager, strict=True):
            same(one, other)
    elif isinstance(eager, Tensor):
        torch.testing.assert_close(ours, eager)
    else:
        assert ours == eager


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_as_eager(step: Step, backend: str) -> None:
    eager, _ = trained(step, False, backend)
    ours, run = trained(step, True, backend)
    same(ours, eager)
    assert (counts_of(run).breaks == 0) is (step in WHOLE)


def test_the_memory_is_shared() -> None:
    """As in eager, a later write to either shows in both."""

    @jitmagic.jit
    def lend(p: nn.Parameter, x: Tensor) -> Tensor:
        y = x * 2
        p.data = y
        return y

    parameter = nn.Parameter(torch.zeros(3))
    made = lend(parameter, torch.ones(3))
    made += 1
    assert parameter.tolist() == [3.0, 3.0, 3.0]
    assert parameter.data_ptr() == made.data_ptr()
