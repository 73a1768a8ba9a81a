"""Lowers views to index maps over the same buffer, without memory or steps.

Each lowering maps a point of the result to a point of the viewed tensor. Only as_strided needs real
memory (an Alias), and a reshape that eager would copy is a copy nest here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import VerifyError
from ...spec import TensorSpec
from ...symbols.size import expr_of
from ..builder import LoopBuilder, Out
from ..expr import Expr, Integer, add, plus, times
from ..registry import lowers
from ..tensor_view import (
    TensorView,
    broadcast_point,
    formal_point,
    full_view,
    reshape_point,
)

__all__ = ["clamp_index", "wrap_dim"]


def wrap_dim(dim: int, rank: int) -> int:
    """Return a dimension counted from the front."""
    return dim % max(rank, 1)


def clamp_index(index: int | None, size: int, default: int) -> int:
    """Return a slice bound inside [0, size]."""
    if index is None:
        return default
    return min(max(index + size if index < 0 else index, 0), size)


@lowers("alias.default", "detach.default", "lift.default", "lift_fresh.default")
def same(builder: LoopBuilder, out: Out, x: TensorView) -> TensorView:
    return x


@lowers(
    "view.default",
    "_unsafe_view.default",
    "_reshape_alias.default",
    "squeeze.default",
    "squeeze.dim",
    "squeeze.dims",
    "unsqueeze.default",
    "unflatten.int",
    "flatten.using_ints",
)
def view(builder: LoopBuilder, out: Out, x: TensorView, *_: object) -> TensorView:
    shape = out.spec.shape
    return x.remap(shape, reshape_point(x.shape, shape, formal_point(shape)))


@lowers("reshape.default")
def reshape(builder: LoopBuilder, out: Out, x: TensorView, *_: object) -> TensorView:
    found = view(builder, out, x)
    if builder.layout_of(found) is not None:
        return found
    return builder.pointwise(out, lambda point: builder.load(found, point))


@lowers("expand.default", "broadcast_to.default")
def expand(builder: LoopBuilder, out: Out, x: TensorView, *_: Any, **__: object) -> TensorView:
    shape = out.spec.shape
    return x.remap(shape, broadcast_point(x.shape, formal_point(shape)))


@lowers("permute.default")
def permute(builder: LoopBuilder, out: Out, x: TensorView, dims: Sequence[int]) -> TensorView:
    point: list[Expr] = [Integer(0)] * len(x.shape)
    shape = tuple(x.shape[dim] for dim in dims)
    for axis, dim in zip(formal_point(shape), dims, strict=True):
        point[dim] = axis
    return x.remap(shape, point)


@lowers("transpose.int")
def transpose(builder: LoopBuilder, out: Out, x: TensorView, a: int, b: int) -> TensorView:
    dims = list(range(len(x.shape)))
    if dims:
        dims[a], dims[b] = dims[b], dims[a]
    return permute(builder, out, x, dims)


@lowers("t.default", "numpy_T.default")
def t(builder: LoopBuilder, out: Out, x: TensorView) -> TensorView:
    return permute(builder, out, x, tuple(reversed(range(len(x.shape)))))


@lowers("slice.Tensor")
def slice_(
    builder: LoopBuilder,
    out: Out,
    x: TensorView,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> TensorView:
    dim = wrap_dim(dim, len(x.shape))
    first = clamp_index(start, x.shape[dim], 0)
    return _strip(x, dim, first, out.spec.shape[dim], step)


def _strip(x: TensorView, dim: int, first: int, size: int, step: int = 1) -> TensorView:
    shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
    point = list(formal_point(shape))
    point[dim] = plus(times(point[dim], step), first)
    return x.remap(shape, point)


@lowers("select.int")
def select(builder: LoopBuilder, out: Out, x: TensorView, dim: int, index: int) -> TensorView:
    return _pick(x, wrap_dim(dim, len(x.shape)), index)


def _pick(x: TensorView, dim: int, index: int) -> TensorView:
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    point = list(formal_point(shape))
    point.insert(dim, expr_of(index if index >= 0 else index + x.shape[dim]))
    return x.remap(shape, point)


@lowers("unbind.int")
def unbind(builder: LoopBuilder, out: Out, x: TensorView, dim: int = 0) -> list[TensorView]:
    dim = wrap_dim(dim, len(x.shape))
    return [_pick(x, dim, index) for index in range(x.shape[dim])]


@lowers("split.Tensor", "unsafe_split.Tensor")
def split(
    builder: LoopBuilder, out: Out, x: TensorView, size: int, dim: int = 0
) -> list[TensorView]:
    dim = wrap_dim(dim, len(x.shape))
    total = x.shape[dim]
    if total == 0:
        return [x]
    return [_strip(x, dim, first, min(size, total - first)) for first in range(0, total, size)]


@lowers("split_with_sizes.default", "unsafe_split_with_sizes.default", "split.sizes")
def split_with_sizes(
    builder: LoopBuilder, out: Out, x: TensorView, sizes: Sequence[int], dim: int = 0
) -> list[TensorView]:
    dim = wrap_dim(dim, len(x.shape))
    return [_strip(x, dim, sum(sizes[:n]), size) for n, size in enumerate(sizes)]


@lowers("diagonal.default")
def diagonal(
    builder: LoopBuilder, out: Out, x: TensorView, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorView:
    rank = len(x.shape)
    dim1, dim2 = wrap_dim(dim1, rank), wrap_dim(dim2, rank)
    shape = out.spec.shape
    *rest, along = formal_point(shape)
    others = iter(rest)
    down, right = max(-offset, 0), max(offset, 0)
    at = {dim1: plus(along, down), dim2: plus(along, right)}
    return x.remap(shape, [at[d] if d in at else next(others) for d in range(rank)])


@lowers("unfold.default")
def unfold(
    builder: LoopBuilder, out: Out, x: TensorView, dim: int, size: int, step: int
) -> TensorView:
    shape = out.spec.shape
    if not x.shape:
        return x.remap(shape, ())
    dim = wrap_dim(dim, len(x.shape))
    *point, inside = formal_point(shape)
    point[dim] = add(times(point[dim], step), inside)
    return x.remap(shape, point)


@lowers("as_strided.default")
def as_strided(
    builder: LoopBuilder,
    out: Out,
    x: TensorView,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> TensorView:
    """View memory by strides; valid because every buffer has the strides that eager gives it."""
    if builder.layout_of(x) is None:
        raise VerifyError(f"as_strided of {out.name}'s argument, which is not strided")
    here = builder.memory(x)
    offset = builder.offset(here) if storage_offset is None else storage_offset
    root = builder.root(here)
    name = builder.alias(root, tuple(size), tuple(stride), offset - builder.offset(root))
    return full_view(name, tuple(size), x.dtype, x.device)


@lowers("as_strided_scatter.default")
def as_strided_scatter(
    builder: LoopBuilder,
    out: Out,
    x: TensorView,
    source: TensorView,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> TensorView:
    """Call ATen, with the offset counted from the buffer."""
    # ATen counts it from the storage, and a buffer may be anywhere in the pool.
    here = builder.memory(x)
    if builder.root(here) != here:
        raise VerifyError(f"as_strided_scatter of {out.name}'s argument, which is a view")
    op, reason = torch.ops.aten.as_strided_scatter.default, "it writes through given strides"
    start = 0 if storage_offset is None else storage_offset - builder.offset(here)
    args: tuple[object, ...] = (x, source, size, stride)
    if start:
        spec = TensorSpec(x.shape, builder.stride(x), x.dtype, x.device)
        if spec.stride != builder.buffers[here].stride:
            raise VerifyError(f"as_strided_scatter of {out.name}'s argument, which has gaps")
        copied = Out(f"{out.name}_own", (spec,))
        own = builder.extern(copied, torch.ops.aten.clone.default, (x,), {}, reason)[0]
        args = (own, source, size, stride, start)
    made = builder.extern(out, op, args, {}, reason)[0]
    assert made is not None
    return made
