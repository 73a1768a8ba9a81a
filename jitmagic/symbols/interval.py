"""Defines Interval, the range of a number's values, and arithmetic on intervals.

In: bounds of the operands of an operation. Out: bounds of its result, exact for ints, rounded like
Python's floats for floats. Rounding is monotonic, so the rounded results at the ends bound those
between them. None means that the operation might raise or return another type.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from typing import NamedTuple

__all__ = [
    "ANY_FLOAT", "EXACT", "INT64", "MANY", "GrowingRange", "Interval", "UnbackedRange", "farthest",
    "of_number",
]  # fmt: skip

_LONGEST_SHIFT = 62
_LONGEST_POWER = 64


class Interval(NamedTuple):
    """low <= x <= high for every x that is not nan. The bounds of an int are ints."""

    low: float
    high: float
    nan: bool = False  # whether there may be nans

    @property
    def truth(self) -> bool | None:
        """`bool(x)` if it is the same for all x; nan is true."""
        if self.low > 0 or self.high < 0:
            return True
        return False if self.low == self.high == 0 and not self.nan else None

    @property
    def is_finite(self) -> bool:
        return not (self.nan or self.is_endless)

    @property
    def is_endless(self) -> bool:
        return math.inf in (self.high, -self.low)

    @property
    def has_zero(self) -> bool:
        return self.low <= 0 <= self.high

    def within(self, other: Interval) -> bool:
        """Return whether the other interval contains this one."""
        return other.low <= self.low and self.high <= other.high and (other.nan or not self.nan)

    def narrowed(self, other: Interval) -> Interval:
        """Return the intersection."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Interval(low, high, self.nan and other.nan)

    def has(self, number: float) -> bool:
        """Return whether the interval contains a number."""
        return self.nan if _is_nan(number) else self.low <= number <= self.high

    # -- arithmetic ------------------------------------------------------------------------------

    def neg(self) -> Interval:
        return Interval(-self.high, -self.low, self.nan)

    def abs(self) -> Interval:
        low = 0 if self.has_zero else min(abs(self.low), abs(self.high))
        return Interval(low, max(abs(self.low), abs(self.high)), self.nan)

    def invert(self) -> Interval:
        return Interval(~int(self.high), ~int(self.low))

    def add(self, other: Interval) -> Interval:
        low, high = self.low + other.low, self.high + other.high
        if type(low) is type(high) is int:
            return Interval(low, high, self.nan or other.nan)
        nan = self.nan or other.nan or _meet(self, other)
        return Interval(_unless_nan(low, -math.inf), _unless_nan(high, math.inf), nan)

    def sub(self, other: Interval) -> Interval:
        return self.add(other.neg())

    def mul(self, other: Interval) -> Interval:
        return self._ends(other, operator.mul)

    def div(self, other: Interval) -> Interval | None:
        return None if other.has_zero else self._ends(other, operator.truediv)

    def _ends(self, other: Interval, op: Callable[[float, float], float]) -> Interval:
        """Bound an operation that is monotonic in each operand; 0 * inf is nan, near it is 0."""
        ends = [op(a, b) for a in self[:2] for b in other[:2]]
        if all(type(end) is int for end in ends):
            return Interval(min(ends), max(ends), self.nan or other.nan)
        plain = [x for x in ends if not _is_nan(x)]
        nan = self.nan or other.nan or len(plain) < len(ends)
        # An infinite end stands for all large numbers as well.
        endless = self.is_endless and other.is_endless
        if len(plain) < len(ends) or (endless and op is operator.truediv):
            plain.append(0.0)
        nan = nan or (op is operator.mul and _zero_meets_inf(self, other))
        return Interval(min(plain), max(plain), nan or (endless and op is operator.truediv))

    def floordiv(self, other: Interval) -> Interval | None:
        if other.has_zero or not (self.is_finite and other.is_finite):
            return None
        return self._ends(other, operator.floordiv)

    def mod(self, other: Interval) -> Interval | None:
        """Bound the remainder, which has the sign of the divisor."""
        if other.has_zero or not (self.is_finite and other.is_finite):
            return None
        step = 1 if isinstance(other.low, int) else 0
        if other.high < 0:
            return Interval(other.low + step, 0)
        most = other.high - step
        return Interval(0, most if self.low < 0 else min(self.high, most))

    def power(self, other: Interval) -> Interval | None:
        """Bound a power of floats, with tolerance for kernels and libm; for ints use `powers`."""
        if not (self.is_finite and other.is_finite) or self.low < 0:
            return None
        if self.low == 0 and other.low <= 0:
            return None
        try:
            ends = [float(a) ** float(b) for a in self[:2] for b in other[:2]]
        except OverflowError:
            return None
        low, high = min(ends), max(ends)
        return Interval(low * (1 - _POW_ERROR), high * (1 + _POW_ERROR))

    def powers(self, times: Interval) -> Interval | None:
        """Bound a power of ints."""
        if not 0 <= times.low <= times.high <= _LONGEST_POWER:
            return None
        ends = [a**b for a in self[:2] for b in times[:2]]
        low = 0 if self.has_zero else min(ends)
        signs = -max(map(abs, ends)) if self.low < 0 else low
        return Interval(min(signs, *ends), max(map(abs, ends)))

    def lshift(self, other: Interval) -> Interval | None:
        return self._shifted(other, operator.lshift)

    def rshift(self, other: Interval) -> Interval | None:
        return self._shifted(other, operator.rshift)

    def _shifted(self, other: Interval, op: Callable[..., int]) -> Interval | None:
        if not 0 <= other.low <= other.high <= _LONGEST_SHIFT:
            return None
        ends = [op(a, b) for a in self[:2] for b in other[:2]]
        return Interval(min(ends), max(ends))

    def masked(self, other: Interval) -> Interval | None:
        """Bound &, | and ^ of non-negative ints."""
        if self.low < 0 or other.low < 0:
            return None
        return Interval(0, (1 << int(max(self.high, other.high)).bit_length()) - 1)

    def least(self, other: Interval) -> Interval:
        low, high = min(self.low, other.low), min(self.high, other.high)
        return Interval(low, high, self.nan or other.nan)

    def most(self, other: Interval) -> Interval:
        return self.neg().least(other.neg()).neg()

    # -- comparisons -----------------------------------------------------------------------------

    def compare(self, op: str, other: Interval) -> bool | None:
        """Return the answer if it is the same for all values; nan makes all but `!=` false."""
        match op:
            case "!=":
                equal = self.compare("==", other)
                return None if equal is None else not equal
            case ">":
                return other.compare("<", self)
            case ">=":
                return other.compare("<=", self)
            case "==":
                if self.high < other.low or other.high < self.low:
                    return False
                yes, no = self.low == self.high == other.low == other.high, False
            case "<=":
                yes, no = self.high <= other.low, self.low > other.high
            case _:
                yes, no = self.high < other.low, self.low >= other.high
        if no:
            return False
        return True if yes and not (self.nan or other.nan) else None


_POW_ERROR = 1e-12  # relative; the errors of libm and of kernels are far smaller
INT64 = Interval(-(2**63), 2**63 - 1)
MANY = Interval(2, 2**63 - 1)  # sizes that are neither empty nor broadcast
# ints whose neighbours are exact floats too, because guards compare as floats
EXACT = Interval(-(2**53) + 1, 2**53 - 1)
ANY_FLOAT = Interval(-math.inf, math.inf, nan=True)


class UnbackedRange(Interval):
    """The range of an unbacked size: each call knows its value, but no branch may depend on it."""

    __slots__ = ()

    def narrowed(self, other: Interval) -> UnbackedRange:
        return type(self)(*super().narrowed(other))


class GrowingRange(UnbackedRange):
    """The range of a size that jitmagic made unbacked because the frame itself makes it grow."""

    __slots__ = ()


def of_number(number: float) -> Interval:
    """Return the interval of a constant; nan gives an empty one that may be nan."""
    return Interval(math.inf, -math.inf, True) if _is_nan(number) else Interval(number, number)


def _is_nan(number: float) -> bool:
    """Test for nan; accepts ints too large for a float."""
    return isinstance(number, float) and math.isnan(number)


def _unless_nan(number: float, otherwise: float) -> float:
    return otherwise if _is_nan(number) else number


def _meet(a: Interval, b: Interval) -> bool:
    """Return whether inf + -inf may occur."""
    return (a.high == math.inf and b.low == -math.inf) or (
        a.low == -math.inf and b.high == math.inf
    )


def _zero_meets_inf(a: Interval, b: Interval) -> bool:
    return (a.has_zero and b.is_endless) or (b.has_zero and a.is_endless)


def farthest(start: float, end: float, holds: Callable[[float], bool]) -> float:
    """Return the float from `start` to `end` farthest from `start` at which `holds` is true.
    `holds` must be true at all nearer ones.
    """
    if holds(end):
        return end
    low, high = _rank(start), _rank(end)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(_of_rank(middle)) else (low, middle)
    return _of_rank(low)


def _rank(number: float) -> int:
    """Return a float's rank in the order of all floats."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits if bits >= 0 else -(bits & 2**63 - 1)


def _of_rank(rank: int) -> float:
    number: float = struct.unpack("<d", struct.pack("<q", abs(rank)))[0]
    return number if rank >= 0 else -number
