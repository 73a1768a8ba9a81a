"""Shape rules of reductions: sums, extremes, truth, statistics. Results are row-major."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...torch_types import AnyFunction
from ..fresh_meta import fresh_meta, has_elements, refuse_empty
from ..symbolic.sym_node import expected_to_hold
from .shape_rules import infers

__all__ = ["refuse_repeated", "wrapped"]

aten = torch.ops.aten
Tensor = torch.Tensor
_MOST_DIMS = 64  # ATen/WrapDimUtilsMulti.h, dim_bitset_size


def wrapped(dim: int, rank: int) -> int:
    """Return the non-negative dimension. Raises IndexError."""
    bound = max(rank, 1)
    if not -bound <= dim < bound:
        raise IndexError(f"Dimension out of range: {dim} for {rank} dimensions")
    return dim % bound


def refuse_repeated(dims: Sequence[int]) -> None:
    """Raise as eager does if a (non-negative) dimension is named twice."""
    if len(set(dims)) < len(dims):
        raise RuntimeError("a dimension appears multiple times in the list of dims")


def _reduced(x: Tensor, dims: Any, keepdim: bool, dtype: torch.dtype | None = None) -> Tensor:
    """Return a result without these dimensions, or with extent 1; None or () means all."""
    rank = x.dim()
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        gone = set(range(rank))
    else:
        listed = [wrapped(d, rank) for d in ([dims] if isinstance(dims, int) else dims)]
        refuse_repeated(listed)
        gone = set(listed)
    if rank > _MOST_DIMS:
        raise RuntimeError(f"only tensors with up to {_MOST_DIMS} dims are supported")
    extents = [1 if i in gone else n for i, n in enumerate(x.shape) if keepdim or i not in gone]
    return fresh_meta(extents, dtype or x.dtype)


def _reduction(kind: str) -> AnyFunction:
    def rule(
        x: Tensor, dims: object = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
    ) -> Tensor:
        made = dtype or x.dtype
        is_whole = not (made.is_floating_point or made.is_complex)
        if kind == "mean" and is_whole:
            raise RuntimeError(f"mean() of {made}: floating-point numbers are needed")
        if kind == "sum" and dtype is None and is_whole:
            made = torch.int64
        if kind == "bool":
            made = torch.uint8 if x.dtype is torch.uint8 else torch.bool
        if kind in ("same", "place"):
            refuse_empty(x.shape, dims)
        return _reduced(x, dims, keepdim, torch.int64 if kind == "place" else made)

    return rule


infers(aten.sum.dim_IntList, aten.sum.default)(_reduction("sum"))
infers(aten.mean.dim, aten.mean.default)(_reduction("mean"))
infers(aten.amax.default, aten.amin.default)(_reduction("same"))
infers(aten.argmax.default, aten.argmin.default)(_reduction("place"))
infers(aten.any.dim, aten.any.default, aten.all.dim, aten.all.default)(_reduction("bool"))


@infers(aten.max.dim, aten.min.dim)
def _extreme(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor] | None:
    """Infer max.dim, min.dim; torch's meta functions accept empty tensors, eager does not."""
    refuse_empty(x.shape, dim)
    if not x.is_contiguous() or x.dtype.is_complex:
        return None
    return _reduced(x, dim, keepdim), _reduced(x, dim, keepdim, torch.int64)


@infers(aten.prod.dim_int)
def _product(x: Tensor, dim: int, keepdim: bool = False, **kwargs: object) -> Tensor | None:
    usual = x.dtype.is_floating_point and x.is_contiguous() and not kwargs and x.dim()
    if not usual or not expected_to_hold("!=", x.shape[dim], 0):
        return None
    return _reduced(x, dim, keepdim)


# -- statistics ------------------------------------------------------------------------------------


@infers(aten.var.correction, aten.std.correction)
def _variance(
    x: Tensor, dims: object = None, *, correction: object = None, keepdim: bool = False
) -> Tensor | None:
    usual = x.dtype.is_floating_point and x.is_contiguous() and has_elements(x)
    return _reduced(x, dims, keepdim) if usual else None


@infers(aten.var_mean.correction)
def _variance_and_mean(x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor] | None:
    variance, mean = _variance(x, *args, **kwargs), _variance(x, *args, **kwargs)
    return None if variance is None or mean is None else (variance, mean)


@infers(aten.logsumexp.default)
def _logsumexp(x: Tensor, dims: object, keepdim: bool = False) -> Tensor | None:
    return _variance(x, dims, keepdim=keepdim) if dims else None


@infers(aten.linalg_vector_norm.default)
def _vector_norm(
    x: Tensor, order: object = 2, dims: object = None, keepdim: bool = False, **kwargs: object
) -> Tensor | None:
    is_cast = kwargs.get("dtype") is not None
    return None if is_cast else _variance(x, dims, keepdim=keepdim)
