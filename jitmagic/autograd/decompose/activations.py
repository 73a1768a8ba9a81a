"""Activation functions and their backwards, as ATen's CPU kernels define them
(ATen/native/Activation.cpp)."""

from __future__ import annotations

import math

import torch

from ...devices import row_of
from ..recording.recorder import Recorder, Sym
from .registry import rule, up

__all__: list[str] = []

aten = torch.ops.aten
_SQRT_2_OVER_PI = math.sqrt(2) * (2 / math.sqrt(math.pi)) * 0.5
_CUBIC = 0.044715


def _clamp(x: Sym, low: float | None, high: float | None) -> Sym:
    return x.one(aten.clamp.default, low, high)


def _erf(x: Sym) -> Sym:
    return x.one(aten.erf.default)


def _softplus_of(x: Sym) -> Sym:
    return x.exp().one(aten.log1p.default)


# The cube is written as ATen writes it: pow(x, 3) rounds differently in the last bit.
def _tanh_inner(x: Sym) -> Sym:
    return (x + x * x * x * _CUBIC) * _SQRT_2_OVER_PI


@rule(aten.gelu.default, opmath=True)
def _gelu(r: Recorder, x: Sym, *, approximate: str = "none") -> Sym:
    if approximate == "tanh":
        return x * 0.5 * (_tanh_inner(x).tanh() + 1)
    return x * 0.5 * (_erf(x * math.sqrt(0.5)) + 1)


@rule(aten.gelu_backward.default, opmath=True)
def _gelu_backward(r: Recorder, grad: Sym, x: Sym, *, approximate: str = "none") -> Sym:
    if approximate == "tanh":
        tanh = _tanh_inner(x).tanh()
        slope = (x * x * (3 * _CUBIC) + 1) * _SQRT_2_OVER_PI
        return grad * ((tanh + 1) * 0.5 + x * 0.5 * (1 - tanh * tanh) * slope)
    # erf is computed again: the min-cut (partition.py) finds that cheaper than saving a tensor.
    cdf = (_erf(x * math.sqrt(0.5)) + 1) * 0.5
    pdf = (x * x * -0.5).exp() * (1 / math.sqrt(2 * math.pi))
    return grad * (cdf + x * pdf)


@rule(aten.silu.default, opmath=True)
def _silu(r: Recorder, x: Sym) -> Sym:
    return x * x.sigmoid()


@rule(aten.silu_backward.default, opmath=True)
def _silu_backward(r: Recorder, grad: Sym, x: Sym) -> Sym:
    s = x.sigmoid()
    # The form of ATen's kernel: grad * (s + x * s * (1 - s)) is equal in exact arithmetic, not in
    # bits.
    return grad * s * (x * (1 - s) + 1)


@rule(aten.mish.default, opmath=True)
def _mish(r: Recorder, x: Sym) -> Sym:
    return x * _softplus(r, x).tanh()


@rule(aten.mish_backward.default, opmath=True)
def _mish_backward(r: Recorder, grad: Sym, x: Sym) -> Sym:
    t = _softplus(r, x).tanh()
    return grad * (t + x * x.sigmoid() * (1 - t * t))


_SIXTH_IN_FLOAT = 0.1666666716337204  # 1.0f / 6.0f


def _sixth(x: Sym) -> Sym:
    """Divide by 6 as eager's kernels do: on CUDA they multiply by a float, for doubles too."""
    return x * _SIXTH_IN_FLOAT if row_of(x.device).kernels == "cuda" else x / 6


@rule(aten.hardswish.default, opmath=True)
def _hardswish(r: Recorder, x: Sym) -> Sym:
    return _sixth(x * _clamp(x + 3, 0, 6))


@rule(aten.hardswish_backward.default, opmath=True)
def _hardswish_backward(r: Recorder, grad: Sym, x: Sym) -> Sym:
    inside = grad * (x / 3 + 0.5)
    return r.where(x <= -3, 0.0, r.where(x < 3, inside, grad))


@rule(aten.hardsigmoid.default, opmath=True)
def _hardsigmoid(r: Recorder, x: Sym) -> Sym:
    return _sixth(_clamp(x + 3, 0, 6))


@rule(aten.hardsigmoid_backward.default, opmath=True)
def _hardsigmoid_backward(r: Recorder, grad: Sym, x: Sym) -> Sym:
    """Multiply by a float on every device, as eager's kernels do."""
    return r.where((x > -3).both(x < 3), grad * _SIXTH_IN_FLOAT, 0.0)


@rule(aten.hardtanh.default)
def _hardtanh(r: Recorder, x: Sym, low: float = -1, high: float = 1) -> Sym:
    if not x.dtype.is_floating_point:  # the kernel cuts the bounds, it does not promote
        low, high = int(low), int(high)
    return _clamp(x, low, high)


@rule(aten.hardtanh_backward.default, opmath=True)  # 16-bit inputs meet unrounded bounds
def _hardtanh_backward(r: Recorder, grad: Sym, x: Sym, low: float, high: float) -> Sym:
    # NaN gives 0 in the CPU kernel's vector loop, but not in its scalar remainder.
    if row_of(x.device).kernels == "cpu":
        return r.where((x > low).both(x < high), grad, 0.0)
    return r.where((x <= low).either(x >= high), 0.0, grad)


@rule(aten.elu.default, opmath=True)
def _elu(r: Recorder, x: Sym, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Sym:
    below = (x * input_scale).one(aten.expm1.default) * (alpha * scale)
    # The side that 0 falls on matters where alpha is infinite or NaN; both backwards agree.
    is_below = x < 0 if row_of(x.device).kernels == "cpu" else x <= 0
    return r.where(is_below, below, x * scale)


@rule(aten.elu_backward.default, opmath=True)
def _elu_backward(
    r: Recorder,
    grad: Sym,
    alpha: float,
    scale: float,
    input_scale: float,
    is_result: bool,
    x: Sym,
) -> Sym:
    # With `is_result` autograd has saved the output, not the input: exp(x) * slope is output +
    # slope.
    slope = alpha * scale
    if is_result:
        below = grad * input_scale * (x + slope)
    else:
        below = grad * input_scale * slope * (x * input_scale).exp()
    return r.where(x <= 0, below, grad * scale)


@rule(aten.celu.default)
def _celu(r: Recorder, x: Sym, alpha: float = 1.0) -> Sym:
    return r.emit_one(aten.elu.default, x, alpha, 1.0, 1.0 / alpha)


@rule(aten.leaky_relu.default, opmath=True)
def _leaky_relu(r: Recorder, x: Sym, slope: float = 0.01) -> Sym:
    return r.where(x > 0, x, x * slope)


@rule(aten.leaky_relu_backward.default, opmath=True)
def _leaky_relu_backward(
    r: Recorder, grad: Sym, x: Sym, slope: float, is_result: bool
) -> Sym | None:
    if is_result and not slope >= 0:  # eager refuses it
        return None
    return r.where(x > 0, grad, grad * slope)


@rule(aten._prelu_kernel.default, opmath=True)
def _prelu(r: Recorder, x: Sym, weight: Sym) -> Sym:
    return r.where(x > 0, x, x * weight)


@rule(aten._prelu_kernel_backward.default, opmath=True)
def _prelu_backward(r: Recorder, grad: Sym, x: Sym, weight: Sym) -> list[Sym]:
    return [r.where(x > 0, grad, grad * weight), r.where(x > 0, 0.0, x * grad)]


@rule(aten.softplus.default, opmath=True)
def _softplus(r: Recorder, x: Sym, beta: float = 1, threshold: float = 20) -> Sym:
    if beta == 1:
        # Above the threshold log1p(exp(x)) is x to the last bit, and exp(x) would overflow at 89
        # (fp32).
        return r.where(x > threshold, x, _softplus_of(x))
    scaled = x * beta
    return r.where(scaled > threshold, x, _softplus_of(scaled) / beta)


@rule(aten.softplus_backward.default, opmath=True)
def _softplus_backward(r: Recorder, grad: Sym, x: Sym, beta: float, threshold: float) -> Sym:
    scaled = x * beta
    z = scaled.exp()
    return r.where(scaled > threshold, grad, grad * z / (z + 1.0))


@rule(aten.log_sigmoid_forward.default)
def _log_sigmoid(r: Recorder, x: Sym) -> list[Sym]:
    return [_log_sigmoid_value(r, x), _log_sigmoid_buffer(r, x)]


@rule(opmath=True)
def _log_sigmoid_value(r: Recorder, x: Sym) -> Sym:
    z = (-x.abs()).exp()
    return _clamp(x, None, 0) - z.one(aten.log1p.default)


@rule(opmath=True)
def _log_sigmoid_buffer(r: Recorder, x: Sym) -> Sym:
    """Return the buffer that the CPU kernel saves for the backward; CUDA saves nothing."""
    if row_of(x.device).kernels != "cpu":
        return r.full((0,), 0.0, x.dtype, x.device)
    return (-x.abs()).exp()


@rule(aten.log_sigmoid_backward.default)
# The buffer is recomputed from x: saving it would cost as much memory as x itself.
def _log_sigmoid_backward(r: Recorder, grad: Sym, x: Sym, buffer: Sym) -> Sym:
    return _log_sigmoid_slope(r, grad, x)


@rule(opmath=True)
def _log_sigmoid_slope(r: Recorder, grad: Sym, x: Sym) -> Sym:
    # The exponent is never positive, so nothing overflows for x of either sign.
    z = (-x.abs()).exp()
    share = z / (z + 1.0)
    return grad * r.where(x < 0, 1 - share, share)


@rule(aten.threshold.default)
def _threshold(r: Recorder, x: Sym, threshold: float, value: float) -> Sym:
    return r.where(_at_most(x, threshold), value, x)


@rule(aten.threshold_backward.default)
def _threshold_backward(r: Recorder, grad: Sym, x: Sym, threshold: float) -> Sym:
    return r.where(_at_most(x, threshold), 0.0, grad)


def _at_most(x: Sym, threshold: float) -> Sym:
    """Compare as the kernels do: with the threshold in x's dtype, in fp32 for 16-bit floats on
    CPU.
    """
    if not x.dtype.is_floating_point:
        return x <= int(threshold)
    return (up(x) if row_of(x.device).kernels == "cpu" else x) <= threshold


@rule(aten.tanh_backward.default, opmath=True)
def _tanh_backward(r: Recorder, grad: Sym, y: Sym) -> Sym:
    return grad * (1 - y * y)


@rule(aten.sigmoid_backward.default, opmath=True)
def _sigmoid_backward(r: Recorder, grad: Sym, y: Sym) -> Sym:
    return grad * (1 - y) * y


@rule(aten.glu.default)
def _glu(r: Recorder, x: Sym, dim: int = -1) -> Sym:
    a, b = _halves(x, dim)
    return _gate(r, a, b)


@rule(opmath=True)
def _gate(r: Recorder, a: Sym, b: Sym) -> Sym:
    return a * b.sigmoid()


@rule(aten.glu_backward.default)
def _glu_backward(r: Recorder, grad: Sym, x: Sym, dim: int) -> Sym:
    a, b = _halves(x, dim)
    return r.emit_one(aten.cat.default, list(_gate_backward(r, grad, a, b)), dim)


@rule(opmath=True)
def _gate_backward(r: Recorder, grad: Sym, a: Sym, b: Sym) -> list[Sym]:
    s = b.sigmoid()
    return [grad * s, grad * a * (1 - s) * s]


def _halves(x: Sym, dim: int) -> tuple[Sym, Sym]:
    extent = x.shape[dim]
    middle = extent // 2
    return (
        x.one(aten.slice.Tensor, dim, 0, middle),
        x.one(aten.slice.Tensor, dim, middle, extent),
    )


@rule(aten.native_dropout_backward.default, opmath=True)
def _native_dropout_backward(r: Recorder, grad: Sym, mask: Sym, scale: float) -> Sym:
    return grad * (mask.to(grad.dtype) * scale)


@rule(aten.softshrink_backward.default, aten.hardshrink_backward.default)
def _shrink_backward(r: Recorder, grad: Sym, x: Sym, lambd: float) -> Sym:
    return r.where((x >= -lambd).both(x <= lambd), 0.0, grad)


@rule(aten.hardshrink.default)
def _hardshrink(r: Recorder, x: Sym, lambd: float = 0.5) -> Sym:
    return r.where((x >= -lambd).both(x <= lambd), 0.0, x)


@rule(aten.masked_fill.Scalar)
def _masked_fill(r: Recorder, x: Sym, mask: Sym, value: float) -> Sym:
    return r.where(mask, value, x)


@rule(aten.masked_fill.Tensor)
def _masked_fill_tensor(r: Recorder, x: Sym, mask: Sym, value: Sym) -> Sym | None:
    return None if value.device != x.device else r.where(mask, value.to(x.dtype), x)


@rule(aten.nan_to_num.default)
def _nan_to_num(
    r: Recorder,
    x: Sym,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Sym:
    if not x.dtype.is_floating_point:
        return x.one(aten.clone.default)
    limits = torch.finfo(x.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    # NaN first: the comparisons with infinities below are false for it either way.
    made = r.where(x.one(aten.isnan.default), 0.0 if nan is None else nan, x)
    made = r.where(x.equals(math.inf), high, made)
    return r.where(x.equals(-math.inf), low, made)
