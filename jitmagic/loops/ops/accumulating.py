"""Lowers writes at run-time indexes and masks: index_add, scatter_add, index_put, embeddings.

On a GPU each element is one atomic addition, fused with the computation of its value. Eager's
index_add and scatter_add are atomic too; its index_put and embedding_dense_backward sort the
indexes first, and their sums are the same from run to run. All these ops stay ATen calls under
use_deterministic_algorithms, on a CPU, and for 16-bit sums, which eager accumulates in float32. A
masked write of a uniform value becomes a `where` at each element, so the data-dependent number of
true elements is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...devices import row_of
from ..builder import Decline, LoopBuilder, Out
from ..expr import Integer
from ..ir import Value
from ..registry import lowers
from ..tensor_view import Point, TensorView, broadcast_shapes
from ..values import Number, cast, compute, constant, where
from .indexing import at_index, at_indices, require_index, run_time_index

__all__: list[str] = []

_ATOMIC = frozenset((torch.float32, torch.float64, torch.int32, torch.int64))


def _require_atomics(builder: LoopBuilder, out: Out) -> None:
    if not row_of(builder.kernel_device).has_atomics:
        raise Decline("eager writes duplicate run-time indexes in order")
    if out.spec.dtype not in _ATOMIC:
        raise Decline(f"sums of {out.spec.dtype} accumulate in another dtype")
    if torch.are_deterministic_algorithms_enabled():
        raise Decline("deterministic algorithms are on: atomic sums have no order")


@lowers("index_add.default")
def index_add(
    builder: LoopBuilder,
    out: Out,
    x: TensorView,
    dim: int,
    index: TensorView,
    source: TensorView,
    alpha: Number = 1,
) -> TensorView:
    _require_atomics(builder, out)
    if len(source.shape) != len(x.shape) or len(index.shape) != 1:
        raise Decline("index_add of a scalar")
    at, moved = at_index(builder, x, dim, index)

    def value(point: Point) -> Value:
        added = builder.load(source, point)
        return added if alpha == 1 else compute("mul", added, constant(alpha, added.dtype))

    return builder.accumulate(
        out,
        lambda point: builder.load(x, point),
        source.shape,
        lambda point: moved(point, point[at : at + 1]),
        value,
    )


@lowers("scatter_add.default")
def scatter_add(
    builder: LoopBuilder, out: Out, x: TensorView, dim: int, index: TensorView, source: TensorView
) -> TensorView:
    _require_atomics(builder, out)
    if not len(index.shape) == len(source.shape) == len(x.shape):
        raise Decline("scatter_add of a scalar")
    _, moved = at_index(builder, x, dim, index)
    return builder.accumulate(
        out,
        lambda point: builder.load(x, point),
        index.shape,
        lambda point: moved(point, point),
        lambda point: builder.load(source, point),
    )


@lowers("index_put.default", "_unsafe_index_put.default")
def index_put(
    builder: LoopBuilder,
    out: Out,
    x: TensorView,
    indices: Sequence[TensorView | None],
    values: TensorView,
    accumulate: bool = False,
) -> TensorView:
    if not accumulate:
        return _where_masked(builder, out, x, indices, values)
    _require_atomics(builder, out)
    sizes, index_of = at_indices(builder, x, indices)
    if broadcast_shapes((sizes, values.shape)) != sizes:
        raise Decline("the values do not broadcast to the elements")
    return builder.accumulate(
        out,
        lambda point: builder.load(x, point),
        sizes,
        index_of,
        lambda point: builder.load(values, point),
    )


def _where_masked(
    builder: LoopBuilder,
    out: Out,
    x: TensorView,
    indices: Sequence[TensorView | None],
    values: TensorView,
) -> TensorView:
    """Lower x[..., mask] = values for values that are the same wherever the mask is true."""
    used = [(dim, part) for dim, part in enumerate(indices) if part is not None]
    if len(used) != 1 or used[0][1].dtype is not torch.bool:
        raise Decline("eager writes duplicate run-time indexes in order")
    start, mask = used[0]
    stop = start + len(mask.shape)
    if not mask.shape or mask.shape != x.shape[start:stop] or values.dtype is not x.dtype:
        raise Decline("the mask and the tensor have different shapes")
    written = (*x.shape[:start], 1, *x.shape[stop:])
    if broadcast_shapes((written, values.shape)) != written:
        raise Decline("the values differ between the masked elements")

    def value(point: Point) -> Value:
        uniform = builder.load(values, (*point[:start], Integer(0), *point[stop:]))
        return where(builder.load(mask, point[start:stop]), uniform, builder.load(x, point))

    return builder.pointwise(out, value)


@lowers("embedding_dense_backward.default")
def embedding_dense_backward(
    builder: LoopBuilder,
    out: Out,
    gradient: TensorView,
    index: TensorView,
    rows: int,
    padding: int = -1,
    scaled: bool = False,
) -> TensorView:
    _require_atomics(builder, out)
    require_index(index)
    if scaled or rows < 2:
        raise Decline("gradients scaled by frequency, or a single row")
    if not -(2**31) <= padding < 2**31:
        raise Decline("eager's kernel takes a 32-bit padding_idx")
    zero = constant(0, out.spec.dtype)

    def row(point: Point) -> Value:
        return cast(builder.load(index, point[:-1]), torch.int64)

    def value(point: Point) -> Value:
        added = builder.load(gradient, point)
        return added if padding < 0 else where(compute("eq", row(point), padding), zero, added)

    return builder.accumulate(
        out,
        lambda point: zero,
        gradient.shape,
        lambda point: (run_time_index(row(point), rows, negative=False), point[-1]),
        value,
    )
