"""Finds sums of exponentials relative to a maximum, as softmax and logsumexp compute them.

A loop that knows only the maximum so far can compute such a sum: what it has is scaled whenever the
maximum grows. So one loop over the memory does what would take two.
"""

from __future__ import annotations

import torch

from ..lazy_dataclass import dataclass
from .free_axes import value_axes
from .ir import Cast, Compute, Reduction, Value, walk

__all__ = ["RelativeSum", "relative_sum"]

_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class RelativeSum:
    """Describes a sum of exp(value - base), where `base` depends on `largest`, the maximum of the
    same values over the same axes, and not on these axes.
    """

    value: Value
    base: Value
    largest: Reduction


def relative_sum(node: Reduction) -> RelativeSum | None:
    """Return the parts of a sum of exponentials; None if it is none."""
    match node:
        case Reduction("sum", axes, Compute("exp", (Compute("sub", (value, base)),))):
            below = walk((base,))
            if not value_axes(below)[base].isdisjoint(axes):
                return None
            for part in below:
                match part:
                    case Reduction("max", over, inner) if over == axes and _is_same(inner, value):
                        return RelativeSum(value, base, part)
    return None


def _is_same(inner: Value, value: Value) -> bool:
    """Return whether the values are equal; the maximum of 16-bit floats may be taken before the
    cast to float32.
    """
    if value.dtype == torch.float32 and inner.dtype in _HALVES:
        return isinstance(value, Cast) and value.value is inner
    return inner is value
