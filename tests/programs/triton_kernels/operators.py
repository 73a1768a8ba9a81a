"""Programs that call Triton kernels through torch.library.triton_op and wrap_triton."""

from __future__ import annotations

import torch
import triton
from torch.library import triton_op, wrap_triton

import jitmagic
from tests.programs.counts import counts_of
from tests.programs.harness import Program

from . import kernels as k


def vector(grad=False, seed=0):
    values = torch.randn(50, generator=torch.Generator().manual_seed(seed))
    return values.requires_grad_(grad)


@triton_op("jitmagic_triton::add", mutates_args={})
def add(x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    out = torch.empty_like(x)
    n = out.numel()
    wrap_triton(k.add_kernel)[(triton.cdiv(n, 32),)](x, y, out, n, BLOCK=32)
    return out * scale


@triton_op("jitmagic_triton::scale_", mutates_args={"x"})
def scale_(x: torch.Tensor, factor: float) -> None:
    n = x.numel()
    wrap_triton(k.scale_kernel)[(triton.cdiv(n, 32),)](x, n, factor, BLOCK=32)


@triton_op("jitmagic_triton::square", mutates_args={})
def square(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    n = out.numel()
    wrap_triton(k.squares_kernel)[(triton.cdiv(n, 32),)](x, out, n, BLOCK=32)
    return out


@square.register_fake
def _(x):
    return torch.empty_like(x)


def set_up(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def differentiate(ctx, gradient):
    (x,) = ctx.saved_tensors
    return add(x, x) * gradient


square.register_autograd(differentiate, setup_context=set_up)


def operator(x, y):
    return add(x.sin(), y) * 2, torch.ops.jitmagic_triton.add(x, y, 0.5)


def operator_that_writes(x):
    y = x + 1
    scale_(y, 3.0)
    return y * 2


def operator_with_formula(x):
    return square(x.sin()).cos()


def operator_without_gradients(x):
    with torch.no_grad():
        return square(x) + add(x, x)


def wrapped_kernel(x):
    y = x + 1
    wrap_triton(k.scale_kernel)[(2,)](y, 50, 2.0, BLOCK=32)
    return y


def _of(function, *inputs, **expected):
    return Program(function.__name__, lambda: function, lambda: [inputs], graphs=1, **expected)


PROGRAMS = [
    _of(operator, vector(), vector(seed=1)),
    _of(operator_that_writes, vector(), exact=True),
    _of(operator_with_formula, vector(grad=True)),
    _of(operator_without_gradients, vector(grad=True)),
    _of(wrapped_kernel, vector(), exact=True),
]


def a_new_formula_recompiles():
    @triton_op("jitmagic_triton::doubled", mutates_args={})
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return add(x, x)

    compiled = jitmagic.jit(lambda x: doubled(x).sum())
    for factor in (2.0, 7.0):
        doubled.register_autograd(lambda ctx, gradient, f=factor: gradient * f)
        x = vector(grad=True)
        compiled(x).backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full((50,), factor))
    assert counts_of(compiled).breaks == 0
