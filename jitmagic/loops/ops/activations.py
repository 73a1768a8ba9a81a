"""Activations and their backwards, for graphs that keep them whole.

Formulas and their order of operations are those of ATen/native/cpu/Activation.cpp and BinaryOps:
where eager uses a fused multiply-add or a threshold, so does the lowering.
"""

from __future__ import annotations

from math import sqrt

from ..builder import Decline
from ..ir import Value
from ..registry import pointwise
from ..values import FLOATS, Number, compute, constant, where

__all__: list[str] = []

_SQRT_HALF = 0.7071067811865476
_TWO_OVER_SQRT_PI = 1.1283791670955126
_KAPPA = 0.044715


def _clamped(x: Value, low: Number, high: Number) -> Value:
    return compute("minimum", compute("maximum", x, low), high)


@pointwise("silu.default", rule="float")
def silu(x: Value) -> Value:
    return compute("truediv", x, compute("add", compute("exp", compute("neg", x)), 1.0))


@pointwise("silu_backward.default")
def silu_backward(grad: Value, x: Value) -> Value:
    s = compute("sigmoid", x)
    rest = compute("sub", constant(1.0, x.dtype), s)
    slope = compute("add", compute("mul", x, rest), 1.0)
    return compute("mul", compute("mul", grad, s), slope)


@pointwise("gelu.default", operands=1)
def gelu(x: Value, *, approximate: str = "none") -> Value:
    if approximate == "tanh":
        half = compute("mul", x, 0.5)
        return compute("mul", half, compute("add", compute("tanh", _gelu_inner(x)), 1.0))
    erf = compute("erf", compute("mul", x, _SQRT_HALF))
    return compute("mul", compute("mul", x, 0.5), compute("add", erf, 1.0))


def _gelu_inner(x: Value) -> Value:
    cube = compute("mul", compute("mul", x, x), x)
    return compute("mul", compute("fma", cube, _KAPPA, x), sqrt(2.0) * _TWO_OVER_SQRT_PI * 0.5)


@pointwise("gelu_backward.default", operands=2)
def gelu_backward(grad: Value, x: Value, *, approximate: str = "none") -> Value:
    if approximate == "tanh":
        return compute("mul", grad, _gelu_tanh_slope(x))
    erf = compute("erf", compute("mul", x, _SQRT_HALF))
    cdf = compute("mul", compute("add", erf, 1.0), 0.5)
    bell = compute("exp", compute("mul", compute("mul", x, x), -0.5))
    pdf = compute("mul", bell, _TWO_OVER_SQRT_PI * _SQRT_HALF * 0.5)
    return compute("mul", grad, compute("fma", x, pdf, cdf))


def _gelu_tanh_slope(x: Value) -> Value:
    t = compute("tanh", _gelu_inner(x))
    half = compute("mul", x, 0.5)
    left = compute("mul", compute("add", t, 1.0), 0.5)
    dtanh = compute("sub", constant(1.0, x.dtype), compute("mul", t, t))
    square = compute("mul", x, x)
    beta = sqrt(2.0) * _TWO_OVER_SQRT_PI * 0.5
    dinner = compute("mul", compute("add", compute("mul", square, 3 * _KAPPA), 1.0), beta)
    return compute("add", left, compute("mul", compute("mul", half, dtanh), dinner))


@pointwise("sigmoid_backward.default")
def sigmoid_backward(grad: Value, y: Value) -> Value:
    rest = compute("sub", constant(1.0, y.dtype), y)
    return compute("mul", grad, compute("mul", rest, y))


@pointwise("tanh_backward.default")
def tanh_backward(grad: Value, y: Value) -> Value:
    slope = compute("fma", compute("neg", y), y, constant(1.0, y.dtype))
    return compute("mul", grad, slope)


@pointwise("threshold.default", operands=1)
def threshold(x: Value, limit: Number, value: Number) -> Value:
    return where(compute("le", x, limit), value, x)


@pointwise("threshold_backward.default", operands=2)
def threshold_backward(grad: Value, x: Value, limit: Number) -> Value:
    return where(compute("le", x, limit), constant(0, grad.dtype), grad)


@pointwise("hardtanh.default", operands=1)
def hardtanh(x: Value, low: Number = -1, high: Number = 1) -> Value:
    return _clamped(x, low, high)


@pointwise("hardtanh_backward.default", operands=2)
def hardtanh_backward(grad: Value, x: Value, low: Number, high: Number) -> Value:
    outside = compute("logical_or", compute("le", x, low), compute("ge", x, high))
    return where(outside, constant(0, grad.dtype), grad)


@pointwise("relu6.default")
def relu6(x: Value) -> Value:
    return _clamped(x, 0, 6)


@pointwise("leaky_relu.default", operands=1)
def leaky_relu(x: Value, slope: Number = 0.01) -> Value:
    return where(compute("gt", x, 0), x, compute("mul", x, slope))


@pointwise("leaky_relu_backward.default", operands=2)
def leaky_relu_backward(grad: Value, x: Value, slope: Number, from_result: bool) -> Value:
    return where(compute("gt", x, 0), grad, compute("mul", grad, slope))


@pointwise("elu.default", operands=1)
def elu(x: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Value:
    bent = compute("expm1", compute("mul", x, input_scale))
    bent = compute("mul", bent, float(alpha) * float(scale))
    return where(compute("lt", x, 0), bent, compute("mul", x, scale))


@pointwise("softplus.default", operands=1)
def softplus(x: Value, beta: Number = 1, limit: Number = 20) -> Value:
    scaled = compute("mul", x, beta)
    bent = compute("truediv", compute("log1p", compute("exp", scaled)), beta)
    return where(compute("gt", scaled, limit), x, bent)


@pointwise("softplus_backward.default", operands=2)
def softplus_backward(grad: Value, x: Value, beta: Number, limit: Number) -> Value:
    scaled = compute("mul", x, beta)
    grown = compute("exp", scaled)
    slope = compute("truediv", compute("mul", grad, grown), compute("add", grown, 1.0))
    return where(compute("gt", scaled, limit), grad, slope)


@pointwise("hardsigmoid.default")
def hardsigmoid(x: Value) -> Value:
    return compute("truediv", _clamped(compute("add", x, 3.0), 0.0, 6.0), 6.0)


@pointwise("hardsigmoid_backward.default")
def hardsigmoid_backward(grad: Value, x: Value) -> Value:
    inside = compute("logical_and", compute("gt", x, -3.0), compute("lt", x, 3.0))
    return where(inside, compute("mul", grad, 1.0 / 6.0), constant(0, grad.dtype))


@pointwise("hardswish.default")
def hardswish(x: Value) -> Value:
    gate = _clamped(compute("add", x, 3.0), 0.0, 6.0)
    return compute("truediv", compute("mul", x, gate), 6.0)


@pointwise("hardswish_backward.default")
def hardswish_backward(grad: Value, x: Value) -> Value:
    slope = compute("add", compute("truediv", x, 3.0), 0.5)
    inner = where(compute("lt", x, 3.0), compute("mul", grad, slope), grad)
    return where(compute("le", x, -3.0), constant(0, grad.dtype), inner)


@pointwise("mish.default")
def mish(x: Value) -> Value:
    soft = compute("log1p", compute("exp", x))
    return compute("mul", x, compute("tanh", soft))


@pointwise("hardshrink.default", operands=1)
def hardshrink(x: Value, limit: Number = 0.5) -> Value:
    small = compute("logical_and", compute("ge", x, -limit), compute("le", x, limit))
    return where(small, constant(0, x.dtype), x)


@pointwise("softshrink.default", operands=1)
def softshrink(x: Value, limit: Number = 0.5) -> Value:
    up = where(compute("lt", x, -limit), compute("add", x, limit), compute("mul", x, 0.0))
    return where(compute("gt", x, limit), compute("sub", x, limit), up)


@pointwise("logit.default", rule="float", operands=1)
def logit(x: Value, eps: float | None = None) -> Value:
    if eps is not None:
        x = _clamped(x, eps, 1.0 - eps)
    return compute("log", compute("truediv", x, compute("sub", constant(1.0, x.dtype), x)))


@pointwise("logit_backward.default", operands=2)
def logit_backward(grad: Value, x: Value, eps: float | None = None) -> Value:
    low = 0.0 if eps is None else eps
    rest = compute("sub", constant(1.0, x.dtype), x)
    slope = compute("truediv", grad, compute("mul", x, rest))
    outside = compute("logical_or", compute("lt", x, low), compute("gt", x, 1.0 - low))
    return where(outside, float("nan") if eps is None else 0.0, slope)


@pointwise("_prelu_kernel.default")
def prelu(x: Value, weight: Value) -> Value:
    if x.dtype not in FLOATS:
        raise Decline("prelu of integers")
    return where(compute("gt", x, 0.0), x, compute("mul", weight, x))


@pointwise("mse_loss.default", operands=2)
def mse_loss(x: Value, y: Value, reduction: int = 1) -> Value:
    if reduction != 0:
        raise Decline("a loss reduced inside the op")
    distance = compute("sub", x, y)
    return compute("mul", distance, distance)
