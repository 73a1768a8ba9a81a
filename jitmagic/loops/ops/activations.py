"""Activations that have no decomposition.

Formulas and their order of operations are those of ATen/native/cpu/Activation.cpp and BinaryOps.
"""

from __future__ import annotations

from ..ir import Value
from ..registry import pointwise
from ..values import Number, compute, constant, where

__all__: list[str] = []


def _clamped(x: Value, low: Number, high: Number) -> Value:
    return compute("minimum", compute("maximum", x, low), high)


@pointwise("relu6.default")
def relu6(x: Value) -> Value:
    return _clamped(x, 0, 6)


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
