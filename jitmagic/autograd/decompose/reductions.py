"""Variance, norms, logsumexp and full reductions in terms of sums and maxima."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ...symbols.size import Size
from ..recording.recorder import Recorder, Sym
from .moments import mean_of
from .registry import moments_dtype, rule, up

__all__: list[str] = []

aten = torch.ops.aten
Dims = int | list[int] | None  # None or []: all dimensions


def _dims(x: Sym, dim: Dims) -> list[int]:
    if not x.shape or not (isinstance(dim, int) or dim):
        return list(range(len(x.shape)))
    return [d % len(x.shape) for d in ([dim] if isinstance(dim, int) else dim)]


def _var_mean(x: Sym, dim: Dims, correction: float | None, keepdim: bool) -> tuple[Sym, Sym] | None:
    if not x.dtype.is_floating_point:
        return None
    dims = _dims(x, dim)
    count = math.prod(x.shape[d] for d in dims)
    free = count - (1 if correction is None else correction)
    if not isinstance(free, Size) and free <= 0:
        return None  # the kernel warns about it
    # A square may overflow fp32 or bf16 although its root does not: bf16 rows of 1e20 gave inf.
    moments = moments_dtype(up(x))
    wide = up(x) if moments is None else x.to(moments)
    mean = mean_of(wide, dims) if moments is None else wide.mean(dims, True)
    gap = wide - mean
    total = (gap * gap).sum(dims, keepdim)
    variance = total / (max(free, 0) if isinstance(free, Size) else float(free))
    return variance, mean if keepdim else _dropped(mean, dims)


def _dropped(x: Sym, dims: list[int]) -> Sym:
    return x.view(*(extent for d, extent in enumerate(x.shape) if d not in dims))


def _moments(is_root: bool, with_mean: bool) -> Callable[..., Sym | list[Sym] | None]:
    """Return the rule of var, std, var_mean or std_mean."""

    def decompose(
        r: Recorder,
        x: Sym,
        dim: Dims = None,
        *,
        correction: float | None = None,
        keepdim: bool = False,
    ) -> Sym | list[Sym] | None:
        made = _var_mean(x, dim, correction, keepdim)
        if made is None:
            return None
        spread = (made[0].sqrt() if is_root else made[0]).to(x.dtype)
        return [spread, _welford_mean(r, x, dim, made).to(x.dtype)] if with_mean else spread

    return decompose


rule(aten.var.correction)(_moments(is_root=False, with_mean=False))
rule(aten.std.correction)(_moments(is_root=True, with_mean=False))
rule(aten.var_mean.correction)(_moments(is_root=False, with_mean=True))
rule(aten.std_mean.correction)(_moments(is_root=True, with_mean=True))


def _welford_mean(r: Recorder, x: Sym, dim: Dims, moments: tuple[Sym, Sym]) -> Sym:
    """Return the mean that eager's kernel reports next to a variance. Eager updates both per
    element: after an infinity, the next element makes both NaN. The mean stays infinite only if the
    last element alone is infinite. Testing both ends of the row detects that; one more reduction
    would cost as much as the mean.
    """
    variance, mean = moments
    dims = _dims(x, dim) if x.shape else []
    last = _end_element(x, dims, -1, 9223372036854775807, mean)
    kept = last.equals(mean)
    if math.prod(x.shape[d] for d in dims) != 1:
        kept = kept.one(aten.logical_and.default, _end_element(x, dims, 0, 1, mean).differs(mean))
    is_finite = variance.equals(variance)
    return r.where(is_finite.one(aten.logical_or.default, kept), mean, math.nan)


def _end_element(x: Sym, dims: list[int], start: int, end: int, like: Sym) -> Sym:
    """Return the row's first or last element, taken along all its dimensions."""
    for d in dims:
        x = x.one(aten.slice.Tensor, d, start, end)
    return x.view(*like.shape).to(like.dtype)


@rule(aten.linalg_vector_norm.default)
def _vector_norm(
    r: Recorder,
    x: Sym,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Sym | None:
    asked = x.dtype if dtype is None else dtype
    if not x.dtype.is_floating_point or not asked.is_floating_point or not x.numel:
        return None
    dims, wide = _dims(x, dim), up(x.to(asked))
    return _norm_of(wide, float(ord), dims, keepdim).to(asked)


def _norm_of(x: Sym, order: float, dims: list[int], keepdim: bool) -> Sym:
    if order == 2:
        return (x * x).sum(dims, keepdim).sqrt()
    if order == 0:
        return x.differs(0).to(x.dtype).sum(dims, keepdim)
    size = x.abs()
    if order == math.inf:
        return size.amax(dims, keepdim)
    if order == -math.inf:
        return size.one(aten.amin.default, dims, keepdim)
    if order == 1:
        return size.sum(dims, keepdim)
    powers = size.one(aten.pow.Tensor_Scalar, order)
    return powers.sum(dims, keepdim).one(aten.pow.Tensor_Scalar, 1 / order)


@rule(aten.logsumexp.default)
def _logsumexp(r: Recorder, x: Sym, dim: Dims, keepdim: bool = False) -> Sym | None:
    if not x.numel:
        return None
    if not x.dtype.is_floating_point:
        # Eager promotes integers to the default dtype.
        x = x.to(torch.get_default_dtype())
    dims, wide = _dims(x, dim), up(x)
    top = wide.amax(dims, True)
    # Subtracting an infinite maximum would give inf - inf = NaN.
    top = r.where(top.abs().equals(math.inf), 0.0, top)
    made = (wide - top).exp().sum(dims, True).log() + top
    return (made if keepdim else _dropped(made, dims)).to(x.dtype)


@rule(aten.max.default)
def _max(r: Recorder, x: Sym) -> Sym | None:
    return x.amax(list(range(len(x.shape)))) if x.numel else None


@rule(aten.min.default)
def _min(r: Recorder, x: Sym) -> Sym | None:
    if not x.numel:
        return None
    return x.one(aten.amin.default, list(range(len(x.shape))))
