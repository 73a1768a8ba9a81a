"""Records the gradient of `prod` as eager computes it, without a branch on data.

In: a traced tensor and the arguments of `prod`. Out: the product, with its own history. torch's
formula looks at the data. Without zeros it divides the product by each element, which gives inf and
nan where the product overflows or underflows; with zeros it multiplies the other elements. On
tensors without data it always does the latter, and a recorded graph would differ from eager. Here
the graph computes both and selects by the data.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["prod"]


def prod(
    x: torch.Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return torch.prod of a traced tensor."""
    wide = x if dtype is None else x.to(dtype)
    has_gradient = wide.dtype.is_floating_point or wide.dtype.is_complex
    if not (x.requires_grad and torch.is_grad_enabled() and has_gradient):
        return _plain(x, dim, keepdim, dtype)
    made: torch.Tensor = _Prod.apply(wide, dim, keepdim)  # type: ignore[no-untyped-call]
    return made


def _plain(
    x: torch.Tensor, dim: int | None, keepdim: bool, dtype: torch.dtype | None
) -> torch.Tensor:
    if dim is None:
        return torch.prod(x, dtype=dtype)
    return torch.prod(x, dim, keepdim, dtype=dtype)


class _Prod(torch.autograd.Function):
    is_linear = True  # as torch's formulas: no gradient without a tangent

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int | None, keepdim: bool) -> torch.Tensor:
        ctx.dim, ctx.keepdim = dim, keepdim
        made = _plain(x, dim, keepdim, None)
        ctx.save_for_backward(x, made)
        return made

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, made = ctx.saved_tensors
        if not x.dim():
            return grad.clone(), None, None
        zeros = x == 0
        if ctx.dim is None:
            divided = grad * (made / x).conj()
            others = grad * _of_others(x.reshape(-1), 0).view_as(x)
            count = zeros.sum()
            # With two zeros each product of others has one, but 0 * inf inside cumprod is NaN.
            others = torch.where(count > 1, torch.zeros_like(others), others)
            return torch.where(count == 0, divided, others), None, None
        if not ctx.keepdim:
            grad, made = grad.unsqueeze(ctx.dim), made.unsqueeze(ctx.dim)
        others = grad * _of_others(x, ctx.dim)
        return torch.where(zeros.any(), others, grad * (made / x).conj()), None, None


def _of_others(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return, for each element, the conjugate product of those before it and after it."""
    extent = x.shape[dim]
    if extent == 0:
        return torch.ones_like(x)
    one = torch.ones_like(x.narrow(dim, 0, 1))
    if extent == 1:
        return one
    before = torch.cat((one, x.narrow(dim, 0, extent - 1)), dim).cumprod(dim)
    after = torch.cat((one, x.narrow(dim, 1, extent - 1).flip(dim)), dim).cumprod(dim)
    return (before * after.flip(dim)).conj()
