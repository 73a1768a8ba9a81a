"""A library of operators for the tests of jitmagic.extend, and the check of a program on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.extend import Registration, scalar

__all__ = [
    "W",
    "X",
    "calls",
    "cap",
    "check",
    "define",
    "left_to_the_kernel",
    "like",
    "ops",
    "reduced",
    "taught",
]

ops: Any = torch.ops.jitmagic_extend
LIBRARY = torch.library.Library("jitmagic_extend", "FRAGMENT")
calls: list[str] = []  # of kernels that ran


def define(schema: str, kernel: Callable[..., object], fake: Any = None) -> None:
    name = schema.partition("(")[0]

    def noted(*args: object) -> object:
        calls.append(name)
        return kernel(*args)

    LIBRARY.define(schema)
    LIBRARY.impl(name, noted, "CompositeExplicitAutograd")
    if fake is not None:
        torch.library.register_fake(f"jitmagic_extend::{name}", fake, lib=LIBRARY)


def rms(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * w


def like(x: Tensor, *others: object) -> Tensor:
    return torch.empty_like(x)


def reduced(x: Tensor, dims: list[int], keepdim: bool = False) -> Tensor:
    return (x * x).sum(dims, keepdim).sqrt()


define("bare(Tensor x, float limit) -> Tensor", lambda x, limit: limit * torch.tanh(x / limit))
define("cap(Tensor x, float limit) -> Tensor", lambda x, limit: limit * torch.tanh(x / limit), like)
define("rms(Tensor x, Tensor w, float eps) -> Tensor", rms, like)
define("length(Tensor x, int[] dims, bool keepdim=False) -> Tensor", reduced, reduced)
define(
    "swap(Tensor x, Tensor y) -> (Tensor, Tensor)",
    lambda x, y: (y + x, x - y),
    lambda x, y: (torch.empty_like(x), torch.empty_like(x)),
)
define("bump(Tensor x) -> Tensor", lambda x: x.add_(1).sum(), lambda x: x.new_empty(()))
define("pick(Tensor x, Tensor c) -> Tensor", lambda x, c: torch.where(c, x, x // 2), like)


@torch.library.custom_op("jitmagic_extend::taught", mutates_args=())
def taught(x: Tensor) -> Tensor:
    calls.append("taught")
    return torch.tanh(x) * x


taught.register_fake(torch.empty_like)
taught.register_autograd(
    lambda ctx, g: g * 3, setup_context=lambda ctx, inputs, output: None
)  # unlike the formula, so that it is seen which of the two is used


def cap(x: Any, limit: float) -> Any:
    return limit * scalar.tanh(x / limit)


def check(program: Callable[..., Any], *inputs: Tensor, runs: tuple[str, ...] = ()) -> None:
    """Compare compiled results with eager's, and the operators' kernels that ran."""
    expected = program(*(x.clone() for x in inputs))
    fast = jitmagic.jit(program, fullgraph=True)
    for _ in range(2):
        given = [x.clone() for x in inputs]
        calls.clear()
        torch.testing.assert_close(fast(*given), expected)
        assert tuple(calls) == runs
    assert len(jitmagic.api.handle_of(fast).dispatcher.entries) == 1


X, W = torch.linspace(-3, 3, 24).reshape(4, 6), torch.linspace(0.5, 1, 6)


def left_to_the_kernel(registration: Registration, words: str) -> list[str]:
    """Check that a call of `cap` under a wrong registration is right, and return its warnings."""
    fast = jitmagic.jit(lambda x: ops.cap(x, 2.0) + 1, fullgraph=True)
    with registration, pytest.warns(jitmagic.FallbackWarning, match=words) as caught:
        torch.testing.assert_close(fast(X), ops.cap(X, 2.0) + 1)
    return [str(one.message) for one in caught]
