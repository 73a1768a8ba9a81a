"""Layer norm and batch norm, when they come undecomposed: one nest over the rows or the channels.

Statistics are two-pass in the opmath dtype. Each op is a nest whose first stores are the statistics
and whose last store, with inner axes, is the normalised tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
    known: dict[tuple[str, Point], Value] = field(default_factory=dict)

    def once(self, what: str, point: Point, value: Scalar) -> Value:
        """A statistic is one value, however many stores use it: its axes are bound once."""
        rest = tuple(part for d, part in enumerate(point) if d not in self.dims)
        if (what, rest) not in self.known:
            self.known[what, rest] = value(point)
        return self.known[what, rest]

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
        return self.once(
            "center", point, lambda row: self.mean(row, lambda at: self.read(self.x, at))
        )

    def variance(self, point: Point) -> Value:
        def square(at: Point) -> Value:
            distance = compute("sub", self.read(self.x, at), self.center(at))
            return compute("mul", distance, distance)

        return self.once("variance", point, lambda row: self.mean(row, square))

    def scale(self, point: Point, eps: float) -> Value:
        """1 / sqrt(variance + eps)."""
        return compute("rsqrt", compute("add", self.variance(point), eps))

    def standard(self, point: Point, eps: float) -> Value:
        """(x - center) * scale."""
        distance = compute("sub", self.read(self.x, point), self.center(point))
        return compute("mul", distance, self.scale(point, eps))


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
    span: _Field, value: Value, point: Point, weight: TensorView | None, bias: TensorView | None
) -> Value:
    """value * weight + bias; the parameters broadcast to point."""
    if weight is not None:
        value = compute("mul", value, span.read(weight, point))
    return value if bias is None else compute("add", value, span.read(bias, point))


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
    span = _Field(builder, x, dims)

    def normal(point: Point) -> Value:
        return _affine(span, span.standard(point, eps), point, weight, bias)

    parts: list[Part] = [
        (1, span.center, ()),
        (2, lambda point: span.scale(point, eps), ()),
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
    span = _Field(builder, x, dims)

    def standard(point: Point) -> Value:
        distance = compute("sub", span.read(x, point), span.read(mean, point))
        return compute("mul", distance, span.read(rstd, point))

    def weighted(point: Point) -> Value:
        return _affine(span, span.read(grad, point), point, weight, None)

    def grad_x(point: Point) -> Value:
        plain = span.mean(point, weighted)
        along = span.mean(point, lambda at: compute("mul", weighted(at), standard(at)))
        rest = compute("sub", weighted(point), plain)
        rest = compute("sub", rest, compute("mul", standard(point), along))
        return compute("mul", rest, span.read(rstd, point))

    rows = _Field(builder, x, tuple(range(rank - len(shape))))
    lead = (Integer(0),) * (rank - len(shape))

    def grad_weight(point: Point) -> Value:
        return rows.total(
            (*lead, *point), lambda at: compute("mul", span.read(grad, at), standard(at))
        )

    def grad_bias(point: Point) -> Value:
        return rows.total((*lead, *point), lambda at: span.read(grad, at))

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
    span = _Field(builder, x, ())

    def normal(point: Point) -> Value:
        at = _channel(point)
        scale = compute("rsqrt", compute("add", span.read(var, at), eps))
        distance = compute("sub", span.read(x, point), span.read(mean, at))
        return _affine(span, compute("mul", distance, scale), at, weight, bias)

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
    span = _Field(builder, x, dims)

    def spread(place: Point) -> Point:
        """A point of x on the channel that `place` of a per-channel result names."""
        return (Integer(0), place[0], *(Integer(0),) * (len(x.shape) - 2))

    def normal(point: Point) -> Value:
        return _affine(span, span.standard(point, eps), _channel(point), weight, bias)

    def moved(old: TensorView, place: Point, new: Value) -> Value:
        kept = compute("mul", span.read(old, place), 1.0 - momentum)
        return compute("add", compute("mul", new, momentum), kept)

    def new_var(place: Point) -> Value:
        unbiased = span.count / max(span.count - 1, 1)
        return moved(var, place, compute("mul", span.variance(spread(place)), unbiased))

    parts: list[Part] = [
        (1, lambda place: span.center(spread(place)), ()),
        (2, lambda place: span.scale(spread(place), eps), ()),
        (3, lambda place: moved(mean, place, span.center(spread(place))), ()),
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
    span = _Field(builder, x, dims)

    def distance(point: Point) -> Value:
        return compute("sub", span.read(x, point), span.read(mean, _channel(point)))

    def spread(place: Point) -> Point:
        return (Integer(0), place[0], *(Integer(0),) * (len(x.shape) - 2))

    def along(point: Point) -> Value:
        return span.once(
            "along",
            point,
            lambda row: span.total(
                row, lambda at: compute("mul", span.read(grad, at), distance(at))
            ),
        )

    def plain(point: Point) -> Value:
        return span.once(
            "plain", point, lambda row: span.total(row, lambda at: span.read(grad, at))
        )

    def grad_x(point: Point) -> Value:
        at, n = _channel(point), float(span.count)
        inverse = span.read(rstd, at)
        slope = compute(
            "mul", compute("truediv", along(point), n), compute("mul", inverse, inverse)
        )
        rest = compute("sub", span.read(grad, point), compute("mul", distance(point), slope))
        rest = compute("sub", rest, compute("truediv", plain(point), n))
        return _affine(span, compute("mul", rest, inverse), at, weight, None)

    def grad_weight(place: Point) -> Value:
        return compute("mul", along(spread(place)), span.read(rstd, place))

    parts: list[Part] = [
        (1, grad_weight, ()),
        (2, lambda place: plain(spread(place)), ()),
        (0, grad_x, dims),
    ]
    return _stores(builder, out, parts, 3)
