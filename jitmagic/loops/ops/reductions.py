"""Lowers reductions: one nest per op, the reduced axes bound inside its value.

Sums of 16-bit floats accumulate in float32 and round once; sums of integers and bools are int64 (or
the requested dtype); variance is the two-pass formula. Dimensions without elements give the
identity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch

from ...lazy_dataclass import dataclass
from ...torch_types import AnyFunction
from ..builder import Decline, LoopBuilder, Out
from ..expr import Expr
from ..ir import Constant, Reduction, Value
from ..registry import lowers
from ..tensor_view import Point, TensorView
from ..values import FLOATS, cast, compute, constant, number, opmath
from .views import wrap_dim

__all__ = ["ReducedTensor"]

Dims = int | Sequence[int] | None


@dataclass(frozen=True, slots=True)
class ReducedTensor:
    """Reduces a tensor over some dimensions and maps result points to its points."""

    builder: LoopBuilder
    x: TensorView
    dims: tuple[int, ...]
    keepdim: bool

    @staticmethod
    def over(
        builder: LoopBuilder, x: TensorView, dims: Dims, keepdim: bool = False
    ) -> ReducedTensor:
        """Reduce over `dims`; None and () mean all dimensions."""
        rank = len(x.shape)
        if dims is None or (not isinstance(dims, int) and not dims):
            return ReducedTensor(builder, x, tuple(range(rank)), keepdim)
        named = (dims,) if isinstance(dims, int) else dims
        return ReducedTensor(
            builder, x, tuple(sorted(wrap_dim(d, rank) for d in named)) if rank else (), keepdim
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.x.shape[d] for d in self.dims)

    @property
    def count(self) -> int:
        return prod(self.sizes)

    def join(self, point: Point, inside: Point) -> Point:
        """Return the point of x at a point of the result and a point of the reduced dimensions."""
        bound, free = iter(inside), iter(point)
        joined: list[Expr] = []
        for d in range(len(self.x.shape)):
            if d not in self.dims:
                joined.append(next(free))
                continue
            joined.append(next(bound))
            if self.keepdim:
                next(free)
        return tuple(joined)

    def combine(
        self,
        op: str,
        point: Point,
        value: Callable[[Point], Value],
        identity: Value | None = None,
    ) -> Value:
        """Reduce value(point of x) over the reduced dimensions."""
        return self.builder.reduce(
            op, self.sizes, lambda inside: value(self.join(point, inside)), identity
        )

    def load(self, dtype: torch.dtype) -> Callable[[Point], Value]:
        """Return the reader of x's elements in `dtype`."""
        return lambda point: cast(self.builder.load(self.x, point), dtype)


def _accumulator(out: Out) -> torch.dtype:
    """Return the dtype of a sum: the result's opmath dtype."""
    if out.spec.dtype is torch.bool:
        raise Decline("a sum as bool")
    return opmath(out.spec.dtype)


def _sum(
    reduced: ReducedTensor, point: Point, value: Callable[[Point], Value], dtype: torch.dtype
) -> Value:
    total = reduced.combine("sum", point, value, constant(0, dtype))
    if isinstance(total, Constant | Reduction) or dtype not in FLOATS:
        return total
    return compute("add", total, 0.0)  # eager adds even a single element to 0.0, which loses -0.0


def _summed(
    finish: Callable[[ReducedTensor, Point, Callable[[Point], Value], torch.dtype], Value],
) -> AnyFunction:
    """Return the lowering of a sum or product; `finish` gives the result at a point, from a reader
    of elements and the dtype in which they accumulate.
    """

    def lowering(
        builder: LoopBuilder,
        out: Out,
        x: TensorView,
        dims: Dims = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> TensorView:
        reduced = ReducedTensor.over(builder, x, dims, keepdim)
        wide = _accumulator(out)
        read = _through(reduced, out, wide)
        return builder.pointwise(out, lambda point: finish(reduced, point, read, wide))

    return lowering


def _through(reduced: ReducedTensor, out: Out, wide: torch.dtype) -> Callable[[Point], Value]:
    """Return the reader of elements cast to the result's dtype (`dtype=`), then the
    accumulator's.
    """
    read = reduced.load(out.spec.dtype) if reduced.x.dtype is not out.spec.dtype else None
    if read is None or out.spec.dtype is wide:
        return reduced.load(wide)
    return lambda point: cast(read(point), wide)


def _mean(
    reduced: ReducedTensor, point: Point, value: Callable[[Point], Value], dtype: torch.dtype
) -> Value:
    total = _sum(reduced, point, value, dtype)
    return compute("truediv", total, number(reduced.count, dtype))


def _product(
    reduced: ReducedTensor, point: Point, value: Callable[[Point], Value], dtype: torch.dtype
) -> Value:
    return reduced.combine("prod", point, value, constant(1, dtype))


lowers("sum.default", "sum.dim_IntList")(_summed(_sum))
lowers("mean.default", "mean.dim")(_summed(_mean))
lowers("prod.default", "prod.dim_int")(_summed(_product))


# -- extremes -------------------------------------------------------------------------------------


def _extreme(op: str) -> AnyFunction:
    def lowering(
        builder: LoopBuilder, out: Out, x: TensorView, dims: Dims = None, keepdim: bool = False
    ) -> TensorView:
        reduced = ReducedTensor.over(builder, x, dims, keepdim)
        return builder.pointwise(
            out, lambda point: reduced.combine(op, point, reduced.load(opmath(x.dtype)))
        )

    return lowering


def _with_indices(op: str) -> AnyFunction:
    """Return the lowering that gives values and positions, as two stores of one nest."""

    def lowering(
        builder: LoopBuilder, out: Out, x: TensorView, dim: int, keepdim: bool = False
    ) -> list[TensorView | None]:
        reduced = ReducedTensor.over(builder, x, dim, keepdim)
        read = reduced.load(opmath(x.dtype))

        def reader(which: str) -> Callable[[Point], Value]:
            return lambda point: reduced.combine(which, point, read)

        return builder.used(out, [reader(op), reader(f"arg{op}")])

    return lowering


for _name, _op in (("amax", "max"), ("amin", "min"), ("argmax", "argmax"), ("argmin", "argmin")):
    lowers(f"{_name}.default")(_extreme(_op))
for _op in ("max", "min"):
    lowers(f"{_op}.dim")(_with_indices(_op))


# -- truth ----------------------------------------------------------------------------------------


def _truth(op: str) -> AnyFunction:
    def lowering(
        builder: LoopBuilder, out: Out, x: TensorView, dims: Dims = None, keepdim: bool = False
    ) -> TensorView:
        if dims is not None and not isinstance(dims, int) and not dims:
            raise Decline("an empty list of dimensions, which reduces nothing here")
        reduced = ReducedTensor.over(builder, x, dims, keepdim)
        identity = constant(op == "all", torch.bool)
        return builder.pointwise(
            out, lambda point: reduced.combine(op, point, reduced.load(torch.bool), identity)
        )

    return lowering


for _op in ("any", "all"):
    lowers(f"{_op}.default", f"{_op}.dim", f"{_op}.dims")(_truth(_op))


@lowers("count_nonzero.default", "count_nonzero.dim_IntList")
def count_nonzero(builder: LoopBuilder, out: Out, x: TensorView, dims: Dims = None) -> TensorView:
    reduced = ReducedTensor.over(builder, x, dims)

    def value(point: Point) -> Value:
        return _sum(
            reduced,
            point,
            lambda at: cast(cast(builder.load(x, at), torch.bool), torch.int64),
            torch.int64,
        )

    return builder.pointwise(out, value)
