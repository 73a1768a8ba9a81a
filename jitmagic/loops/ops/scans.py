"""Lowers scans: one nest per op, whose store loops over the scanned dimension.

Accumulators have eager's dtypes: on a CPU float32 accumulates in float64, elsewhere in float32, as
16-bit floats do. The position of a running maximum is a scan too, of the positions at which an
element is no less than the maximum so far: of equal elements the last counts, and so does NaN.
"""

from __future__ import annotations

import torch

from ...symbols.size import hint_of
from ...torch_types import AnyFunction
from ..builder import Decline, LoopBuilder, Out
from ..expr import AxisVar
from ..ir import IndexValue, Scan, Value
from ..registry import lowers
from ..tensor_view import Point, TensorView
from ..values import FLOATS, cast, compute, constant, opmath, where
from .views import wrap_dim

__all__: list[str] = []

LONGEST = 1 << 14  # elements of a single row that one program of a GPU scans
_NARROW = (torch.bool, torch.int8, torch.uint8, torch.int16)


def _accumulator(dtype: torch.dtype, device: torch.device, adds: bool = True) -> torch.dtype:
    """Return the dtype in which elements of `dtype` are combined; `adds`: combining rounds."""
    if dtype in _NARROW:
        return torch.int32
    if adds and dtype is torch.float32 and device.type == "cpu":
        return torch.float64
    return opmath(dtype)


def _refuse_single_row(x: TensorView, dim: int) -> None:
    """Decline a single long row on a GPU, which ATen scans with all cores."""
    length = hint_of(x.shape[dim]) if x.shape else 1
    if x.device.type != "cpu" and length > LONGEST and x.numel == x.shape[dim]:
        raise Decline("a single long row, which ATen scans with all cores")


def _scan(op: str, point: Point, dim: int, value: Value) -> Value:
    """Return the scan of a value along a dimension; one of size 1 has no axis."""
    along = point[dim] if point else None
    return Scan(op, along.axis, value, value.dtype) if isinstance(along, AxisVar) else value


def _scanned(op: str) -> AnyFunction:
    """Return the lowering of a scan of sums, products or logarithms of sums of exponentials."""

    def lowering(
        builder: LoopBuilder, out: Out, x: TensorView, dim: int, *, dtype: torch.dtype | None = None
    ) -> TensorView:
        if out.spec.dtype is torch.bool:
            raise Decline("a scan as bool")
        at = wrap_dim(dim, len(x.shape))
        _refuse_single_row(x, at)
        wide = _accumulator(out.spec.dtype, x.device)

        def value(point: Point) -> Value:
            element = cast(builder.load(x, point), out.spec.dtype)
            return _scan(op, point, at, cast(element, wide))

        return builder.pointwise(out, value, (at,))

    return lowering


for _name, _op in (("cumsum", "sum"), ("cumprod", "prod"), ("logcumsumexp", "logsumexp")):
    lowers(f"{_name}.default")(_scanned(_op))


def _running(op: str) -> AnyFunction:
    """Return the lowering that gives running extremes and their positions, as two stores."""

    def lowering(
        builder: LoopBuilder, out: Out, x: TensorView, dim: int
    ) -> list[TensorView | None]:
        at = wrap_dim(dim, len(x.shape))
        _refuse_single_row(x, at)
        wide = _accumulator(x.dtype, x.device, adds=False)

        def best(point: Point) -> Value:
            return _scan(op, point, at, cast(builder.load(x, point), wide))

        def position(point: Point) -> Value:
            if not point or not isinstance(point[at], AxisVar):
                return constant(0, torch.int64)
            element, so_far = cast(builder.load(x, point), wide), best(point)
            is_best = compute("ge" if op == "max" else "le", element, so_far)
            if wide in FLOATS:
                is_best = compute("logical_or", is_best, compute("isnan", element))
            here = where(is_best, IndexValue(point[at]), 0)
            return _scan("max", point, at, here)

        return builder.used(out, [best, position], (at,))

    return lowering


for _op in ("max", "min"):
    lowers(f"cum{_op}.default")(_running(_op))
