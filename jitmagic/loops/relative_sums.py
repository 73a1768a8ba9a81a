"""Finds sums relative to another reduction, which one loop over the memory can compute with it.

    sum exp(x - b)    where b depends on max x, as in softmax and logsumexp
    sum (x - b)^2     where b depends on sum x, as in a variance

A loop, or a program that reduces a part of the values, computes such a sum relative to its own
maximum or mean; what it has is corrected when that changes, and at the end.
"""

from __future__ import annotations

from typing import Literal

import torch

from ..lazy_dataclass import dataclass
from .free_axes import value_axes
from .ir import Axis, Cast, Compute, Reduction, Value, walk
from .values import HALVES, compute

__all__ = ["RelativeSum", "relative_sum"]


@dataclass(frozen=True, slots=True)
class RelativeSum:
    """Describes a sum of exp(value - base) or (value - base)^2. `base` depends on `beside`, the
    maximum or the sum of the same values over the same axes, and not on these axes. Where a mean
    is taken of differences from one value, as eager's accuracy needs, so is the base.
    """

    kind: Literal["exponentials", "squares"]
    value: Value
    base: Value
    beside: Reduction


def relative_sum(node: Reduction) -> RelativeSum | None:
    """Return the parts of a relative sum; None for other reductions."""
    match node:
        case Reduction("sum", value=Compute("exp", (Compute("sub", (value, base)),))):
            return _beside("exponentials", "max", node, value, base)
        case Reduction("sum", value=Compute("mul", (Compute("sub", (value, base)) as one, other))):
            return _beside("squares", "sum", node, value, base) if one is other else None
    return None


def _beside(
    kind: Literal["exponentials", "squares"], op: str, node: Reduction, value: Value, base: Value
) -> RelativeSum | None:
    below = walk((base,))
    if node.dtype != value.dtype or not value_axes(below)[base].isdisjoint(node.axes):
        return None
    for part in below:
        match part:
            case Reduction(name, axes, inner) if name == op and axes == node.axes:
                if _is_same(inner, value):
                    return RelativeSum(kind, value, base, part)
                if kind == "squares" and (shift := _shift(inner, value, axes)) is not None:
                    return RelativeSum(kind, inner, compute("sub", base, shift), part)
    return None


def _shift(inner: Value, value: Value, axes: tuple[Axis, ...]) -> Value | None:
    """Return what is subtracted from all values before they are summed."""
    match inner:
        case Compute("sub", (minuend, shift)) if minuend is value:
            return shift if value_axes(walk((shift,)))[shift].isdisjoint(axes) else None
    return None


def _is_same(inner: Value, value: Value) -> bool:
    """Return whether the values are equal; 16-bit floats may be reduced before the cast to float32,
    which accumulates them.
    """
    if value.dtype == torch.float32 and inner.dtype in HALVES:
        return isinstance(value, Cast) and value.value is inner
    return inner is value
