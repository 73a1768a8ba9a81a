"""Retries: decides when a frame at its variant limit is compiled once more.

Input: calls that fit no variant since the limit was reached. Output: whether to compile for the
current call. Invariant: n such calls cost at most log2(n / 8) + 1 compiles. A warm-up phase, or a
list that has reached its final size, does not leave a function eager forever.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..records import Missed

__all__ = ["FOREVER", "Retries"]

FOREVER = -1  # calls left before a retry if there is none
_FIRST = 8  # calls as eager before the first retry


@dataclass(eq=False, slots=True)
class Retries:
    """The retry schedule of one frame.

    `settles`: its variants differ in something that grew. While it grows, a compile would serve one
    call, so two consecutive retries must miss in the same way.
    """

    settles: bool = False
    is_due: bool = False
    passed: int = _FIRST  # eager calls in all when this retry is due
    left: int = _FIRST  # eager calls until then, unless the dispatcher counts them
    _missed: Missed | None = None

    def count(self) -> bool:
        """Count one more call that fits no variant; return whether a retry is due."""
        if self.left > 0:
            self.left -= 1
        else:
            self.is_due = True
        return self.is_due

    def takes(self, missed: Missed) -> bool:
        """Return whether to compile for the current call."""
        before, self._missed = self._missed, missed
        return not self.settles or before == missed

    def end(self) -> None:
        """Finish a retry; the next is due when the number of eager calls has doubled."""
        self.left = self.passed
        self.passed += self.left
        self.is_due = False

    def take_left(self) -> int:
        """Return the calls left, which the dispatcher counts from now on."""
        left, self.left = self.left, 0
        return left
