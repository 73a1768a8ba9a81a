"""An extension package: an operator with a fused lowering, a pass, and a backend. Its device is
demos/extend_device.py, which the test copies beside it as jitmagic_toy.

Programs import it for `soft_cap`. jitmagic loads its entry points by itself, before the first
compile, so that the operator is part of kernels, and attention that is written out is replaced.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from jitmagic import extend
from jitmagic.extend import Scalar, scalar

__all__ = ["ran", "register_attention", "register_backend", "register_operators", "soft_cap"]

ran: list[str] = []  # what was called, for the test


@torch.library.custom_op("jitmagic_outside::soft_cap", mutates_args=())
def soft_cap(x: Tensor, limit: float) -> Tensor:
    """Return `limit * tanh(x / limit)`."""
    ran.append("soft_cap")
    return limit * torch.tanh(x / limit)


@torch.library.custom_op("jitmagic_outside::soft_cap_gradient", mutates_args=())
def soft_cap_gradient(gradient: Tensor, x: Tensor, limit: float) -> Tensor:
    ran.append("soft_cap_gradient")
    return gradient * (1 - torch.tanh(x / limit) ** 2)


def _save(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.limit = inputs[1]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return soft_cap_gradient(gradient, ctx.saved_tensors[0], ctx.limit), None


soft_cap.register_autograd(_backward, setup_context=_save)


def register_operators() -> None:
    @extend.register_lowering(soft_cap)
    def lowered(x: Scalar, limit: float) -> Scalar:
        return limit * scalar.tanh(x / limit)

    @extend.register_lowering(soft_cap_gradient)
    def lowered_gradient(gradient: Scalar, x: Scalar, limit: float) -> Scalar:
        y = scalar.tanh(x / limit)
        return gradient * (1 - y * y)

    extend.register_operator(soft_cap, shape=lambda x, limit: torch.empty_like(x))
    extend.register_operator(soft_cap_gradient, shape=lambda g, x, limit: torch.empty_like(g))


def register_attention() -> None:
    @extend.register_pass("captured")
    def fuse_attention(gm: GraphModule, context: extend.PassContext) -> None:
        """Replace softmax(q @ k.transpose(-2, -1), -1) @ v."""
        for softmax in gm.graph.find_nodes(op="call_function", target=torch.softmax):
            scores, (product, *others) = softmax.args[0], softmax.users
            if others or product.target is not operator.matmul or softmax.args[1:] != (-1,):
                continue
            query, transposed = scores.args
            if scores.target is not operator.matmul or transposed.args[1:] != (-2, -1):
                continue
            with gm.graph.inserting_after(product):
                fused = gm.graph.call_function(
                    F.scaled_dot_product_attention,
                    (query, transposed.args[0], product.args[1]),
                    {"scale": 1.0},
                )
            product.replace_all_uses_with(fused)
            ran.append("fuse_attention")


def register_backend() -> None:
    @extend.register_backend("outside")
    def outside(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
        ran.append("outside")
        return gm.forward
