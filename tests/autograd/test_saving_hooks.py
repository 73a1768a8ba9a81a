"""Hooks of saved tensors around and in compiled code: they see what eager saves, as it saves it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import jitmagic
from jitmagic.api import handle_of


def program(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).sin().exp() * x.sum()


def inside(x: Tensor, w: Tensor) -> Tensor:
    y = x * 2
    with saved_tensors_hooks(halved, Tensor.float):
        z = (y @ w).sin().exp()
    return z * x.sum()


def halved(tensor: Tensor) -> Tensor:
    return tensor.to(torch.bfloat16)


def quantised(tensor: Tensor) -> tuple[Tensor, Tensor]:
    scale = tensor.abs().max() / 127
    return (tensor / scale).round().to(torch.int8), scale


def restored(packed: tuple[Tensor, Tensor]) -> Tensor:
    return packed[0].float() * packed[1]


SEEN: list[tuple[int, ...]] = []


def counted(tensor: Tensor) -> Tensor:
    SEEN.append(tuple(tensor.shape))
    return tensor


def same(tensor: Tensor) -> Tensor:
    return tensor


LOSSY = {
    "bfloat16": lambda: saved_tensors_hooks(halved, Tensor.float),
    "int8": lambda: saved_tensors_hooks(quantised, restored),
    "counted": lambda: saved_tensors_hooks(counted, same),
}
LOSSLESS = {
    "none": nullcontext,
    "save_on_cpu": save_on_cpu,
    "disabled": lambda: disable_saved_tensors_hooks("no hooks here"),
}


def gradients(function: Callable[..., Tensor], hooks: Callable[[], Any] = nullcontext) -> Any:
    SEEN.clear()
    torch.manual_seed(0)
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    with hooks():
        made = function(x, w)
    return [*torch.autograd.grad(made.sum(), (x, w)), list(SEEN)]


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("name", LOSSY)
def test_hooks_that_may_change_tensors_see_what_eager_saves(name, warm):
    compiled = jitmagic.jit(program)
    if warm:
        gradients(compiled)
    eager = gradients(program, LOSSY[name])
    for _ in range(2):
        ours = gradients(compiled, LOSSY[name])
        assert ours[2] == eager[2]
        assert all(torch.equal(a, b) for a, b in zip(ours[:2], eager[:2], strict=True))
    assert len(handle_of(compiled).dispatcher.entries) == warm
    torch.testing.assert_close(gradients(compiled), gradients(program))  # compiled again


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_hooks_keep_the_call_compiled(name):
    compiled = jitmagic.jit(program)
    for _ in range(2):
        torch.testing.assert_close(
            gradients(compiled, LOSSLESS[name]), gradients(program, LOSSLESS[name])
        )
    assert len(handle_of(compiled).dispatcher.entries) == 1


def test_hooks_within_compiled_code():
    compiled = jitmagic.jit(inside)
    for _ in range(2):
        torch.testing.assert_close(gradients(compiled), gradients(inside))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_compiled_function_that_is_checkpointed(reentrant):
    compiled = jitmagic.jit(program)

    def around(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, w: checkpoint(function, x, w, use_reentrant=reentrant)

    for _ in range(2):
        found = []
        for function in (compiled, program):
            x, w = (torch.ones(4, 4, requires_grad=True) for _ in range(2))
            around(function)(x, w).sum().backward()
            found.append((x.grad, w.grad))
        torch.testing.assert_close(*found)
    assert handle_of(compiled).dispatcher.entries


def test_fallback_to_the_original_warns_once(capsys):
    compiled = jitmagic.jit(program, options={"notices": "always"})
    for _ in range(3):
        gradients(compiled, LOSSY["counted"])
    shown = "".join(capsys.readouterr())
    assert shown.count("hooks of saved tensors are active") == 1
