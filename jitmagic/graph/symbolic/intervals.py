"""Computes intervals of tensor elements: the range of a dtype, and rounding to it.

Input: an Interval (symbols/interval.py), a dtype. Output: an interval that holds for every element
that is not nan.
"""

from __future__ import annotations

import math

import torch

from ...symbols.interval import Interval

__all__ = ["rounded", "whole_range"]


def whole_range(dtype: torch.dtype) -> Interval:
    """Return the range of a dtype; memory reinterpreted as bool may hold any byte."""
    if dtype.is_floating_point or dtype.is_complex:
        return Interval(-math.inf, math.inf, nan=True)
    if dtype == torch.bool:
        return Interval(0, 255)
    try:
        info = torch.iinfo(dtype)
    except TypeError:
        return Interval(-math.inf, math.inf, nan=True)
    return Interval(info.min, info.max)


def rounded(found: Interval, dtype: torch.dtype) -> Interval:
    """Return the range of the same elements converted to a dtype: conversions are monotonic."""
    whole = whole_range(dtype)
    if dtype.is_complex or not found.low <= found.high:
        return whole  # a bound is nan where infinities met
    if dtype == torch.bool:
        truth = found.truth
        return Interval(0, 1) if truth is None else Interval(truth, truth)
    if not dtype.is_floating_point:
        inside = whole.low <= found.low and found.high <= whole.high and not found.nan
        if not inside or whole.nan:
            return whole
        return Interval(math.trunc(found.low), math.trunc(found.high))
    tiny = torch.finfo(dtype).smallest_normal
    low, high = (_in_dtype(bound, dtype) for bound in (found.low, found.high))
    # Denormals may be flushed to zero.
    low, high = (0.0 if 0 < low < tiny else low), (0.0 if -tiny < high < 0 else high)
    return Interval(low, high, found.nan)


def _in_dtype(number: float, dtype: torch.dtype) -> float:
    try:
        exact = float(number)
    except OverflowError:
        exact = math.copysign(math.inf, number)
    return float(torch.tensor(exact, dtype=torch.float64, device="cpu").to(dtype))
