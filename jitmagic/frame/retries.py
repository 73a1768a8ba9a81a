"""Retries: compiles a frame at its recompile limit again, at exponentially growing intervals.

Input: calls that fit no variant since the limit was reached. Output: whether to compile for the
current call. Invariant: n such calls cost at most log2(n / 8) + 1 compiles. So a function recovers
from a warm-up phase with many sizes, or from a list that grew to its final size.
"""

from __future__ import annotations

from ..lazy_dataclass import dataclass
from ..records import Missed

__all__ = ["FOREVER", "Retries"]

FOREVER = -1  # in place of the number of calls before a retry: there is no retry
_FIRST = 8  # eager calls before the first retry


@dataclass(eq=False, slots=True)
class Retries:
    """The retry schedule of one frame.

    `settles`: its variants differ in something that grew, and while that grows a compile would
    serve one call. So it is compiled only if two consecutive retries fail the same guards with the
    same values.
    """

    settles: bool = False
    is_due: bool = False
    passed: int = _FIRST  # total eager calls by the time this retry is due
    left: int = _FIRST  # eager calls until then; 0 while the dispatcher counts them natively
    _missed: Missed | None = None

    def count(self) -> bool:
        """Count one more call that fits no variant; return whether a retry is due."""
        if self.left > 0:
            self.left -= 1
        else:
            self.is_due = True
        return self.is_due

    def takes(self, missed: Missed) -> bool:
        """Return whether this retry compiles; `missed`: why no variant fits the current call."""
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
