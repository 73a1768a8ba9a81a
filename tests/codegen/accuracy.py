"""Judges the results of generated kernels by eager's, and the errors of both by float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, equal, isfinite
from torch.testing import assert_close


def steps(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides of dimensions longer than 1."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(stride for size, stride in sizes if size != 1 and tensor.numel())


def compare(
    got: Tensor,
    eager: Tensor,
    exact: Tensor,
    where: str = "",
    strides: Callable[[Tensor], tuple[int, ...]] = Tensor.stride,
) -> None:
    """Require errors of at most twice eager's plus a few roundings; the rest is exact."""
    assert (got.dtype, got.shape) == (eager.dtype, eager.shape), where
    assert strides(got) == strides(eager), where
    if not eager.dtype.is_floating_point:
        assert equal(got, eager), where
        return
    if eager.dtype.itemsize == 1:  # torch compares no floats of eight bits
        got, eager = got.float(), eager.float()
    finite = isfinite(eager)
    special = [t.masked_fill(finite, 0) for t in (got, eager)]
    assert_close(*special, rtol=0, atol=0, equal_nan=True)
    a, b, c = (t[finite].double() for t in (got, eager, exact))
    if a.numel():
        error, of_eager = (a - c).abs().max(), (b - c).abs().max()
        allowed = 2 * of_eager + 1e-6 * c.abs().max()
        assert error <= allowed, f"{where}: {error} > {allowed}, eager {of_eager}"


def operations_on_reals(x, y):
    """Return every operation on reals that has a line in a renderer of scalars."""
    positive, unit = x.abs() + 0.1, x.tanh()
    return [
        x.exp(), x.exp2(), x.expm1(), positive.log(), positive.log2(), positive.log10(),
        positive.log1p(), positive.sqrt(), positive.rsqrt(), positive.reciprocal(), x.sin(),
        x.cos(), x.tan(), unit.asin(), unit.acos(), x.atan(), x.sinh(), x.cosh(), x.asinh(),
        (positive + 1).acosh(), unit.atanh(), x.erf(), x.erfc(), unit.erfinv(),
        positive.lgamma(), x.floor(), x.ceil(), x.round(), x.trunc(), x.frac(), x.sign(),
        x.sigmoid(), x.isnan(), x.isinf(), x.isfinite(), x.signbit(), x.atan2(y), x.hypot(y),
        positive**y, x.fmod(y), x.remainder(y), torch.floor_divide(x, y), x.minimum(y),
        x.fmax(y), x.fmin(y), x.copysign(y), torch.nextafter(x, y), x.clamp(-1, 1),
    ]  # fmt: skip


def operations_on_integers(x, y, s):
    """Return every operation on integers; `s` are shifts."""
    return [
        x + y, x * y, -x, x.abs(), x.sign(), x & y, x | y, x ^ y, ~x, x << s, x >> s, x // y,
        x % y, x.fmod(y), x.maximum(y), x.to(torch.uint8) * 3, x.to(torch.int8) + 100, x**s,
        x.prod(-1), x.amax(-1), x < y, (x > 0) ^ (y > 0), ~(x > 0), (x > 0).all(-1),
    ]  # fmt: skip
