"""Intervals of tensor elements, and what becomes of them where a dtype rounds.

Comes in: bounds, a dtype. Goes out: a `Range` that holds for every element that is not nan.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

__all__ = ["Range", "rounded", "whole_range"]


class Range(NamedTuple):
    """low <= x <= high for every element x that is not nan; ints of an integer tensor."""

    low: float
    high: float
    nan: bool = False  # whether there may be nans

    @property
    def truth(self) -> bool | None:
        """`bool(x)` of every element, if that is one answer; nan is true."""
        if self.low > 0 or self.high < 0:
            return True
        return False if self.low == self.high == 0 and not self.nan else None


def whole_range(dtype: torch.dtype) -> Range:
    """What a dtype can hold; memory reinterpreted as bool may hold any byte."""
    if dtype.is_floating_point or dtype.is_complex:
        return Range(-math.inf, math.inf, nan=True)
    if dtype == torch.bool:
        return Range(0, 255)
    try:
        info = torch.iinfo(dtype)
    except TypeError:
        return Range(-math.inf, math.inf, nan=True)
    return Range(info.min, info.max)


def rounded(found: Range, dtype: torch.dtype) -> Range:
    """The range of the same elements converted to a dtype: conversions are monotonic."""
    whole = whole_range(dtype)
    if dtype.is_complex or not found.low <= found.high:
        return whole  # a bound is nan where infinities met
    if dtype == torch.bool:
        truth = found.truth
        return Range(0, 1) if truth is None else Range(truth, truth)
    if not dtype.is_floating_point:
        inside = whole.low <= found.low and found.high <= whole.high and not found.nan
        if not inside or whole.nan:
            return whole
        return Range(math.trunc(found.low), math.trunc(found.high))
    tiny = torch.finfo(dtype).smallest_normal
    low, high = (_in_dtype(bound, dtype) for bound in (found.low, found.high))
    # Denormals may be flushed to zero.
    low, high = (0.0 if 0 < low < tiny else low), (0.0 if -tiny < high < 0 else high)
    return Range(low, high, found.nan)


def _in_dtype(number: float, dtype: torch.dtype) -> float:
    try:
        exact = float(number)
    except OverflowError:
        exact = math.copysign(math.inf, number)
    return float(torch.tensor(exact, dtype=torch.float64, device="cpu").to(dtype))
