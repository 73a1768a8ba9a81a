"""Layer norm and batch norm, when they come undecomposed: one nest over the rows or the channels.

Statistics are two-pass in the opmath dtype. Each op is a nest whose first stores are the statistics and
whose last store, with inner axes, is the normalised tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from ..builder import Builder, Decline, Out
from ..expr import Integer
from ..ir import Value
from ..registry import lowers
from ..tensor_view import Point, TensorView
from ..values import cast, compute, constant, opmath

__all__: list[str] = []

Scalar = Callable[[Point], Value]
Part = tuple[int, Scalar, tuple[int, ...]]  # which result, its value at a point of x, inner dims


@dataclass(frozen=True, slots=True)
class _Field:
    """x with the dimensions that one statistic spans; points are always points of x."""

    builder: Builder
    x: TensorView
    dims: tuple[int, ...]

    @property
    def count(self) -> int:
        return prod(self.x.shape[d] for d in self.dims)

    def read(self, view: TensorView, point: Point) -> Value:
        return cast(self.builder.load(view, point), opmath(self.x.dtype))

    def total(self, point: Point, value: Scalar) -> Value:
        """sum of value over the dims, at the rest of `point`."""

        def inside(bound: Point) -> Value:
            at = list(point)
            for d, place in zip(self.dims, bound, strict=True):
                at[d] = place
            return value(tuple(at))

        sizes = [self.x.shape[d] for d in self.dims]
        zero = constant(0.0, opmath(self.x.dtype))
        return self.builder.reduce("sum", sizes, inside, zero)

    def mean(self, point: Point, value: Scalar) -> Value:
        return compute("truediv", self.total(point, value), float(self.count))

    def center(self, point: Point) -> Value:
        return self.mean(point, lambda at: self.read(self.x, at))

    def variance(self, point: Point, center: Value) -> Value:
        def square(at: Point) -> Value:
            distance = compute("sub", self.read(self.x, at), center)
            return compute("mul", distance, distance)

        return self.mean(point, square)


def _stores(
    builder: Builder, out: Out, parts: Sequence[Part], count: int
) -> list[TensorView | None]:
    """One nest for the parts that are read."""
    made: list[TensorView | None] = [None] * count
    wanted = [(n, spec, value, inner) for n, value, inner in parts if (spec := out.part(n))]
    views = builder.nest(out.name, [(spec, value, inner) for _, spec, value, inner in wanted])
    for (n, *_), view in zip(wanted, views, strict=True):
        made[n] = view
    return made


def _affine(
    field: _Field, value: Value, point: Point, weight: TensorView | None, bias: TensorView | None
) -> Value:
    """value * weight + bias; the parameters broadcast to point."""
    if weight is not None:
        value = compute("mul", value, field.read(weight, point))
    return value if bias is None else compute("add", value, field.read(bias, point))


# -- layer norm -----------------------------------------------------------------------------------


@lowers("native_layer_norm.default")
def native_layer_norm(
    builder: Builder,
    out: Out,
    x: TensorView,
    shape: Sequence[int],
    weight: TensorView | None,
    bias: TensorView | None,
    eps: float,
) -> list[TensorView | None]:
    rank = len(x.shape)
    dims = tuple(range(rank - len(shape), rank))
    field = _Field(builder, x, dims)

    def center(point: Point) -> Value:
        return field.center(point)

    def scale(point: Point, middle: Value) -> Value:
        return compute("rsqrt", compute("add", field.variance(point, middle), eps))

    def normal(point: Point) -> Value:
        middle = center(point)
        distance = compute("sub", field.read(x, point), middle)
        value = compute("mul", distance, scale(point, middle))
        return _affine(field, value, point, weight, bias)

    parts: list[Part] = [
        (1, center, ()),
        (2, lambda point: scale(point, center(point)), ()),
        (0, normal, dims),
    ]
    return _stores(builder, out, parts, 3)


@lowers("native_layer_norm_backward.default")
def native_layer_norm_backward(
    builder: Builder,
    out: Out,
    grad: TensorView,
    x: TensorView,
    shape: Sequence[int],
    mean: TensorView,
    rstd: TensorView,
    weight: TensorView | None,
    bias: TensorView | None,
    mask: Sequence[bool],
) -> list[TensorView | None]:
    rank = len(x.shape)
    dims = tuple(range(rank - len(shape), rank))
    field = _Field(builder, x, dims)

    def standard(point: Point) -> Value:
        distance = compute("sub", field.read(x, point), field.read(mean, point))
        return compute("mul", distance, field.read(rstd, point))

    def weighted(point: Point) -> Value:
        return _affine(field, field.read(grad, point), point, weight, None)

    def grad_x(point: Point) -> Value:
        plain = field.mean(point, weighted)
        along = field.mean(point, lambda at: compute("mul", weighted(at), standard(at)))
        rest = compute("sub", weighted(point), plain)
        rest = compute("sub", rest, compute("mul", standard(point), along))
        return compute("mul", rest, field.read(rstd, point))

    rows = _Field(builder, x, tuple(range(rank - len(shape))))
    lead = (Integer(0),) * (rank - len(shape))

    def grad_weight(point: Point) -> Value:
        return rows.total(
            (*lead, *point), lambda at: compute("mul", field.read(grad, at), standard(at))
        )

    def grad_bias(point: Point) -> Value:
        return rows.total((*lead, *point), lambda at: field.read(grad, at))

    inner = _stores(builder, out, [(0, grad_x, dims)], 3) if mask[0] else [None] * 3
    summed = Out(f"{out.name}_parameters", out.specs)
    parts: list[Part] = [(1, grad_weight, ()), (2, grad_bias, ())]
    outer = _stores(builder, summed, parts, 3)
    return [inner[0], outer[1], outer[2]]


# -- batch norm -----------------------------------------------------------------------------------


def _channel(point: Point) -> Point:
    """The place of a per-channel tensor, for a point of x."""
    return (point[1],)


@lowers("_native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    builder: Builder,
    out: Out,
    x: TensorView,
    weight: TensorView | None,
    bias: TensorView | None,
    mean: TensorView,
    var: TensorView,
    momentum: float,
    eps: float,
) -> list[TensorView | None]:
    field = _Field(builder, x, ())

    def normal(point: Point) -> Value:
        at = _channel(point)
        scale = compute("rsqrt", compute("add", field.read(var, at), eps))
        distance = compute("sub", field.read(x, point), field.read(mean, at))
        return _affine(field, compute("mul", distance, scale), at, weight, bias)

    return _stores(builder, out, [(0, normal, ())], 3)


@lowers("_native_batch_norm_legit_functional.default")
def batch_norm_training(
    builder: Builder,
    out: Out,
    x: TensorView,
    weight: TensorView | None,
    bias: TensorView | None,
    mean: TensorView,
    var: TensorView,
    training: bool,
    momentum: float,
    eps: float,
) -> list[TensorView | None]:
    """Results: normalised x, saved mean, saved 1/std, the new running mean and variance."""
    if not training or x.numel == 0:
        raise Decline("batch norm with running statistics in its training form")
    dims = tuple(d for d in range(len(x.shape)) if d != 1)
    field = _Field(builder, x, dims)

    def spread(place: Point) -> Point:
        """A point of x on the channel that `place` of a per-channel result names."""
        return (Integer(0), place[0], *(Integer(0),) * (len(x.shape) - 2))

    def scale(point: Point, middle: Value) -> Value:
        return compute("rsqrt", compute("add", field.variance(point, middle), eps))

    def normal(point: Point) -> Value:
        middle = field.center(point)
        value = compute("mul", compute("sub", field.read(x, point), middle), scale(point, middle))
        return _affine(field, value, _channel(point), weight, bias)

    def saved_scale(place: Point) -> Value:
        return scale(spread(place), field.center(spread(place)))

    def moved(old: TensorView, place: Point, new: Value) -> Value:
        kept = compute("mul", field.read(old, place), 1.0 - momentum)
        return compute("add", compute("mul", new, momentum), kept)

    def new_var(place: Point) -> Value:
        at = spread(place)
        unbiased = field.count / max(field.count - 1, 1)
        return moved(var, place, compute("mul", field.variance(at, field.center(at)), unbiased))

    parts: list[Part] = [
        (1, lambda place: field.center(spread(place)), ()),
        (2, saved_scale, ()),
        (3, lambda place: moved(mean, place, field.center(spread(place))), ()),
        (4, new_var, ()),
        (0, normal, dims),
    ]
    return _stores(builder, out, parts, 5)


@lowers("native_batch_norm_backward.default")
def batch_norm_backward(
    builder: Builder,
    out: Out,
    grad: TensorView,
    x: TensorView,
    weight: TensorView | None,
    running_mean: TensorView | None,
    running_var: TensorView | None,
    mean: TensorView | None,
    rstd: TensorView | None,
    train: bool,
    eps: float,
    mask: Sequence[bool],
) -> list[TensorView | None]:
    if not train or mean is None or rstd is None or x.numel == 0:
        raise Decline("the backward of batch norm with running statistics")
    dims = tuple(d for d in range(len(x.shape)) if d != 1)
    field = _Field(builder, x, dims)

    def distance(point: Point) -> Value:
        return compute("sub", field.read(x, point), field.read(mean, _channel(point)))

    def spread(place: Point) -> Point:
        return (Integer(0), place[0], *(Integer(0),) * (len(x.shape) - 2))

    def along(point: Point) -> Value:
        return field.total(point, lambda at: compute("mul", field.read(grad, at), distance(at)))

    def plain(point: Point) -> Value:
        return field.total(point, lambda at: field.read(grad, at))

    def grad_x(point: Point) -> Value:
        at, n = _channel(point), float(field.count)
        inverse = field.read(rstd, at)
        slope = compute(
            "mul", compute("truediv", along(point), n), compute("mul", inverse, inverse)
        )
        rest = compute("sub", field.read(grad, point), compute("mul", distance(point), slope))
        rest = compute("sub", rest, compute("truediv", plain(point), n))
        return _affine(field, compute("mul", rest, inverse), at, weight, None)

    def grad_weight(place: Point) -> Value:
        return compute("mul", along(spread(place)), field.read(rstd, place))

    parts: list[Part] = [
        (1, grad_weight, ()),
        (2, lambda place: plain(spread(place)), ()),
        (0, grad_x, dims),
    ]
    return _stores(builder, out, parts, 3)
