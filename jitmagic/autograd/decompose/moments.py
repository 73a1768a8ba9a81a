"""Means from which distances are taken: of layer, group and batch norm, and of variances.

In: a tensor and the dimensions of a row. Out: the mean of each row, which of a row of equal numbers
is that number, as Welford's running mean in eager's kernels is: what a sum divided by n is off by,
half an ulp, `rsqrt(eps)` magnifies (1000.1 everywhere: layer norm gave 0.02 where eager gives 0).

So what is summed is the distance from the row's first element. It costs a subtraction per element
of the first pass: 1.07x of a layer norm with 64 columns, 1.03x with 768, 1.01x with 4096 (float32,
CPU, in cache), nothing where memory or the operation before it is what takes time. A sum in double
costs 1.63x, 1.43x, 1.34x; the sum of what the mean is off by, in the second pass, 1.31x, 1.06x,
1.05x. Largest errors of a layer norm against float64, beside eager's, over 10 seeds: random rows
1.01 to 1.08x, an offset of 100 or 1000 0.33 to 0.47x, an outlier of 1e4 or 1e6 first 0.88 to 1.20x
(Welford's formula loses as much to it), last 0.75 to 0.98x.
"""

from __future__ import annotations

import math

import torch

from ...symbols.scalar import symbols_of
from ...symbols.size import Size, hintless
from ..sym import Sym

__all__ = ["at_the_start", "mean_of"]

aten = torch.ops.aten
# Of so many equal 16-bit numbers the sum is a float32, whatever the order: 11 and 13 bits.
_EXACT_SUM = 1 << 13


def mean_of(x: Sym, dims: list[int], kept: torch.dtype) -> Sym:
    """The mean over `dims`, which are kept as 1. `kept`: the dtype that x was widened from."""
    if _sums_equals_exactly(x, dims, kept):
        return x.mean(dims, True)
    first = at_the_start(x, dims)
    return first + (x - first).mean(dims, True)


def at_the_start(x: Sym, dims: list[int]) -> Sym:
    """The first element of each row, dims kept as 1."""
    for d in dims:
        x = x.one(aten.slice.Tensor, d, 0, 1)
    return x


def _sums_equals_exactly(x: Sym, dims: list[int], kept: torch.dtype) -> bool:
    """Whether n equal numbers divided by n are that number however they are added up; or a row may
    have no first one.
    """
    count = math.prod(x.shape[d] for d in dims)
    if isinstance(count, Size):
        widened = x.dtype is torch.float64 is not kept
        return widened or any(map(hintless, symbols_of(count.expr)))
    return count <= 1 or (x.dtype is not kept and (count <= _EXACT_SUM or x.dtype is torch.float64))
