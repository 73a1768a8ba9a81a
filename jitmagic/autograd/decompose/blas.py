"""Matrix products with an addend or one thin operand."""

from __future__ import annotations

import torch

from ..recording.recorder import Recorder, Sym
from .registry import is_half, rule

__all__: list[str] = []

aten = torch.ops.aten


# beta and alpha are Python numbers of the call, so a factor of 1 costs no multiplication in the
# kernel.
def _blended(x: Sym, product: Sym, beta: float, alpha: float) -> Sym:
    """beta * x + alpha * product; beta 0 ignores x, as BLAS does (also where it is NaN)."""
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product
    return product + (x if beta == 1 else x * beta)


def _needs_kernel(a: Sym, alpha: float) -> bool:
    """Return whether the kernel computes something else than its parts would. Halves are rounded
    once, integer kernels drop the fractions of beta and alpha, and BLAS ignores the product where
    alpha is 0.
    """
    return is_half(a.dtype) or not (a.dtype.is_floating_point or a.dtype.is_complex) or alpha == 0


@rule(aten.baddbmm.default)
def _baddbmm(
    r: Recorder, x: Sym, a: Sym, b: Sym, *, beta: float = 1, alpha: float = 1
) -> Sym | None:
    if _needs_kernel(a, alpha):
        return None
    return _blended(x, a.one(aten.bmm.default, b), beta, alpha)


@rule(aten.addmv.default)
def _addmv(
    r: Recorder, x: Sym, matrix: Sym, vector: Sym, *, beta: float = 1, alpha: float = 1
) -> Sym | None:
    if _needs_kernel(matrix, alpha):
        return None
    return _blended(x, matrix.one(aten.mv.default, vector), beta, alpha)


# The outer product fuses as a pointwise nest, in fp32 for halves: eager's kernel is no BLAS call
# either.
@rule(aten.addr.default, opmath=True)
def _addr(r: Recorder, x: Sym, a: Sym, b: Sym, *, beta: float = 1, alpha: float = 1) -> Sym:
    return _blended(x, a.unsqueeze(1) * b.unsqueeze(0), beta, alpha)
