"""Lowers pointwise arithmetic, comparison, logic, bits, choice and conversion.

Every function is scalar: it takes Values in the dtype in which its rule computes, and returns a
Value. Eager's special cases (pow by an integer, fused multiply-add under alpha) are reproduced,
because they round differently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...devices import row_of
from ...operators.scalar import SCALARS
from ...symbols.symbolic_numbers import interval_of
from ..builder import Decline, LoopBuilder, Out
from ..expr import axes_of
from ..ir import Cast, Constant, IndexValue, Value
from ..promotion import Operand
from ..registry import LOWERINGS, lowers, one_to_one, pointwise, pointwise_lowering
from ..tensor_view import TensorView
from ..values import FLOATS, Number, cast, compute, constant, number, round_to, where

__all__: list[str] = []


# Rows that were registered at run time may be removed again: `lowering_of` looks them up.
for _row in SCALARS.values():
    if _row.texts is None:
        LOWERINGS.update(dict.fromkeys(_row.overloads, one_to_one(_row)))


# -- sums and products ----------------------------------------------------------------------------


def _scaled(x: Value, y: Value, alpha: Value, sign: int) -> Value:
    factor = alpha.value if isinstance(alpha, Constant) else alpha
    if factor == 1:
        return compute("add" if sign > 0 else "sub", x, y)
    if x.dtype in FLOATS:
        return compute("fma", y, factor if sign > 0 else _negated(factor), x)
    return compute("add" if sign > 0 else "sub", x, compute("mul", y, factor))


def _negated(factor: Number | Value) -> Number | Value:
    return compute("neg", factor) if isinstance(factor, Value) else -factor


def _sum(sign: int, reverse: bool = False) -> Callable[[Value, Value, Value], Value]:
    def function(x: Value, y: Value, alpha: Value) -> Value:
        return _scaled(y, x, alpha, sign) if reverse else _scaled(x, y, alpha, sign)

    return function


pointwise("add.Tensor", "add.Scalar", rule="alpha")(_sum(1))
pointwise("sub.Tensor", "sub.Scalar", rule="alpha")(_sum(-1))
pointwise("rsub.Tensor", "rsub.Scalar", rule="alpha")(_sum(-1, reverse=True))


@pointwise("addcmul.default", rule="value")
def addcmul(x: Value, a: Value, b: Value, value: Value) -> Value:
    product = a if _is_one(value) else compute("mul", value, a)
    if x.dtype in FLOATS:
        return compute("fma", product, b, x)
    return compute("add", x, compute("mul", product, b))


@pointwise("addcdiv.default", rule="value")
def addcdiv(x: Value, a: Value, b: Value, value: Value) -> Value:
    if x.dtype not in FLOATS:
        raise Decline("addcdiv of integers")
    product = a if _is_one(value) else compute("mul", value, a)
    return compute("add", x, compute("truediv", product, b))


def _is_one(value: Value) -> bool:
    return isinstance(value, Constant) and value.value == 1


@pointwise("lerp.Scalar", "lerp.Tensor", rule="value")
def lerp(x: Value, y: Value, weight: Value) -> Value:
    """Interpolate by the two formulas of ATen/native/Lerp.h, exact at x and at y respectively."""
    step = compute("sub", y, x)
    near = compute("fma", weight, step, x)
    far = compute("fma", compute("sub", compute("neg", weight), -1.0), compute("neg", step), y)
    if isinstance(weight, Constant):
        return near if abs(weight.value) < 0.5 else far
    return where(compute("lt", compute("abs", weight), 0.5), near, far)


# -- division of every kind -----------------------------------------------------------------------


def _divisor(y: Value) -> Value:
    """Return a divisor that is known not to be zero."""
    # Integer division by zero raises in eager.
    if y.dtype in FLOATS or _is_never_zero(y):
        return y
    raise Decline("integer division by values that may be zero, which raises")


def _is_never_zero(y: Value) -> bool:
    """Return whether y is never zero; a size by its range."""
    # `_size_value` has checked that the size fits the dtype.
    match y:
        case Constant(value=value):
            return value != 0
        case Cast(value=value):
            return y.dtype is not torch.bool and _is_never_zero(value)
        case IndexValue(expr=expr):
            limits = None if axes_of(expr) else interval_of(expr, {})
            return limits is not None and not limits.has(0)
    return False


@pointwise("floor_divide.default", "floor_divide.Scalar", rule="arith_wide")
def floor_divide(x: Value, y: Value) -> Value:
    return compute("floordiv", x, _divisor(y))


@pointwise("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(x: Value, y: Value) -> Value:
    return compute("remainder", x, _divisor(y))


@pointwise("fmod.Tensor", "fmod.Scalar")
def fmod(x: Value, y: Value) -> Value:
    return compute("fmod", x, _divisor(y))


def _trunc_divide(x: Value, y: Value) -> Value:
    if x.dtype in FLOATS:
        return compute("trunc", compute("truediv", x, y))
    return compute("floordiv", compute("sub", x, compute("fmod", x, _divisor(y))), y)


_TRUNC_DIVIDE = pointwise_lowering(_trunc_divide, "arith_wide", 2)
_FLOOR_DIVIDE = pointwise_lowering(floor_divide, "arith_wide", 2)
_TRUE_DIVIDE = one_to_one(SCALARS["truediv"])


@lowers("div.Tensor_mode", "div.Scalar_mode", numbers=True)
def div_mode(
    builder: LoopBuilder, out: Out, x: TensorView, y: Operand, *, rounding_mode: str | None = None
) -> object:
    match rounding_mode:
        case "floor":
            return _FLOOR_DIVIDE(builder, out, x, y)
        case "trunc":
            return _TRUNC_DIVIDE(builder, out, x, y)
    return _TRUE_DIVIDE(builder, out, x, y)


# -- powers ---------------------------------------------------------------------------------------


@lowers("pow.Tensor_Scalar")
def pow_scalar(builder: LoopBuilder, out: Out, *args: Any, **kwargs: object) -> TensorView:
    lowering = _POWER_ON_GPU if row_of(args[0].device).kernels == "cuda" else _POWER
    made: TensorView = lowering(builder, out, *args, **kwargs)
    return made


def _power_on_gpu(x: Value, exponent: Value, *, result: torch.dtype) -> Value:
    """Return a power; exponents of 0.5 and -0.5 are roots, in ATen/native/cuda/PowKernel.cu for
    float16 too.
    """
    if isinstance(exponent, Constant) and abs(float(exponent.value)) == 0.5:
        return compute("sqrt" if exponent.value > 0 else "rsqrt", x)
    return _power(x, exponent, result=result)


def _power(x: Value, exponent: Value, *, result: torch.dtype) -> Value:
    """Return a power with the special cases of ATen/native/cpu/PowKernel.cpp, which round
    differently from pow().
    """
    if not isinstance(exponent, Constant):
        raise Decline("the exponent is not a constant")
    if x.dtype not in FLOATS:
        return _integer_power(x, int(exponent.value))
    # In ATen, products of bfloat16 are rounded to bfloat16 after each multiplication, those of
    # float16 are computed in float32, and float16 has no special case for roots.
    between = result if result is torch.bfloat16 else x.dtype
    match float(exponent.value):
        case 0.5 | -0.5 if result is torch.float16:
            return compute("pow", x, exponent.value)
        case 0.0:
            return constant(1.0, x.dtype)
        case 1.0:
            return x
        case 0.5:
            return compute("sqrt", x)
        case -0.5:
            return compute("rsqrt", x)
        case 2.0:
            return compute("mul", x, x)
        case 3.0:
            return compute("mul", cast(cast(compute("mul", x, x), between), x.dtype), x)
        case -1.0:
            return compute("reciprocal", x)
        case -2.0:
            return compute("reciprocal", cast(cast(compute("mul", x, x), between), x.dtype))
    exact = float(exponent.value)
    if x.dtype is torch.float32 and abs(exact) >= 2**24 and round_to(exact, x.dtype) != exact:
        # As a float32, an odd exponent would become even, which changes the power's sign.
        return cast(compute("pow", cast(x, torch.float64), exact), x.dtype)
    return compute("pow", x, exact)


_POWER = pointwise_lowering(_power, "power", 2)
_POWER_ON_GPU = pointwise_lowering(_power_on_gpu, "power", 2)


def _integer_power(x: Value, exponent: int) -> Value:
    """Return the power by repeated squaring; it wraps around like machine integers."""
    if not 0 <= exponent <= 64:
        raise Decline("an integer power outside 0 to 64")
    result: Value | None = None
    while exponent:
        if exponent & 1:
            result = x if result is None else compute("mul", result, x)
        exponent >>= 1
        if exponent:
            x = compute("mul", x, x)
    return constant(1, x.dtype) if result is None else result


@pointwise("pow.Tensor_Tensor", "pow.Scalar")
def power(x: Value, y: Value) -> Value:
    if x.dtype not in FLOATS:
        raise Decline("integer powers of tensors")
    return compute("pow", x, y)


# -- rounding and sign ----------------------------------------------------------------------------


def _numeric(x: Value) -> Value:
    if x.dtype is torch.bool:
        raise Decline("eager refuses bool here")
    return x


@pointwise("abs.default", "absolute.default")
def absolute(x: Value) -> Value:
    return x if x.dtype is torch.uint8 else compute("abs", _numeric(x))


@pointwise("sign.default", "sgn.default")
def sign(x: Value) -> Value:
    return x if x.dtype is torch.bool else compute("sign", x)


@pointwise("positive.default")
def positive(x: Value) -> Value:
    return x


@pointwise("square.default")
def square(x: Value) -> Value:
    return compute("mul", x, x)


def _times(factor: float) -> Callable[[Value], Value]:
    return lambda x: compute("mul", x, factor)


pointwise("deg2rad.default", rule="float")(_times(0.017453292519943295))
pointwise("rad2deg.default", rule="float")(_times(57.29577951308232))


@pointwise("nextafter.default")
def nextafter(x: Value, y: Value, *, result: torch.dtype) -> Value:
    if x.dtype is not result:
        raise Decline("nextafter of 16-bit floats steps in 16 bits")
    return compute("nextafter", x, y)


@pointwise("xlogy.Tensor", "xlogy.Scalar_Other", "xlogy.Scalar_Self", rule="float")
def xlogy(x: Value, y: Value) -> Value:
    product = where(compute("eq", x, 0.0), 0.0, compute("mul", x, compute("log", y)))
    return where(compute("isnan", y), float("nan"), product)


@pointwise("heaviside.default")
def heaviside(x: Value, y: Value) -> Value:
    """Return the step function; it is 0 at nan."""
    step = where(compute("gt", x, 0), constant(1, x.dtype), constant(0, x.dtype))
    return where(compute("eq", x, 0), y, step)


# -- predicates ----------------------------------------------------------------------------------


def _equals(number: float) -> Callable[[Value], Value]:
    def function(x: Value) -> Value:
        return compute("eq", x, number) if x.dtype in FLOATS else constant(False, torch.bool)

    return function


pointwise("isposinf.default", rule="predicate")(_equals(float("inf")))
pointwise("isneginf.default", rule="predicate")(_equals(float("-inf")))


@pointwise("signbit.default", rule="predicate")
def signbit(x: Value) -> Value:
    if x.dtype is torch.bool:
        return constant(False, torch.bool)
    return compute("signbit", x) if x.dtype in FLOATS else compute("lt", x, 0)


# -- choice --------------------------------------------------------------------------------------


@pointwise("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar", rule="choose")
def choose(condition: Value, x: Value, y: Value) -> Value:
    return where(condition, x, y)


@pointwise("masked_fill.Tensor", rule="fill")
def masked_fill(x: Value, mask: Value, value: Value) -> Value:
    """Lower masked_fill of a GPU tensor by a CPU scalar, which the decomposition declines."""
    return where(mask, value, x)


# -- shifts ---------------------------------------------------------------------------------------


def _shifted(op: str, x: Value, y: Value, fills_with_sign: bool) -> Value:
    """Shift by any count, also one for which C++ leaves the result undefined."""
    # A count that is negative or at least the width gives 0 in a left shift; a right shift fills
    # with the sign bit (0 if unsigned).
    bits, signed = torch.iinfo(x.dtype).bits, torch.iinfo(x.dtype).min < 0
    if isinstance(y, Constant) and 0 <= y.value < bits:
        return compute(op, x, y)
    wild = compute("logical_or", compute("lt", y, 0), compute("ge", y, bits))
    if fills_with_sign and signed:
        return compute(op, x, where(wild, bits - 1, y))
    return where(wild, 0, compute(op, x, where(wild, 0, y)))


@pointwise("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", rule="integral")
@pointwise("__lshift__.Tensor", "__lshift__.Scalar", rule="integral")
def left_shift(x: Value, y: Value) -> Value:
    return _shifted("lshift", x, y, fills_with_sign=False)


@pointwise("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar", rule="integral")
@pointwise("__rshift__.Tensor", "__rshift__.Scalar", rule="integral")
def right_shift(x: Value, y: Value) -> Value:
    return _shifted("rshift", x, y, fills_with_sign=True)


# -- conversion and copies ------------------------------------------------------------------------


@lowers("_to_copy.default", "to.dtype", "to.dtype_layout", "to.device")
@lowers("clone.default", "contiguous.default", "lift_fresh_copy.default")
def convert(
    builder: LoopBuilder, out: Out, x: TensorView | Number, *_: object, **__: object
) -> TensorView:
    """Copy to the result's dtype and strides. Between devices only CPU scalars; ATen copies
    others.
    """
    # torch's batching rules may pass a number here.
    if not isinstance(x, TensorView):
        made = number(x, torch.float64 if isinstance(x, float) else torch.int64)
        return builder.pointwise(out, lambda point: cast(made, out.spec.dtype))
    if x.device != out.spec.device and not builder.is_cpu_scalar(x):
        raise Decline("a copy between devices")
    return builder.pointwise(out, lambda point: builder.load(x, point))


@lowers("copy.default")
def copy(
    builder: LoopBuilder, out: Out, x: TensorView, source: TensorView, *_: object
) -> TensorView:
    return convert(builder, out, source)
