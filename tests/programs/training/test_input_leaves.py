"""`requires_grad` of tensors from outside changes within a step: saliency, adversarial examples,
parameters that are frozen for a while.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from tests.covering import EVERY

from ..counts import counts_of

torch.manual_seed(0)
BODY, HEAD, FROZEN = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(4, 4)
FROZEN.requires_grad_(False)
OPTIMIZER = torch.optim.SGD([*BODY.parameters(), *HEAD.parameters()], lr=0.1)
PARAMETERS = [*BODY.parameters(), *HEAD.parameters(), *FROZEN.parameters()]
VIEWS: list[Tensor] = []
WEIGHTS = [parameter.detach().clone() for parameter in PARAMETERS]


def loss_of(x: Tensor) -> Tensor:
    return HEAD(BODY(x).tanh()).square().sum()


def saliency(x: Tensor) -> Any:
    x.requires_grad_(True)
    HEAD(BODY(x).relu()).max(1).values.sum().backward()
    return x.grad.abs(), x.requires_grad, x.is_leaf


def adversarial(x: Tensor) -> Any:
    x.requires_grad = True
    loss = loss_of(x)
    BODY.zero_grad()
    loss.backward()
    return torch.clamp(x + 0.1 * x.grad.data.sign(), -1, 1).detach()


def adversarial_by_grad(x: Tensor) -> Any:
    x.requires_grad_()
    (grad,) = torch.autograd.grad(loss_of(x), x)
    return (x + 0.1 * grad.sign()).detach(), x


def a_derivative_in_the_loss(x: Tensor) -> Any:
    x.requires_grad_(True)
    u = HEAD(BODY(x).tanh()).sum(1, keepdim=True)
    (du,) = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)
    loss = du.square().mean()
    loss.backward()
    return loss.detach()


def on_and_off(x: Tensor) -> Any:
    x.requires_grad_(True)
    loss_of(x).backward()
    x.requires_grad_(False)
    BODY(x).sum().backward()
    return x.grad, x.requires_grad


def a_step_of_the_input(x: Tensor) -> Any:
    x.requires_grad_(True)
    loss_of(x).backward()
    with torch.no_grad():
        x -= 0.1 * x.grad
    return x


def written_before(x: Tensor) -> Any:
    x.mul_(2)
    x.requires_grad_(True)
    loss_of(x).backward()
    return x.grad


def without_grad_mode(x: Tensor) -> Any:
    with torch.no_grad():
        x.requires_grad_()
        y = x * 2
    return y, x.requires_grad


def frozen_for_a_while(x: Tensor) -> Any:
    for parameter in BODY.parameters():
        parameter.requires_grad = False
    loss = loss_of(x)
    loss.backward()
    flags = [parameter.requires_grad for parameter in BODY.parameters()]
    for parameter in BODY.parameters():
        parameter.requires_grad_(True)
    return loss.detach(), flags


def a_critic_and_a_generator(x: Tensor) -> Any:
    HEAD.requires_grad_(False)
    first = loss_of(x)
    first.backward()
    HEAD.requires_grad_(True)
    second = HEAD(BODY(x).detach()).square().mean()
    second.backward()
    return first.detach(), second.detach()


def frozen_for_good(x: Tensor) -> Any:
    BODY.requires_grad_(False)
    return loss_of(x)


def frozen_after_its_use(x: Tensor) -> Any:
    loss = loss_of(x)
    BODY.requires_grad_(False)
    return loss


def thawed_for_a_while(x: Tensor) -> Any:
    FROZEN.requires_grad_(True)
    loss_of(FROZEN(x)).backward()
    grads = [parameter.grad for parameter in FROZEN.parameters()]
    FROZEN.requires_grad_(False)
    return grads


def thawed_for_good(x: Tensor) -> Any:
    FROZEN.requires_grad_(True)
    loss = loss_of(FROZEN(x))
    loss.backward()
    return loss.detach()


def an_optimizer_of_some(x: Tensor) -> Any:
    BODY.weight.requires_grad_(False)
    OPTIMIZER.zero_grad()
    loss_of(x).backward()
    OPTIMIZER.step()
    BODY.weight.requires_grad_(True)


def to_what_it_is(x: Tensor) -> Any:
    x.requires_grad_(False)
    BODY.requires_grad_(True)
    return loss_of(x)


def differentiated_later(x: Tensor) -> Any:
    x.requires_grad_(True)
    return loss_of(x)


def a_view_is_handed_out(x: Tensor) -> Any:
    x.requires_grad_(True)
    return x[0]


def thawed_and_differentiated_later(x: Tensor) -> Any:
    FROZEN.requires_grad_(True)
    return loss_of(FROZEN(x))


WHOLE = [
    saliency, adversarial, adversarial_by_grad, a_derivative_in_the_loss, on_and_off,
    a_step_of_the_input, written_before, without_grad_mode, frozen_for_a_while,
    a_critic_and_a_generator, frozen_for_good, frozen_after_its_use, thawed_for_a_while,
    thawed_for_good, an_optimizer_of_some, to_what_it_is, differentiated_later,
    a_view_is_handed_out, thawed_and_differentiated_later,
]  # fmt: skip


def frozen_before_its_backward(x: Tensor) -> Any:
    y = BODY(x)
    BODY.requires_grad_(False)
    HEAD(y).sum().backward()
    BODY.requires_grad_(True)


def a_leaf_is_written_to(x: Tensor) -> Any:
    x.requires_grad_(True)
    x.add_(1)


def a_view_from_before(x: Tensor) -> Any:
    x.mul_(2)
    view = x[0]
    x.requires_grad_(True)
    loss_of(x).backward()
    return x.grad, view, view.requires_grad


def a_view_made_while_frozen(x: Tensor) -> Any:
    BODY.requires_grad_(False)
    row = BODY.weight[0]
    BODY.requires_grad_(True)
    return row.requires_grad, row.sum().requires_grad


def a_view_from_outside(x: Tensor) -> Any:
    x.requires_grad_(True)
    return VIEWS[-1].requires_grad, VIEWS[-1].sum().requires_grad


def no_leaf(x: Tensor) -> Any:
    BODY(x).requires_grad_(False)


BROKEN = [
    frozen_before_its_backward, a_leaf_is_written_to, a_view_from_before, a_view_made_while_frozen,
    a_view_from_outside, no_leaf,
]  # fmt: skip

INPUTS = {
    "plain": lambda: torch.linspace(-1, 2, 8).view(2, 4).clone(),
    "transposed": lambda: torch.linspace(-1, 2, 8).view(4, 2).t(),
    "a view": lambda: torch.linspace(-1, 2, 16).view(4, 4)[1:3],
    "empty": lambda: torch.zeros(0, 4),
    "with a gradient": lambda: _with_gradient(torch.linspace(-1, 2, 8).view(2, 4)),
    "requires grad": lambda: torch.linspace(-1, 2, 8).view(2, 4).requires_grad_(),
    "inference": lambda: _inference(),
}
GENERATED = ("plain", "transposed", "inference")  # the others differ in the trace alone
PROGRAMS = WHOLE + BROKEN


def _with_gradient(x: Tensor) -> Tensor:
    x.grad = torch.ones_like(x)
    return x


def _inference() -> Tensor:
    with torch.inference_mode():
        return torch.linspace(-1, 2, 8).view(2, 4)


def flat(value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        grad = flat(value.grad) if value.is_leaf else []
        flags = value.requires_grad, value.is_leaf, value.stride()
        return [value.detach().clone(), *flags, *grad]
    if isinstance(value, (list, tuple)):
        return [part for item in value for part in flat(item)]
    return [value]


def seen(fn: Any, make: Any, calls: int = 2) -> list[Any]:
    """Return the results of calls and of a backward after each, and the state after them."""
    for n, (parameter, weight) in enumerate(zip(PARAMETERS, WEIGHTS, strict=True)):
        parameter.requires_grad_(n < 4)
        parameter.data, parameter.grad = weight.clone(), None
    found: list[Any] = []
    x = make()
    VIEWS.append(x[:1])
    for _ in range(calls):
        try:
            value = fn(x)
            if isinstance(value, Tensor) and value.requires_grad:
                value.sum().backward()
            found += flat(value)
        except (RuntimeError, TypeError, IndexError) as error:
            found.append((type(error), str(error)))
        found += [*flat(x), *flat(PARAMETERS), None if x.is_inference() else x._version]
    return found


def kinds_of(program: Any, backend: str) -> tuple[str, ...]:
    """Trace all kinds; the native backend compiles some of the programs in turn."""
    if backend == "eager":
        return tuple(INPUTS)
    return GENERATED if EVERY else (GENERATED[PROGRAMS.index(program) % len(GENERATED)],)


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_eager(program, backend):
    for kind in kinds_of(program, backend):
        make = INPUTS[kind]
        have, want = seen(jitmagic.jit(program, backend=backend), make), seen(program, make)
        assert len(have) == len(want), kind
        for ours, theirs in zip(have, want, strict=True):
            if isinstance(theirs, Tensor):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
            else:
                assert ours == theirs, kind


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph_if_no_later_backward_reaches_the_leaf(program):
    tagged = jitmagic.jit(program, backend="eager")
    seen(tagged, INPUTS["plain"], calls=1)
    assert (counts_of(tagged).breaks == 0) == (program in WHOLE)


def physics_loss(x: Tensor) -> Tensor:
    x.requires_grad_(True)
    u = HEAD(BODY(x).tanh()).sum(1, keepdim=True)
    (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (d2u,) = torch.autograd.grad(du.sum(), x, create_graph=True)
    return (d2u + u).square().mean()


def penalised(x: Tensor) -> Tensor:
    x.requires_grad = True
    out = HEAD(BODY(x).tanh())
    (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return nn.functional.softplus(-out).mean() + grad.pow(2).sum(1).mean()


def used_before(x: Tensor) -> Tensor:
    y = x * 2
    x.requires_grad_()
    return (BODY(x) * BODY(y)).sum()


def returned_too(x: Tensor) -> Any:
    assert not x.requires_grad
    x.requires_grad_()
    return BODY(x).sum(), x, x.requires_grad


LOSSES = {fn.__name__: fn for fn in (physics_loss, penalised, used_before, returned_too)}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", LOSSES)
def test_returned_loss_has_the_input_in_its_history(name: str, backend: str) -> None:
    def gradients(run: Any) -> list[Any]:
        found = []
        for seed in range(3):
            torch.manual_seed(seed)
            x = torch.randn((5, 9, 3)[seed], 4)
            result = run(x)
            loss = result if isinstance(result, Tensor) else result[0]
            for parameter in PARAMETERS:
                parameter.grad = None
            loss.backward()
            found += [loss.detach(), x.grad, x.requires_grad, x.is_leaf, result is x]
            found += [None if one.grad is None else one.grad.clone() for one in PARAMETERS]
        return found

    fn = LOSSES[name]
    run = jitmagic.jit(fn, backend=backend)
    torch.testing.assert_close(gradients(run), gradients(fn))
    assert (counts_of(run).breaks == 0) == (name != "used_before")


def test_flag_is_restored_when_the_graph_raises() -> None:
    def looked_up(x: Tensor, at: Tensor) -> Tensor:
        x.requires_grad_()
        return x[at].sum()

    run, x = jitmagic.jit(looked_up), torch.randn(4)
    run(torch.randn(4), torch.tensor([0, 3]))
    with pytest.raises(IndexError):
        run(x, torch.tensor([9]))
    assert x.requires_grad  # as in eager, which gets as far as that
