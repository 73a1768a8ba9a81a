"""Gradients of wrapper subclasses are wrappers, as eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic

from ...covering import covered
from ..counts import breaks_of, counts_of
from .classes import TwoTensor, scaled, two
from .compared import BACKENDS, assert_same, check, reasons_of

F = nn.functional


def leaf(*shape: int) -> TwoTensor:
    return two(*shape).requires_grad_()


def one(n: int) -> tuple[TwoTensor]:
    return (leaf(4, 4),)


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    "arithmetic": (lambda x: (x * 2 + 1).relu(), one),
    "two wrappers": (lambda x, y: (x @ y, x.sin()), lambda n: (leaf(4, 4), leaf(4, 4))),
    "with a plain tensor": (lambda x, y: (x * y).sum(), lambda n: (leaf(4, 4), torch.randn(4, 4))),
    "with one that has none": (lambda x, y: torch.stack([x, y * 2]), lambda n: (leaf(4), two(4))),
    "a part": (lambda x: x[1:3].exp(), one),
    "transposed": (lambda x: x.t() @ x, one),
    "softmax and norm": (lambda x: F.layer_norm(F.softmax(x, -1), (4,)), one),
    "a non-leaf": (lambda x: x * 3, lambda n: (leaf(4, 4) * 1,)),
    "in place, on a result": (lambda x: (x * 1).mul_(2), one),
    "an inner tensor": (lambda x: ((x + 1).b, x.a * 2), one),
    "detached": (lambda x: (x.detach() * 2, x * 2), one),
    "the argument too": (lambda x: (x, x * 1), one),
    "without gradients": (torch.no_grad()(lambda x: x * 2), one),
    "of a plain tensor beside": (
        lambda x, w: F.linear(x, w).sin(),
        lambda n: (torch.randn(3, 4, requires_grad=True), scaled(5, 4)),
    ),
}


@torch.no_grad()
def updated(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Write to an argument and to a new tensor by list operations."""
    z = torch.zeros_like(x)
    torch._foreach_add_([x, z], 1.0)
    torch._foreach_lerp_([z], [y], 0.25)
    return x, z


PROGRAMS["in place, by list operations"] = updated, lambda n: (two(4, 4), two(4, 4))


def casting(program: Callable[..., Any]) -> Callable[..., Any]:
    """Return the program under autocast to bfloat16."""
    return torch.autocast("cpu", torch.bfloat16)(program)


@torch.autocast("cpu", torch.bfloat16)
def cast_and_not(x: Tensor, w: Tensor) -> Tensor:
    """Use a leaf under autocast and outside of it."""
    with torch.autocast("cpu", enabled=False):
        z = x @ w
    return (x @ w).float() + z


PROGRAMS |= {
    "autocast, a product": (casting(lambda x, w: x @ w), lambda n: (leaf(4, 4), leaf(4, 4))),
    "autocast, products of plain and wrapped": (
        casting(lambda x, w, b: F.linear(x, w, b).relu()),
        lambda n: (torch.randn(3, 4), leaf(5, 4), leaf(5)),
    ),
    "autocast, kept in float32": (
        casting(lambda x, w: (x @ w).softmax(-1).sum()),
        lambda n: (leaf(4, 4), two(4, 4)),
    ),
    "autocast, not cast": (casting(lambda x: x * 2 + 1), one),
    "autocast, a non-leaf": (casting(lambda x, w: x @ w), lambda n: (leaf(4, 4) * 1, two(4, 4))),
    "autocast, bfloat16 comes in": (casting(lambda x: x @ x), lambda n: (two(4, 4).bfloat16(),)),
    "autocast, without gradients": (torch.no_grad()(casting(lambda x: x @ x)), one),
    "autocast, on and off": (cast_and_not, lambda n: (leaf(4, 4), leaf(4, 4))),
}


@covered(program=PROGRAMS, backend=BACKENDS)
def test_gradients_of_wrappers_are_eagers(program: str, backend: str) -> None:
    check(*PROGRAMS[program], backend)


def test_gradients_accumulate_over_calls() -> None:
    grads = []
    for each in (jitmagic.jit(lambda x: x * 2), lambda x: x * 2):
        x = two_of_ones()
        for _ in range(3):
            result = each(x)
            result.backward(two_of_ones().detach())
        grads.append(x.grad)
    assert_same(*grads)


def two_of_ones() -> TwoTensor:
    return TwoTensor(torch.ones(3), torch.ones(3) * 2).requires_grad_()


@pytest.mark.filterwarnings("ignore::jitmagic.errors.FallbackWarning")  # torch runs such a backward
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_gradients_are_eagers(backend: str) -> None:
    def cubed(x: Tensor) -> Tensor:
        return x * x * x

    seen = []
    for each in (jitmagic.jit(cubed, backend=backend), cubed):
        x = two_of_ones()
        (first,) = torch.autograd.grad(each(x), x, two_of_ones().detach(), create_graph=True)
        first.backward(two_of_ones().detach())
        seen.append((first, x.grad))
    assert_same(*seen)


def _model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    for layer in (model[0], model[2]):
        for name, value in list(layer.named_parameters()):
            inner = value.detach()
            setattr(layer, name, nn.Parameter(TwoTensor(inner.clone(), inner * 2)))
    return model


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("whole", [False, True])
def test_training_with_parameters_that_are_wrappers(backend: str, whole: bool) -> None:
    def trained(compiled: bool) -> tuple[list[Tensor], Any]:
        model = _model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            if whole:
                loss.backward()
                optimizer.step()
            return loss

        run = jitmagic.jit(step, backend=backend) if compiled else step
        torch.manual_seed(1)
        for rows in (5, 9, 6, 5):
            loss = run(torch.randn(rows, 4), torch.randn(rows, 2))
            if not whole:
                loss.backward(TwoTensor(torch.tensor(1.0), torch.tensor(1.0)))
                optimizer.step()
        return [*model.parameters(), *(p.grad for p in model.parameters())], run

    (found, run), (wanted, _) = trained(True), trained(False)
    assert_same(found, wanted)
    assert breaks_of(run) == []
    assert counts_of(run).graphs <= 3  # momentum starts in the first call, rows vary


# what is asked, the program and its arguments, the reason
REFUSED = {
    "history of an argument": (
        lambda x, w: x.mul_(w),
        lambda n: (two(4), torch.randn(4, requires_grad=True)),
        "changes the history of a tensor subclass",
    ),
    "ints with a gradient": (
        lambda x: x * 2,
        lambda n: (scaled(3, 4).requires_grad_(),),
        "a Traced with other metadata than in the compiled graph",
    ),
    "vmap": (
        lambda x: torch.vmap(torch.sin)(x),
        lambda n: (two(4, 4),),
        "an argument is a tensor subclass",
    ),
    "a leaf that the frame makes": (
        lambda x: TwoTensor(x, x) * 2,
        lambda n: (torch.randn(4, requires_grad=True),),
        "an inner tensor of a TwoTensor requires grad",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_a_reason_and_run_as_eager(case: str) -> None:
    program, make, why = REFUSED[case]
    compiled = jitmagic.jit(program)
    seen = []
    for each in (compiled, program):
        torch.manual_seed(0)
        try:
            seen.append(each(*make(0)))
        except RuntimeError as error:
            seen.append(type(error))
    assert_same(*seen)
    assert why in reasons_of(compiled)


def test_the_gradient_of_a_result_with_other_metadata_is_an_error() -> None:
    x = leaf(3)
    result = jitmagic.jit(lambda x: x * 2)(x)
    with pytest.raises(RuntimeError, match="the gradient of a TwoTensor is a Tensor"):
        torch.autograd.backward(result, torch.ones(3))
