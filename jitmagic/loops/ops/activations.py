"""Lowers activations that have no decomposition.

Formulas and their order of operations are those of ATen/native/cpu/Activation.cpp and BinaryOps.
"""

from __future__ import annotations

from typing import Any

from ...devices import row_of
from ..builder import LoopBuilder, Out
from ..ir import Value
from ..registry import lowers, pointwise, pointwise_lowering
from ..tensor_view import TensorView
from ..values import Number, compute, constant, where
from ..vector_tails import Tail

__all__: list[str] = []


def _clamped(x: Value, low: Number, high: Number) -> Value:
    return compute("minimum", compute("maximum", x, low), high)


def _within(x: Value, low: float, high: float) -> Value:
    """Clamp to bounds that may cross; a value below the lower one then becomes the lower one."""
    if low <= high:
        return _clamped(x, low, high)
    return where(compute("lt", x, low), low, where(compute("gt", x, high), high, x))


@pointwise("relu6.default")
def relu6(x: Value) -> Value:
    return _clamped(x, 0, 6)


@pointwise("softshrink.default", operands=1)
def softshrink(x: Value, limit: Number = 0.5, *, tail: Tail) -> Value:
    """Return softshrink, with the zeros of eager."""
    # Between the limits, ATen's vector code gives 0.0 and its scalar code x * 0, which keeps the
    # sign.
    nothing = compute("mul", x, 0.0)
    if tail is not True:
        plain = where(compute("isnan", x), x, 0.0)
        nothing = plain if tail is False else where(tail, nothing, plain)
    up = where(compute("lt", x, -limit), compute("add", x, limit), nothing)
    return where(compute("gt", x, limit), compute("sub", x, limit), up)


@pointwise("logit.default", rule="float", operands=1)
def logit(x: Value, eps: float | None = None) -> Value:
    if eps is not None and eps >= 0:  # the kernel treats a negative eps as missing
        x = _within(x, eps, 1.0 - eps)
    return compute("log", compute("truediv", x, compute("sub", constant(1.0, x.dtype), x)))


@lowers("logit_backward.default")
def logit_backward(builder: LoopBuilder, out: Out, *args: Any, **kwargs: object) -> TensorView:
    on_gpu = row_of(args[0].device).kernels == "cuda"
    lowering = _SLOPE_OF_LOGIT_ON_GPU if on_gpu else _SLOPE_OF_LOGIT
    made: TensorView = lowering(builder, out, *args, **kwargs)
    return made


def _slope_of_logit(grad: Value, x: Value, eps: float | None = None) -> Value:
    low = None if eps is None or eps < 0 else eps
    product = compute("mul", x, compute("sub", constant(1.0, x.dtype), x))
    # The CPU kernel has a branch for 0, of either sign.
    product = compute("abs", product) if low is None else compute("add", product, 0.0)
    return _outside_or(grad, x, low, product)


def _slope_of_logit_on_gpu(grad: Value, x: Value, eps: float | None = None) -> Value:
    product = compute("mul", x, compute("sub", constant(1.0, x.dtype), x))
    return _outside_or(grad, x, None if eps is None or eps < 0 else eps, product)


_SLOPE_OF_LOGIT = pointwise_lowering(_slope_of_logit, "arith", 2)
_SLOPE_OF_LOGIT_ON_GPU = pointwise_lowering(_slope_of_logit_on_gpu, "arith", 2)


def _outside_or(grad: Value, x: Value, low: float | None, product: Value) -> Value:
    slope = compute("truediv", grad, product)
    bounds = (0.0, 1.0) if low is None else (low, 1.0 - low)
    outside = compute("logical_or", compute("lt", x, bounds[0]), compute("gt", x, bounds[1]))
    if bounds[0] > bounds[1]:  # all but nan; ptxas turns the two comparisons into "all"
        outside = compute("eq", x, x)
    return where(outside, float("nan") if low is None else 0.0, slope)
