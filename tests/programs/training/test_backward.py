"""backward() in a function, in the ways that are no plain training step: against eager, where the
graph goes on and where it ends before the call.

Each program is called on two copies of its tensors. Compared are results, errors, and every tensor
with its gradient afterwards: values, layout, whether two gradients are one tensor or share memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from tests.covering import covered
from tests.processes import run_forked

from ..counts import counts_of

Tensors = dict[str, Tensor]


def given(t):
    (t["w"] * t["x"]).backward(t["x"])


def in_reverse(t):
    t["w"].t().contiguous().view(-1).backward(t["x"].flatten())


def of_a_leaf(t):
    t["w"].backward(t["x"])
    t["w"].grad.mul_(2)


def views_of_one_gradient(t):
    torch.cat([t["w"], t["v"]]).backward(torch.ones(4, 3))
    t["w"].grad.add_(1)


def chosen(t):
    (t["w"] * t["v"]).sum().backward(inputs=[t["v"]])


def through_an_input(t):
    t["v"].mul(t["w"]).sin().sum().backward()
    return t["v"].grad * 2


def retained(t):
    loss = (t["w"] ** 2).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return loss.detach()


def again(t):
    loss = (t["w"] ** 2).sum()
    loss.backward()
    loss.backward()


def nothing_requires(t):
    t["x"].sum().backward()


def no_scalar(t):
    (t["w"] * 2).backward()


def assigned(t):
    t["w"].grad = t["x"]
    (t["w"] * 3).sum().backward()
    return t["w"].grad is t["x"]


def deleted(t):
    (t["w"] * 3).sum().backward()
    del t["w"].grad
    return t["w"].grad


def replaced(t):
    (t["w"] * 3).sum().backward()
    old = t["w"].grad
    t["w"].grad = None
    (t["w"] * 4).sum().backward()
    return old, old is t["w"].grad


def unused(t):
    (t["w"] * 3).sum().backward()
    return t["v"].grad is None


def own_leaf(t):
    leaf = torch.ones(2, 3).requires_grad_()
    (leaf * t["w"]).sum().backward()
    return leaf.grad + 1


def written_between(t):
    loss = (t["w"] * t["v"]).sum()
    with torch.no_grad():
        t["v"].mul_(2)
    loss.backward()


def written_behind(t):
    loss = (t["w"] * t["v"]).sum()
    loss.backward()
    with torch.no_grad():
        t["w"] -= t["w"].grad
    return (t["w"] * 2).sum().detach()


def alive_and_written(t):
    """A result that a later backward starts from, with a leaf written behind it."""
    other = (t["v"] * 2).sum()
    (t["w"] * 3).sum().backward()
    with torch.no_grad():
        t["v"] -= 1
    return other


def spent_and_viewed(t):
    """Views of it that have no history, and one that has what was freed."""
    freed = t["w"] * t["w"]
    freed.sum().backward()
    return freed, freed.detach(), freed.detach()[0], freed.data


def spent_and_alive(t):
    freed = (t["w"] * t["w"]).sum()
    freed.backward()
    return freed, (t["v"] * 2).sum()


def penalty(t):
    """Gradients with a history, differentiated by the next backward."""
    (t["w"] * t["v"]).sin().sum().backward(create_graph=True, inputs=[t["w"]])
    norm = (t["w"].grad ** 2).sum()
    t["w"].grad = None
    norm.backward()
    return norm.detach()


def created(t):
    (t["w"] ** 3).sum().backward(create_graph=True)


def created_twice(t):
    loss = (t["w"] ** 3).sum() + t["v"].sum()
    loss.backward(create_graph=True)
    loss.backward(create_graph=True)
    return t["w"].grad * 2


def created_and_freed(t):
    loss = (t["w"] ** 3).sum()
    loss.backward(retain_graph=False, create_graph=True)
    t["w"].grad = t["w"].grad.detach()


def created_and_summed(t):
    (t["w"] ** 3).sum().backward(create_graph=True)
    (t["w"].grad ** 2).sum().backward()


def created_without_grad_mode(t):
    loss = (t["w"] ** 3).sum()
    with torch.no_grad():
        loss.backward(create_graph=True)


def without_grad(t):
    with torch.no_grad():
        loss = (t["w"] * 2).sum()
    loss.backward()


WHOLE: list[Callable[[Tensors], Any]] = [
    given, in_reverse, of_a_leaf, views_of_one_gradient, chosen, through_an_input, retained,
    assigned, deleted, replaced, unused, own_leaf, written_behind, spent_and_alive,
    penalty, created, created_twice, created_and_freed, alive_and_written,
    spent_and_viewed,
]  # fmt: skip
ENDS: list[Callable[[Tensors], Any]] = [
    again, nothing_requires, no_scalar, written_between, without_grad,
    created_and_summed, created_without_grad_mode,
]  # fmt: skip


def tensors(grads: bool = False, hook: str = "") -> Tensors:
    made = {
        "w": torch.linspace(-1, 1, 6).view(2, 3).requires_grad_(),
        "v": torch.linspace(0, 3, 6).view(3, 2).t().requires_grad_(),
        "x": torch.linspace(2, 5, 6).view(2, 3),
    }
    made["v"] = made["v"].detach().requires_grad_()
    if grads:
        for name in ("w", "v"):
            made[name].grad = torch.full((2, 3), 0.5)
    return made


def shown(call: Callable[[Tensors], Any], made: Tensors) -> list[Any]:
    held = [tensor.grad for tensor in made.values()]
    try:
        result = call(made)
    except RuntimeError as error:
        result = str(error)
    seen: list[Any] = list(result) if isinstance(result, tuple) else [result]
    for one in list(seen):
        if isinstance(one, Tensor) and one.requires_grad:
            try:
                one.backward()
            except RuntimeError as error:
                seen.append(str(error))
    after = [tensor.grad for tensor in made.values()]
    seen += [*made.values(), *held, *after]
    seen += [one is other for one, other in zip(held, after, strict=True)]
    seen += [None if grad is None else (grad.stride(), grad.requires_grad) for grad in after]
    memories = [None if grad is None else grad.untyped_storage().data_ptr() for grad in after]
    memories.append(made["x"].untyped_storage().data_ptr())
    return [*seen, [a == b for a in memories for b in memories]]


def same(got: list[Any], want: list[Any]) -> None:
    for ours, eager in zip(got, want, strict=True):
        assert type(ours) is type(eager)
        if isinstance(eager, Tensor):
            assert ours.requires_grad == eager.requires_grad
            torch.testing.assert_close(ours, eager)
        else:
            assert ours == eager


@pytest.mark.filterwarnings("ignore:.*:jitmagic.errors.FallbackWarning")
@covered(program=[*WHOLE, *ENDS], grads=[False, True], backend=["eager", "native"])
def test_as_eager(program: Callable[[Tensors], Any], grads: bool, backend: str) -> None:
    tagged = jitmagic.jit(program, backend=backend)
    for _ in range(2):
        same(shown(tagged, tensors(grads)), shown(program, tensors(grads)))
    assert (counts_of(tagged).breaks == 0) == (program in WHOLE)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", [created, created_twice], ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore:.*:jitmagic.errors.FallbackWarning")  # a result of another
def test_a_gradient_with_a_history_is_differentiated_later(
    program: Callable[[Tensors], Any], backend: str
) -> None:
    def second(call: Callable[[Tensors], Any]) -> Tensor:
        made = tensors()
        call(made)
        first: Any = made["w"].grad
        return torch.autograd.grad((first**2).sum(), made["w"])[0]

    tagged = jitmagic.jit(program, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(second(tagged), second(program))


def test_create_graph_warns_once_as_the_engine_does() -> None:
    """Once in a process, so each side has one of its own; a filter may make it an error."""
    done = run_forked(WARNS)
    assert done.stdout.split() == ["1"] * 4, (done.stdout, done.stderr)


WARNS = """
import os, warnings, torch, jitmagic

def f(w):
    (w ** 2).sum().backward(create_graph=True)

def told(run):
    seen = []
    warnings.showwarning = lambda message, *rest: seen.append(str(message))
    for _ in range(2):
        try:
            run(torch.ones(2, requires_grad=True))
        except UserWarning as error:
            seen.append(str(error))
    return sum("reference cycle" in words for words in seen)

for action in ("default", "error"):
    for run in (f, jitmagic.jit(f, backend="eager")):
        if not (child := os.fork()):  # before the engine has started a thread
            warnings.resetwarnings()
            warnings.simplefilter(action)
            print(told(run), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
"""
CALLS: list[str] = []


def hooked(made: Tensors, kind: str) -> Tensors:
    CALLS.clear()
    if kind == "tensor":
        made["w"].register_hook(lambda grad: grad * 2)
    elif kind == "post":
        made["w"].register_post_accumulate_grad_hook(lambda leaf: CALLS.append("post"))
    elif kind == "accumulator":
        node: Any = made["w"].expand_as(made["w"]).grad_fn
        made["kept"] = node.next_functions[0][0]
        made["kept"].register_hook(lambda *given: CALLS.append("accumulator"))
    return made


@pytest.mark.parametrize("kind", ["tensor", "post", "accumulator"])
def test_hooks_that_come_later_are_noticed(kind: str) -> None:
    tagged = jitmagic.jit(through_an_input)

    def run(call: Callable[[Tensors], Any], hook: str) -> tuple[Any, list[str]]:
        made = hooked(tensors(), hook)
        call(made)
        return made["w"].grad, list(CALLS)

    for hook in ("", kind, ""):
        (ours, calls), (eager, wanted) = run(tagged, hook), run(through_an_input, hook)
        torch.testing.assert_close(ours, eager)
        assert calls == wanted


def test_anomaly_mode_is_eager_s() -> None:
    def root(t: Tensors) -> None:
        (t["w"] * 0).sqrt().sum().backward()

    tagged = jitmagic.jit(root)
    tagged(tensors())
    for call in (root, tagged, tagged):
        with torch.autograd.set_detect_anomaly(True), pytest.raises(RuntimeError, match="nan"):
            call(tensors())
