"""`t.requires_grad = True` inside, of tensors that stay there and of those that are handed out."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic

from ..counts import counts_of
from ..harness import assert_alike

torch.manual_seed(0)
LINEAR = nn.Linear(4, 4)


def a_view_of_an_input(x: Tensor) -> Any:
    h = x[:, None]
    h.requires_grad = True
    return LINEAR(h).relu()


def by_the_method(x: Tensor) -> Any:
    h = x.detach().clone().requires_grad_()
    y = LINEAR(h).tanh()
    return y, y * 2, h.is_leaf, y.requires_grad


def some_results_from_it_alone(x: Tensor) -> Any:
    h = x * 2
    h.requires_grad = True
    return h * 3, LINEAR(x)


def its_base_is_written(x: Tensor) -> Any:
    h = x[:, None]
    h.requires_grad = True
    x.add_(1)
    return LINEAR(h)


def written_without_grad(x: Tensor) -> Any:
    h = x * 2
    h.requires_grad = True
    with torch.no_grad():
        h.mul_(3)
    return LINEAR(h) + h


def switched_to_what_it_is(x: Tensor) -> Any:
    x.requires_grad = False
    return LINEAR(x).requires_grad_()


def an_input(x: Tensor) -> Any:
    x.requires_grad = True
    return LINEAR(x) * x


def no_input_requires_grad(x: Tensor) -> Any:
    h = x * 2
    h.requires_grad = True
    return h * 3


def handed_out(x: Tensor) -> Any:
    h = x * 2
    h.requires_grad = True
    return h, LINEAR(h)


def a_view_is_handed_out(x: Tensor) -> Any:
    h = x * 2
    h.requires_grad = True
    return h.view(-1), LINEAR(h)


def handed_out_in_an_object(x: Tensor) -> Any:
    held = types.SimpleNamespace(h=x * 2)
    held.h.requires_grad = True
    return held, LINEAR(held.h)


WHOLE = [
    a_view_of_an_input, by_the_method, some_results_from_it_alone, its_base_is_written,
    written_without_grad, switched_to_what_it_is, an_input,
    no_input_requires_grad, handed_out, a_view_is_handed_out, handed_out_in_an_object,
]  # fmt: skip


def no_leaf(x: Tensor) -> Any:
    h = LINEAR(x)
    h.requires_grad = True
    return h


def of_integers(x: Tensor) -> Any:
    h = x.long()
    h.requires_grad = True
    return h


def written_in_place(x: Tensor) -> Any:
    h = x * 2
    h.requires_grad = True
    return h.add_(1)


def no_bool(x: Tensor) -> Any:
    h = x * 2
    h.requires_grad = 1
    return LINEAR(h)


BROKEN = [no_leaf, of_integers, written_in_place, no_bool]


def tensors_of(result: Any) -> list[Any]:
    if isinstance(result, types.SimpleNamespace):
        return tensors_of(result.h)
    return [r for part in result for r in tensors_of(part)] if type(result) is tuple else [result]


def seen(fn: Any) -> list[Any]:
    """Results, what they are to autograd, and all gradients."""
    x = torch.arange(12.0).reshape(3, 4) / 7
    LINEAR.zero_grad()
    try:
        parts = tensors_of(fn(x))
    except (RuntimeError, TypeError) as error:
        return [type(error), str(error), x, x.requires_grad]
    tensors = [part for part in parts if isinstance(part, Tensor)]
    torch.autograd.backward([t.sum() for t in tensors if t.requires_grad])
    kinds = [(t.requires_grad, t.is_leaf) for t in tensors]
    leaves = [t for t in (*tensors, x, LINEAR.weight) if t.is_leaf]
    return [*parts, *kinds, x, *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("program", WHOLE + BROKEN, ids=lambda program: program.__name__)
def test_as_eager(program: Any) -> None:
    want = seen(program)
    tagged = jitmagic.jit(program)
    for _ in range(2):
        assert_alike(seen(tagged), want)
    assert (counts_of(tagged).breaks == 0) == (program in WHOLE)


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_a_step_of_an_inference_tensor_raises_as_eager(backend: str) -> None:
    """Autograd cannot save it; a whole step in one graph would save nothing."""

    def step(x: Tensor) -> None:
        LINEAR(x).square().sum().backward()

    with torch.inference_mode():
        x = torch.ones(2, 4)
    for run in (step, jitmagic.jit(step, backend=backend)):
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
            run(x)
