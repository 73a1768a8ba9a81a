"""An operation that a stage behind the trace refuses is a graph break; the rest stays compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.errors import Unsupported

from ..counts import counts_of


@torch.library.custom_op("jitmagic_tests::leak", mutates_args=())
def _leak(x: Tensor) -> Tensor:
    """An operator whose gradient reads data, which no graph of a backward can."""
    return torch.where(x > 0, x, x * 0.25)


@_leak.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _leak_backward(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad if x.min().item() > 0 else torch.where(x > 0, grad, grad * 0.25)


_leak.register_autograd(_leak_backward, setup_context=_keep)


def _leaky(x: Tensor) -> Tensor:
    y = x.sin() * 2
    z = _leak(y)  # here
    return z * y + 1


def _resized(x: Tensor) -> Tensor:
    y = x * 2
    out = torch.empty(0)
    torch.add(y, 1, out=out)  # here
    return out.sin() + y


def _helper(x: Tensor) -> Tensor:
    return _leak(x.exp()) + 1


def _in_a_callee(x: Tensor) -> Tensor:
    y = x.sin() * 2
    return _helper(y) * y  # here


def _twice(x: Tensor) -> Tensor:
    a = _leak(x * 2)
    b = _leak(a + 1)  # here: a backward meets it first
    return a * b


def _in_a_loop(x: Tensor) -> Tensor:
    for n in range(3):
        x = _leak(x * n + 1) * 2  # here
    return x


PROGRAMS = [_leaky, _resized, _in_a_callee, _twice, _in_a_loop]


def _line_of(program: Callable[..., Any]) -> int:
    first = program.__code__.co_firstlineno
    with open(__file__) as source:
        lines = source.read().splitlines()
    return next(n for n in range(first, len(lines)) if "# here" in lines[n - 1])


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_values_and_gradients_are_eagers(program: Callable[..., Tensor], backend: str) -> None:
    run = jitmagic.jit(program, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error", jitmagic.FallbackWarning)
        for seed in range(2):
            x = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed))
            x.requires_grad_(program is not _resized)  # eager refuses out= of what needs grad
            ours, eager = run(x), program(x)
            torch.testing.assert_close(ours, eager)
            if x.requires_grad:
                torch.testing.assert_close(
                    torch.autograd.grad(ours.sum(), x), torch.autograd.grad(eager.sum(), x)
                )


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_what_is_around_it_is_compiled(program: Callable[..., Tensor]) -> None:
    run = jitmagic.jit(program)
    x = torch.randn(2, 3).requires_grad_(program is not _resized)
    run(x)
    found = counts_of(run)
    assert found.breaks >= 1
    assert found.graphs >= 2


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_fullgraph_names_the_line(program: Callable[..., Tensor]) -> None:
    x = torch.randn(2, 3).requires_grad_(program is not _resized)
    with pytest.raises(Unsupported, match="could not be compiled") as caught:
        jitmagic.jit(program, fullgraph=True)(x)
    assert f"line {_line_of(program)}, in {program.__name__}" in str(caught.value)
