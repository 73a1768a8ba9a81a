"""Defines the node of a flex_attention call: query, key, value, block tensors, captured tensors.

The node runs the operators of attention_operators.py where a kernel can be generated for them, and
otherwise the plain operations that they stand for. In a backward that is differentiated again, the
plain operations are differentiated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph

from ...compat.modes import BelowAutograd
from ...symbols.size import Dimension
from .attention_operators import (
    BIAS_GRADIENT,
    FLEX_ATTENTION,
    KEY_GRADIENTS,
    QUERY_GRADIENT,
    Form,
    attend,
    number_of,
    working_dtype,
)
from .control_flow import Body
from .inner_graphs import WithGraphs

__all__ = ["FlexAttention", "may_be_tiled"]

_WIDEST = 256  # head dimension: wider tiles of query, key and value do not fit into shared memory
_NARROWEST = 16  # of a tile: the least side of a matrix product of the tensor cores


def may_be_tiled(widths: Sequence[Dimension]) -> bool:
    """Return whether tiles of heads of these widths fit into shared memory."""
    return all(type(width) is int and 0 < width <= _WIDEST for width in widths)


class FlexAttention(WithGraphs):
    """The target of a node. Returns output and logsumexp."""

    __module__ = __name__

    def __init__(self, form: Form) -> None:
        self.__name__ = "flex_attention"
        self.form = form

    @property
    def bodies(self) -> dict[str, Body]:
        """The graphs of its functions, by the names of torch's parameters."""
        known = {"score_mod": self.form.score, "mask_mod": self.form.mask}
        return {name: body for name, body in known.items() if body is not None}

    def graphs(self) -> list[Graph]:
        """Return the graph of each body."""
        return [body.graph.graph for body in self.bodies.values()]

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value, *rest = tensors
        captured = rest[self.form.blocks :]
        if not (query.is_meta or self._has_kernel(query, key, value, captured)):
            return attend(self.form, query, key, value, captured)
        made: tuple[Tensor, Tensor] = _Attention.apply(self.form, *tensors)  # type: ignore[no-untyped-call]
        return made

    def _has_kernel(
        self, query: Tensor, key: Tensor, value: Tensor, captured: Sequence[Tensor]
    ) -> bool:
        """Return whether kernels may be generated for these tensors."""
        if query.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            return False
        others = [x for n, x in enumerate(captured) if n != self.form.bias]
        if torch.is_grad_enabled() and any(x.requires_grad for x in others):
            return False
        if query.device.type == "cpu":
            return True
        sizes = self.form.block_size
        return (
            query.device.type == "cuda"
            and key.shape[0] == query.shape[0]
            and may_be_tiled((query.shape[3], value.shape[3]))
            and all(size % _NARROWEST == 0 and size & (size - 1) == 0 for size in sizes)
        )

    def __repr__(self) -> str:
        return self.__name__


class _Attention(torch.autograd.Function):
    is_linear = True  # as torch's formulas: no gradient without a tangent

    @staticmethod
    def forward(ctx: Any, form: Form, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.form, ctx.number = form, number_of(form)
        ctx.set_materialize_grads(False)
        query, key, value, *rest = tensors
        blocks, captured = rest[: form.blocks], rest[form.blocks :]
        with BelowAutograd():  # autograd would run the operator's formula instead of recording it
            facts = form.block_size, form.scale, ctx.number
            out, lse = FLEX_ATTENTION(query, key, value, blocks, captured, *facts)
        ctx.save_for_backward(*tensors, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, lse_grad: Tensor | None) -> tuple[Any, ...]:
        *tensors, out, lse = ctx.saved_tensors
        grad = torch.zeros_like(out) if grad is None else grad
        if torch.is_grad_enabled():
            return _differentiable(ctx, tensors, grad, lse_grad)
        wide = working_dtype(out.dtype)
        delta = (grad.to(wide) * out.to(wide)).sum(-1)
        if lse_grad is not None:
            delta = delta - lse_grad
        count = 3 + ctx.form.blocks
        facts = ctx.form.block_size, ctx.form.scale, ctx.number
        given = (*tensors[:3], tensors[3:count], tensors[count:], *facts)
        needs = ctx.needs_input_grad[1:4]
        of_query = of_key = of_value = None
        of_others: list[Tensor | None] = [None for _ in tensors[3:]]
        with BelowAutograd():
            if needs[0]:
                of_query = QUERY_GRADIENT(grad, lse, delta, *given)
            if needs[1] or needs[2]:
                of_key, of_value = KEY_GRADIENTS(grad, lse, delta, *given)
            if ctx.form.bias is not None and ctx.needs_input_grad[1 + count + ctx.form.bias]:
                of_others[ctx.form.blocks + ctx.form.bias] = BIAS_GRADIENT(grad, lse, delta, *given)
        made = (of_query, of_key, of_value)
        chosen = (one if wanted else None for one, wanted in zip(made, needs, strict=True))
        return None, *chosen, *of_others


def _differentiable(
    ctx: Any, tensors: Sequence[Tensor], grad: Tensor, lse_grad: Tensor | None
) -> tuple[Any, ...]:
    """Return gradients with a history."""
    captured = tensors[3 + ctx.form.blocks :]
    needs = ctx.needs_input_grad[1:]
    wanted = [one for one, needed in zip(tensors, needs, strict=True) if needed]
    query, key, value = tensors[:3]
    out, lse = attend(ctx.form, query, key, value, captured)
    results = [(out, grad)] if lse_grad is None else [(out, grad), (lse, lse_grad)]
    outputs, tangents = zip(*results, strict=True)
    made = iter(torch.autograd.grad(outputs, wanted, tangents, create_graph=True))
    return None, *(next(made) if needed else None for needed in needs)
