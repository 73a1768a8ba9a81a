"""A backward after the compiled call runs the hooks that the call has registered, as eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import jitmagic
from tests.programs.counts import breaks_of, counts_of

from .differentiating import Seen, assert_same, once, parts, twice, with_second_derivatives

pytestmark = pytest.mark.filterwarnings("ignore:.* is differentiated twice")


def named(seen: Seen, name: str, factor: float | None = None) -> Callable[[Tensor], Any]:
    def hook(gradient: Tensor | None) -> Tensor | None:
        seen.append((name, None if gradient is None else gradient.clone()))
        return None if factor is None or gradient is None else gradient * factor

    return hook


# -- hooks of tensors ------------------------------------------------------------------------------


def scaled(x: Tensor, w: Tensor, seen: Seen) -> Any:
    hidden = x @ w
    hidden.register_hook(lambda gradient: gradient * 0.5)
    return hidden.sin().sum()


def reads_other_tensors(x: Tensor, w: Tensor, seen: Seen) -> Any:
    hidden = x @ w
    size = hidden.detach().abs().mean()
    hidden.register_hook(lambda gradient: gradient * size + hidden.detach() * w.mean())
    return hidden.sin().sum()


def reads_what_it_returns(x: Tensor, w: Tensor, seen: Seen) -> Any:
    hidden = x @ w
    size = hidden.detach().abs().mean()
    hidden.register_hook(lambda gradient: gradient * size)
    loss = hidden.sin().sum()
    size += 1
    return loss, size


BUFFER = torch.ones(8, dtype=torch.float64)


def reads_a_buffer(x: Tensor, w: Tensor, seen: Seen) -> Any:
    hidden = x @ w
    hidden.register_hook(lambda gradient: gradient * BUFFER)
    return hidden.sin().sum()


def writes_a_buffer(x: Tensor, w: Tensor, seen: Seen) -> Any:
    hidden = x @ w
    hidden.register_hook(lambda gradient: gradient * BUFFER)
    BUFFER.mul_(1.5)
    return hidden.sin().sum()


FACTOR = 2.0


def reads_a_number(x: Tensor, w: Tensor, seen: Seen) -> Any:
    hidden = x @ w
    hidden.register_hook(lambda gradient: gradient * FACTOR)
    return hidden.sin().sum()


def in_many_steps(x: Tensor, w: Tensor, seen: Seen) -> Any:
    for _ in range(20):
        x = torch.tanh(x @ w)
        x.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
        x.register_hook(lambda gradient: gradient * 1.1)
    return x.sum()


def after_its_uses(x: Tensor, w: Tensor, seen: Seen) -> Any:
    hidden = x @ w
    made = hidden.sin()
    hidden.register_hook(named(seen, "hidden", 2))
    return (made + hidden).sum()


def several(x: Tensor, w: Tensor, seen: Seen) -> Any:
    a, b, c = x @ w, x * 2, w.sin()
    d = a.sin()
    for name, one in {"c": c, "a": a, "b": b, "d": d}.items():
        one.register_hook(named(seen, name, 0.5))
        one.register_hook(named(seen, f"{name} again"))
    return (d + b @ c).sum()


def in_a_loop(x: Tensor, w: Tensor, seen: Seen) -> Any:
    for step in range(4):
        x = (x @ w).sin()
        x.register_hook(lambda gradient, step=step: seen.append((step, gradient.norm())))
    return x.sum()


def of_views(x: Tensor, w: Tensor, seen: Seen) -> Any:
    hidden = x @ w
    part, turned = hidden[:2], hidden.T
    part.register_hook(lambda gradient: gradient.sin())
    part.register_hook(named(seen, "part", 0.5))
    turned.register_hook(named(seen, "turned", 3))
    return part.sin().sum() + hidden.sum() + (turned.sin().T @ w).sum()


def of_a_view_of_an_input(x: Tensor, w: Tensor, seen: Seen) -> Any:
    turned, other = x.T, x * x
    turned.register_hook(lambda gradient: gradient.sin())
    return (turned.sin().T @ w).sum() + other.sum(), other


def and_autograd_functions(x: Tensor, w: Tensor, seen: Seen) -> Any:
    hidden, other = Sine.apply(x), x * x
    hidden.register_hook(lambda gradient: gradient * gradient)
    return hidden.sum() + other.sum(), other, hidden * 2


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.sin()


def of_one_of_several_results(x: Tensor, w: Tensor, seen: Seen) -> Any:
    unused, used, *_ = (x @ w).unbind()
    unused.register_hook(named(seen, "unused"))
    used.register_hook(named(seen, "used", 0.5))
    return used.sin().sum()


def of_inputs_and_results(x: Tensor, w: Tensor, seen: Seen) -> Any:
    x.register_hook(lambda gradient: gradient * 0.5)
    w.register_hook(named(seen, "w"))
    w.register_post_accumulate_grad_hook(lambda w: seen.append(w.grad.clone()))
    made = (x @ w).sin().sum()
    made.register_hook(named(seen, "made", 2))
    return made


def of_what_it_returns_too(x: Tensor, w: Tensor, seen: Seen) -> Any:
    hidden = x @ w
    hidden.register_hook(named(seen, "hidden", 0.5))
    hidden.retain_grad()
    return hidden.sin().sum(), hidden


def removed(x: Tensor, w: Tensor, seen: Seen) -> Any:
    hidden = x @ w
    first = hidden.register_hook(named(seen, "first", 0.5))
    hidden.register_hook(named(seen, "second", 3))
    first.remove()
    return hidden.sin().sum(), first


def with_variables_of_the_frame(x: Tensor, w: Tensor, seen: Seen) -> Any:
    count, calls = 0, []

    def hook(gradient: Tensor) -> Tensor:
        nonlocal count
        count += 1
        calls.append(count)
        return gradient * count

    (hidden := x @ w).register_hook(hook)
    return hidden.sin().sum(), calls, lambda: count


def bound_methods(x: Tensor, w: Tensor, seen: Seen) -> Any:
    hidden = x @ w
    hidden.register_hook(torch.nan_to_num)
    hidden.register_hook(seen.append)
    return hidden.sin().sum()


def in_a_checkpoint(x: Tensor, w: Tensor, seen: Seen) -> Any:
    def block(x: Tensor, w: Tensor) -> Tensor:
        hidden = x @ w
        hidden.register_hook(lambda gradient: gradient * 0.5)
        return hidden.sin()

    return checkpoint(block, x, w, use_reentrant=False).sum()


def after_a_write(x: Tensor, w: Tensor, seen: Seen) -> Any:
    hidden = (x @ w).mul_(2)
    hidden.register_hook(named(seen, "hidden", 0.5))
    return hidden.sin().sum()


def raises(x: Tensor, w: Tensor, seen: Seen) -> Any:
    def hook(gradient: Tensor) -> None:
        seen.append("hook")
        raise ValueError("boom")

    (hidden := x @ w).register_hook(hook)
    return hidden.sin().sum()


def returns_no_gradient(x: Tensor, w: Tensor, seen: Seen) -> Any:
    (hidden := x @ w).register_hook(lambda gradient: 5)
    return hidden.sin().sum()


PROGRAMS = [
    scaled, reads_other_tensors, reads_what_it_returns, reads_a_buffer, writes_a_buffer,
    reads_a_number, in_many_steps, after_its_uses, several, in_a_loop, of_views,
    of_a_view_of_an_input, and_autograd_functions,
    of_one_of_several_results, of_inputs_and_results, of_what_it_returns_too, removed,
    with_variables_of_the_frame, bound_methods, in_a_checkpoint, after_a_write, raises,
    returns_no_gradient,
]  # fmt: skip


def keeps_in_a_checkpoint(x: Tensor, w: Tensor, seen: Seen) -> Any:
    def block(x: Tensor, w: Tensor) -> Tensor:
        hidden = x @ w
        hidden.register_hook(named(seen, "hidden", 0.5))
        return hidden.sin()

    return checkpoint(block, x, w, use_reentrant=False).sum()


def replaces_one_of_several_gradients_by_zeros(x: Tensor, w: Tensor, seen: Seen) -> Any:
    hidden, other = x @ w, x * 2
    hidden.register_hook(torch.zeros_like)
    return hidden.sin().sum() + other.sum(), (hidden + other).sum(), other


def before_a_write(x: Tensor, w: Tensor, seen: Seen) -> Any:
    hidden = x @ w
    hidden.register_hook(named(seen, "hidden", 0.5))
    return hidden.mul_(2).sin().sum()


def before_a_backward_inside(x: Tensor, w: Tensor, seen: Seen) -> Any:
    hidden = x @ w
    hidden.register_hook(named(seen, "hidden", 0.5))
    made = hidden.sin().sum()
    made.backward(retain_graph=True)
    return made


def of_a_leaf_before_a_backward(x: Tensor, w: Tensor, seen: Seen) -> Any:
    w.register_hook(named(seen, "w"))
    (x @ w).sin().sum().backward()
    return (x @ w).sum()


def where_nothing_requires_grad(x: Tensor, w: Tensor, seen: Seen) -> Any:
    made = x.detach() * 2
    try:
        made.register_hook(named(seen, "made"))
    except RuntimeError as error:
        seen.append(str(error))
    return (made @ w).sum()


BROKEN = [
    before_a_write, before_a_backward_inside, of_a_leaf_before_a_backward,
    where_nothing_requires_grad, keeps_in_a_checkpoint, replaces_one_of_several_gradients_by_zeros,
]  # fmt: skip


# -- the tests ------------------------------------------------------------------------------------


def seen_by(function: Callable[..., Any], differentiate: Any, rows: int = 6) -> list[Any]:
    generator = torch.Generator().manual_seed(rows)
    x, w = (torch.randn(n, 8, generator=generator, dtype=torch.float64) / 3 for n in (rows, 8))
    x, w = x.requires_grad_(), w.requires_grad_()
    seen: Seen = []
    BUFFER.fill_(rows)
    made = function(x, w, seen)
    BUFFER.add_(1)
    loss, *rest = made if isinstance(made, tuple) else (made,)
    try:
        more = differentiate(loss, x, w)
    except (ValueError, TypeError, RuntimeError) as error:
        more = str(error)
    return parts([loss, *rest, more, x, w, seen])


def check(program: Any, differentiate: Any, **keywords: Any) -> Callable[..., Any]:
    tagged = jitmagic.jit(program, **keywords)
    for rows in (6, 5, 4):
        want = seen_by(program, differentiate, rows)
        assert_same(seen_by(tagged, differentiate, rows), want)
    return tagged


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("differentiate", [once, twice, with_second_derivatives])
def test_hooks_of_tensors_are_one_graph(program, differentiate):
    tagged = check(program, differentiate)
    assert not breaks_of(tagged)
    assert counts_of(tagged).graphs <= (3 if program is of_one_of_several_results else 2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_hooks_of_tensors_under_other_backends(program, backend):
    assert not breaks_of(check(program, once, backend=backend))


@pytest.mark.parametrize("program", BROKEN, ids=lambda p: p.__name__)
def test_hooks_that_an_exit_cannot_register_break_the_graph(program):
    assert breaks_of(check(program, once))


def test_a_handle_removes_the_hook_after_the_call():
    seen: Seen = []

    def program(x: Tensor) -> Any:
        hidden = x * 2
        return hidden.sin().sum(), hidden.register_hook(seen.append), x.register_hook(seen.append)

    tagged = jitmagic.jit(program)
    for removes in (False, True):
        x = torch.ones(3, requires_grad=True)
        made, *handles = tagged(x)
        for handle in handles if removes else ():
            handle.remove()
        made.backward()
        assert len(seen) == 2
    assert not breaks_of(tagged)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 2.0

    def forward(self, x: Tensor) -> Tensor:
        hidden = x * 2
        hidden.register_hook(lambda gradient: gradient * self.factor * FACTOR)
        return hidden.sin().sum()


def test_a_hook_reads_python_state_when_it_runs(monkeypatch):
    model = Scaled()
    tagged, found = jitmagic.jit(model), []
    for run in (tagged, model):
        for step in range(6):
            x = torch.ones(3, requires_grad=True)
            loss = run(x)
            model.factor = step + 1.5
            monkeypatch.setitem(globals(), "FACTOR", step + 0.5)
            loss.backward()
            found.append(x.grad)
    torch.testing.assert_close(found[:6], found[6:])
    assert counts_of(tagged).graphs == 1 and not breaks_of(tagged)


def test_a_hook_that_is_replaced_is_compiled_again():
    def program(x: Tensor) -> Tensor:
        hidden = x * 2
        hidden.register_hook(hooks["one"])
        return hidden.sin().sum()

    tagged, found = jitmagic.jit(program), []
    for run in (tagged, program):
        for hook in (torch.sin, torch.cos, torch.sin):
            hooks = {"one": hook}
            x = torch.ones(3, requires_grad=True)
            loss = run(x)
            hooks["one"] = torch.exp
            loss.backward()
            found.append(x.grad)
    torch.testing.assert_close(found[:3], found[3:])


def test_a_hook_runs_without_a_history_and_only_with_gradients():
    tagged = jitmagic.jit(scaled)
    with torch.no_grad(), pytest.raises(RuntimeError, match="doesn't require gradient"):
        tagged(torch.ones(3, 8), torch.ones(8, 8), [])


def test_a_graph_that_cannot_be_split_breaks_at_the_hooked_tensor():
    def program(x: Tensor, w: Tensor, seen: Seen) -> Tensor:
        hidden = x @ w
        hidden.register_hook(named(seen, "hidden", 0.5))
        (slope,) = torch.autograd.grad(w.square().sum(), w, create_graph=True)
        return hidden.sin().sum() + slope.sum()

    assert any("has a hook" in why for why in breaks_of(check(program, once)))
