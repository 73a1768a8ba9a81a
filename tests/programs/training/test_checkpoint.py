"""Activation checkpointing around and inside of compiled code: what it saves it must meet again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import jitmagic
from jitmagic.records import COMPILED

LAYER = nn.Linear(3, 3)
with torch.no_grad():
    LAYER.weight.copy_(torch.linspace(-0.6, 0.5, 9).view(3, 3))
    LAYER.bias.copy_(torch.linspace(0.1, 0.3, 3))


def block(x: Tensor) -> Tensor:
    return (LAYER(x).tanh() * x).exp().sin()


def inside(x: Tensor) -> Tensor:
    return checkpoint(lambda q: LAYER(q).tanh(), x * 2, use_reentrant=False) + 1


def reentrant(x: Tensor) -> Tensor:
    return checkpoint(block, x * 2, use_reentrant=True) + 1


def in_segments(x: Tensor) -> Tensor:
    layers = [LAYER, nn.ReLU(), LAYER]
    return checkpoint_sequential(layers, 2, x * 2, use_reentrant=False).sin()


def outside(x: Tensor, function: Callable[[Tensor], Tensor] = block) -> Tensor:
    return checkpoint(function, x, use_reentrant=False) * 2


def agree(function: Callable[[Tensor], Tensor], eager: Callable[[Tensor], Tensor]) -> None:
    for seed in range(3):
        shown = []
        for run in (function, eager):
            torch.manual_seed(seed)
            x = torch.randn(2, 3, requires_grad=True)
            LAYER.zero_grad()
            made = run(x)
            made.sum().backward()
            shown.append((made.detach(), x.grad, LAYER.weight.grad.clone()))
        for ours, wanted in zip(*shown, strict=True):
            torch.testing.assert_close(ours, wanted)


@pytest.mark.parametrize("function", [inside, reentrant, in_segments, outside])
def test_a_compiled_function_checkpoints(function: Callable[[Tensor], Tensor]) -> None:
    agree(jitmagic.jit(function), function)


def test_a_compiled_block_is_checkpointed() -> None:
    compiled = jitmagic.jit(block)
    agree(lambda x: outside(x, compiled), outside)
    assert jitmagic.api.handle_of(compiled).outcome == COMPILED


def test_both_are_compiled() -> None:
    function, compiled = jitmagic.jit(outside), jitmagic.jit(block)
    agree(lambda x: function(x, compiled), outside)


def test_a_compiled_module_is_checkpointed() -> None:
    plain = nn.Sequential(LAYER, nn.Tanh())
    module = jitmagic.jit(nn.Sequential(LAYER, nn.Tanh()))
    agree(lambda x: outside(x, module), lambda x: outside(x, plain))


def test_hooks_never_see_what_a_compile_saves() -> None:
    seen: list[torch.device] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor.device)
        return tensor

    compiled, x = jitmagic.jit(block), torch.randn(2, 3, requires_grad=True)
    counts = []
    for _ in range(2):
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            compiled(x).sum().backward()
        counts.append(len(seen))
    assert set(seen) == {torch.device("cpu")}
    assert counts[1] == 2 * counts[0]  # the call that compiled saved no more than the next one


def test_what_a_hook_raises_reaches_the_caller_once() -> None:
    calls = []

    def pack(tensor: Tensor) -> Tensor:
        calls.append(tensor)
        raise KeyError("packed")

    compiled, x = jitmagic.jit(block), torch.randn(2, 3, requires_grad=True)
    compiled(x)
    with saved_tensors_hooks(pack, lambda tensor: tensor), pytest.raises(KeyError, match="packed"):
        compiled(x)
    assert len(calls) == 1
    assert jitmagic.api.handle_of(compiled).outcome == COMPILED
