"""Lowers maxima, minima and clamps, with eager's choice among equal operands.

`maximum` and `minimum` of the IR, and `fmax` and `fmin`, return the second operand if both are
equal. Only zeros make a difference: 0.0 equals -0.0. On a GPU eager's kernels order zeros by sign,
and so do the instructions that Triton emits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch

from ..ir import Constant, Value
from ..registry import pointwise
from ..values import FLOATS, compute, where
from ..vector_tails import Tail

__all__: list[str] = []

_Binary = Callable[[str, Value, Value], Value]


def _second(op: str, x: Value, y: Value) -> Value:
    return compute(op, x, y)


def _first(op: str, x: Value, y: Value) -> Value:
    return compute(op, y, x)


def _by_tail(tail: Tail, made: Callable[[_Binary], Value]) -> Value:
    """Return `made` with the choice between equal operands that ATen makes at this point."""
    # ATen's vector code returns the second operand; its scalar code, std::max, the first.
    if isinstance(tail, bool):
        return made(_first if tail else _second)
    return where(tail, made(_first), made(_second))


@pointwise("maximum.default", "max.other")
def maximum(x: Value, y: Value, *, tail: Tail) -> Value:
    return _by_tail(tail, lambda of: of("maximum", x, y))


@pointwise("minimum.default", "min.other")
def minimum(x: Value, y: Value, *, tail: Tail) -> Value:
    return _by_tail(tail, lambda of: of("minimum", x, y))


@pointwise("fmax.default")
def fmax(x: Value, y: Value, *, result: torch.dtype) -> Value:
    return _without_nan("fmax", "maximum", x, y, result)


@pointwise("fmin.default")
def fmin(x: Value, y: Value, *, result: torch.dtype) -> Value:
    return _without_nan("fmin", "minimum", x, y, result)


def _without_nan(op: str, integral: str, x: Value, y: Value, result: torch.dtype) -> Value:
    """Return std::fmax or fmin, which as compiled return the first of two equal operands."""
    # For bfloat16 ATen converts to float32 first, and the second is returned.
    if x.dtype not in FLOATS:
        return compute(integral, x, y)
    return compute(op, x, y) if result is torch.bfloat16 else compute(op, y, x)


@lru_cache(maxsize=1)
def _single_nan_bound_wins() -> bool:
    """Return whether clamp(x, min=nan) is nan."""
    # It is nan from torch 2.12 on; 2.11's kernels compare, and return x.
    return bool(torch.zeros(1).clamp(min=float("nan")).isnan().item())


@pointwise("clamp.default", "clip.default")
def clamp(x: Value, low: Value | None, high: Value | None) -> Value:
    single = low if high is None else high if low is None else None
    if (
        isinstance(single, Constant)
        and single.value != single.value
        and not _single_nan_bound_wins()
    ):
        return x
    x = x if low is None else clamp_min(x, low)
    return x if high is None else clamp_max(x, high)


@pointwise("clamp_min.default")
def clamp_min(x: Value, low: Value) -> Value:
    return compute("maximum", low, x)  # of equal operands x is returned: -0.0 stays -0.0


@pointwise("clamp_max.default")
def clamp_max(x: Value, high: Value) -> Value:
    return compute("minimum", high, x)


@pointwise("clamp.Tensor", "clip.Tensor")
def clamp_by_tensors(x: Value, low: Value | None, high: Value | None, *, tail: Tail) -> Value:
    def made(of: _Binary) -> Value:
        above = x if low is None else of("maximum", x, low)
        return above if high is None else of("minimum", above, high)

    return _by_tail(tail, made)


@pointwise("clamp_min.Tensor")
def clamp_min_by_tensor(x: Value, low: Value, *, tail: Tail) -> Value:
    return _by_tail(tail, lambda of: of("maximum", x, low))


@pointwise("clamp_max.Tensor")
def clamp_max_by_tensor(x: Value, high: Value, *, tail: Tail) -> Value:
    return _by_tail(tail, lambda of: of("minimum", x, high))
