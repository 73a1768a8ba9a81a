"""Lowers sorts of short rows, and the few first elements of them, on a GPU.

A row is put in order once, as a reduction; each result is an element of it. Rows that are long or
of a dynamic length, and values of 64 bits, which do not fit into a key of 64 bits with their
position, stay with ATen, and so does the CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...symbols.size import Size
from ..builder import Decline, LoopBuilder, Out
from ..expr import AxisVar
from ..ir import Pick, Reduction, Value
from ..registry import lowers
from ..tensor_view import Point, TensorView
from ..values import cast, constant, opmath
from .reductions import ReducedTensor
from .views import wrap_dim

__all__: list[str] = []

LONGEST = 256  # elements of a row that one program puts in order
FEW = 16  # elements that are found one after the other
_NARROW = (torch.bool, torch.int8, torch.uint8, torch.int16)


def _refuse(x: TensorView, dim: int, count: int) -> None:
    if x.device.type == "cpu":
        raise Decline("ATen sorts faster on a CPU")
    size = x.shape[dim] if x.shape else 1
    if isinstance(size, Size) or size > LONGEST:
        raise Decline("only short rows are sorted in a kernel")
    if FEW < count < size:
        raise Decline("many elements, but not all, of rows in order")
    if x.dtype.itemsize > 4:
        raise Decline("values of 64 bits")


def _ordered(
    builder: LoopBuilder, out: Out, x: TensorView, dim: int, count: int, op: str
) -> list[TensorView | None]:
    """Return the first `count` elements of rows in order, and their positions, as two stores."""
    at = wrap_dim(dim, len(x.shape))
    _refuse(x, at, count)
    wide = torch.int32 if x.dtype in _NARROW else opmath(x.dtype)
    row = ReducedTensor.over(builder, x, at, keepdim=True)

    def reader(part: str) -> Callable[[Point], Value]:
        def value(point: Point) -> Value:
            is_value = part == "value"
            if not point or x.shape[at] == 1:
                element = cast(builder.load(x, point), wide)
                return element if is_value else constant(0, torch.int64)
            rank = point[at]
            if not isinstance(rank, AxisVar):  # the first element alone
                best = "max" if op == "descending" else "min"
                return row.combine(best if is_value else f"arg{best}", point, row.load(wide))
            ordered = row.combine(op, point, row.load(wide))
            assert isinstance(ordered, Reduction)
            return Pick(ordered, rank, part, wide if is_value else torch.int64)

        return value

    return builder.used(out, [reader("value"), reader("position")], (at,))


@lowers("topk.default")
def topk(
    builder: LoopBuilder,
    out: Out,
    x: TensorView,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> list[TensorView | None]:
    return _ordered(builder, out, x, dim, k, "descending" if largest else "ascending")


@lowers("sort.default")
def sort(
    builder: LoopBuilder, out: Out, x: TensorView, dim: int = -1, descending: bool = False
) -> list[TensorView | None]:
    count = x.shape[wrap_dim(dim, len(x.shape))] if x.shape else 1
    return _ordered(builder, out, x, dim, count, "descending" if descending else "ascending")


@lowers("sort.stable")
def stable_sort(
    builder: LoopBuilder,
    out: Out,
    x: TensorView,
    *,
    stable: bool | None,
    dim: int = -1,
    descending: bool = False,
) -> list[TensorView | None]:
    return sort(builder, out, x, dim, descending)
