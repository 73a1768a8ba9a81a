"""The backward of a step runs `register_hook()` and `retain_grad()` of tensors that it computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic

from ..counts import counts_of

torch.manual_seed(0)
FIRST, SECOND = nn.Linear(4, 5), nn.Linear(5, 3)
PARAMETERS = [*FIRST.parameters(), *SECOND.parameters()]


def records(x: Tensor) -> Any:
    h, seen = FIRST(x), []
    h.register_hook(lambda grad: seen.append(grad))
    SECOND(h.relu()).sum().backward()
    return seen


def records_under_a_name(x: Tensor) -> Any:
    """Hook an activation as Grad-CAM does."""
    kept = {"h": FIRST(x)}
    kept["h"].register_hook(lambda grad: kept.__setitem__("grad", grad))
    SECOND(kept["h"].relu()).max(1).values.sum().backward()
    return (kept["h"] * kept["grad"].mean(0)).relu().detach()


def replaces(x: Tensor) -> Any:
    h = FIRST(x).tanh()
    h.register_hook(lambda grad: grad * 3)
    loss = SECOND(h).sum() + h.pow(2).sum()
    loss.backward()
    return loss.detach()


def registered_after_its_uses(x: Tensor) -> Any:
    h = FIRST(x).tanh()
    loss = SECOND(h).sum() * h.mean()
    h.register_hook(lambda grad: grad.sign())
    loss.backward()
    return loss.detach()


def several_in_the_order_of_the_engine(x: Tensor) -> Any:
    h, seen = FIRST(x).tanh(), []
    k = h.exp()
    h.register_hook(lambda grad: (seen.append(("h", grad)), grad * 2)[1])
    k.register_hook(lambda grad: (seen.append(("k", grad)), grad.clamp(-0.1, 0.1))[1])
    h.register_hook(lambda grad: seen.append(("h again", grad)))
    (k.sum() + SECOND(h).sum()).backward()
    return seen


def in_a_loop(x: Tensor) -> Any:
    h, seen = FIRST(x), []
    for i in range(3):
        h = h.tanh()
        h.register_hook(lambda grad, i=i: seen.append((i, grad.abs().max())))
    SECOND(h).sum().backward()
    return seen


def not_reached(x: Tensor) -> Any:
    h, seen = FIRST(x), []
    h.register_hook(lambda grad: seen.append(grad))
    SECOND(h.detach()).sum().backward()
    del h
    return seen


def removed(x: Tensor) -> Any:
    h = FIRST(x)
    handle = h.register_hook(lambda grad: grad * 100)
    handle.remove()
    handle.remove()
    SECOND(h).square().sum().backward()


def grad_mode_in_a_hook(x: Tensor) -> Any:
    h, seen = FIRST(x), []
    h.register_hook(lambda grad: seen.append((torch.is_grad_enabled(), grad.requires_grad)))
    SECOND(h).sum().backward()
    return seen, torch.is_grad_enabled()


def retains(x: Tensor) -> Any:
    h = FIRST(x)
    h.retain_grad()
    k = h.relu()
    k.retain_grad()
    h.retain_grad()
    before = h.grad
    SECOND(k).sum().backward(retain_graph=True)
    once = h.grad
    SECOND(k).sum().backward()
    return before, once, h.grad, k.grad


def retains_what_a_hook_gave(x: Tensor) -> Any:
    h = FIRST(x).tanh()
    h.register_hook(lambda grad: grad * 2)
    h.retain_grad()
    h.register_hook(lambda grad: grad + 1)
    SECOND(h).square().sum().backward()
    return h.grad


def retains_of_a_leaf(x: Tensor) -> Any:
    FIRST.weight.retain_grad()
    SECOND(FIRST(x)).sum().backward()


def retains_of_other_layouts(x: Tensor) -> Any:
    h = FIRST(x).t()
    h.retain_grad()
    (h.t() @ SECOND.weight.t()).sum().backward()
    return h.grad


def handed_out(x: Tensor) -> Any:
    h = FIRST(x)
    h.retain_grad()
    return SECOND(h).sum(), h


def differentiated_later(x: Tensor) -> Any:
    FIRST(x).register_hook(lambda grad: grad * 2)
    h = FIRST(x)
    h.register_hook(lambda grad: grad * 2)
    return SECOND(h).sum()


WHOLE = [
    records, records_under_a_name, replaces, registered_after_its_uses,
    several_in_the_order_of_the_engine, in_a_loop, not_reached, removed, grad_mode_in_a_hook,
    retains, retains_what_a_hook_gave, retains_of_a_leaf, retains_of_other_layouts,
    handed_out, differentiated_later,
]  # fmt: skip


def differentiated_once_more_later(x: Tensor) -> Any:
    h = FIRST(x)
    h.register_hook(lambda grad: grad * 2)
    loss = SECOND(h).sum()
    loss.backward(retain_graph=True)
    return loss


def the_handle_is_handed_out(x: Tensor) -> Any:
    h = FIRST(x)
    handle = h.register_hook(lambda grad: grad * 2)
    SECOND(h).sum().backward()
    return type(handle).__name__, [handle][0].id >= 0


def written_to(x: Tensor) -> Any:
    h = FIRST(x)
    h.register_hook(lambda grad: grad * 2)
    h.add_(1)
    SECOND(h).sum().backward()


def a_hook_that_writes(x: Tensor) -> Any:
    h = FIRST(x)
    h.register_hook(lambda grad: grad.mul_(2))
    SECOND(h).sum().backward()


def a_wrong_shape(x: Tensor) -> Any:
    h = FIRST(x)
    h.register_hook(lambda grad: grad[0])
    SECOND(h).sum().backward()


def no_tensor(x: Tensor) -> Any:
    h = FIRST(x)
    h.register_hook(lambda grad: 1)
    SECOND(h).sum().backward()


def raises(x: Tensor) -> Any:
    h = FIRST(x)
    h.register_hook(lambda grad: [][0])
    SECOND(h).sum().backward()


def raises_and_is_caught(x: Tensor) -> Any:
    h = FIRST(x)
    h.register_hook(lambda grad: [][0])
    try:
        SECOND(h).sum().backward()
    except IndexError:
        return FIRST(x) * 2, torch.is_grad_enabled()


def requires_no_grad(x: Tensor) -> Any:
    x.retain_grad()


def asked_for_by_grad(x: Tensor) -> Any:
    h = FIRST(x)
    h.register_hook(lambda grad: grad * 2)
    return torch.autograd.grad(SECOND(h).sum(), FIRST.weight)


def of_a_leaf(x: Tensor) -> Any:
    h = x.detach().clone().requires_grad_()
    h.register_hook(lambda grad: grad * 2)
    FIRST(h).sum().backward()
    return h.grad


BROKEN = [
    differentiated_once_more_later, the_handle_is_handed_out, written_to, a_hook_that_writes,
    a_wrong_shape, no_tensor, raises, raises_and_is_caught, requires_no_grad, asked_for_by_grad,
    of_a_leaf,
]  # fmt: skip


def flat(value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        has_grad = value.is_leaf or value.retains_grad
        grad = value.grad if has_grad else None
        layout = value.stride(), value.requires_grad, value.is_leaf
        return [value.detach().clone(), *layout, *flat(grad)]
    if isinstance(value, (list, tuple)):
        return [part for item in value for part in flat(item)]
    return [value]


def differentiate(value: Any) -> str:
    """Run a backward after the step and return how it ended."""
    first = value[0] if isinstance(value, tuple) else value
    if not isinstance(first, Tensor) or not first.requires_grad:
        return ""
    try:
        first.backward()
    except RuntimeError as error:
        return str(error)
    return "done"


def seen(fn: Any) -> list[Any]:
    """Run three steps, without gradients before the first and with some to add to after."""
    found: list[Any] = []
    for step in range(3):
        for parameter in PARAMETERS if step != 1 else ():
            parameter.grad = None
        try:
            value = fn(torch.linspace(-1, 2, 8).view(2, 4) * (step + 1))
            found += [differentiate(value), *flat(value)]
        except (RuntimeError, TypeError, IndexError) as error:
            found.append((type(error), str(error)))
        found += flat(PARAMETERS)
    return found


def check(program: Any, backend: str) -> Any:
    tagged = jitmagic.jit(program, backend=backend)
    for have, want in zip(seen(tagged), seen(program), strict=True):
        if isinstance(want, Tensor):
            torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-5)
        else:
            assert have == want
    return tagged


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("program", WHOLE, ids=lambda p: p.__name__)
def test_hooks_of_a_step_are_in_one_graph(program, backend):
    tagged = check(program, backend)
    assert counts_of(tagged).breaks == 0


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("program", BROKEN, ids=lambda p: p.__name__)
def test_hook_that_no_exit_can_register_is_a_break(program, backend):
    tagged = check(program, backend)
    # The graph is not split where it runs op by op.
    is_whole = backend == "eager" and program is differentiated_once_more_later
    assert counts_of(tagged).breaks or is_whole
