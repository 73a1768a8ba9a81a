"""Matrix products with an addend or one thin operand."""

from __future__ import annotations

import torch

from ..recorder import Recorder, Sym
from .registry import is_half, rule

__all__: list[str] = []

aten = torch.ops.aten


def _blended(x: Sym, product: Sym, beta: float, alpha: float) -> Sym:
    """beta * x + alpha * product; beta 0 ignores x, as BLAS does (also where it is NaN)."""
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product
    return product + (x if beta == 1 else x * beta)


def _cuts_scalars(a: Sym) -> bool:
    """The kernels of integers drop the fractions of beta and alpha."""
    return not (a.dtype.is_floating_point or a.dtype.is_complex)


@rule(aten.baddbmm.default, complex_too=True)
def _baddbmm(
    r: Recorder, x: Sym, a: Sym, b: Sym, *, beta: float = 1, alpha: float = 1
) -> Sym | None:
    if is_half(a.dtype) or _cuts_scalars(a):  # in halves: one rounding as a whole, two in parts
        return None
    return _blended(x, a.one(aten.bmm.default, b), beta, alpha)


@rule(aten.addmv.default, complex_too=True)
def _addmv(
    r: Recorder, x: Sym, matrix: Sym, vector: Sym, *, beta: float = 1, alpha: float = 1
) -> Sym | None:
    if is_half(matrix.dtype) or _cuts_scalars(matrix):
        return None
    return _blended(x, matrix.one(aten.mv.default, vector), beta, alpha)


@rule(aten.addr.default, opmath=True, complex_too=True)
def _addr(r: Recorder, x: Sym, a: Sym, b: Sym, *, beta: float = 1, alpha: float = 1) -> Sym:
    return _blended(x, a.unsqueeze(1) * b.unsqueeze(0), beta, alpha)
