"""Retries: when a frame whose variants are full is compiled once more.

Comes in: calls that fit no variant, since the limit was reached. Goes out: whether the call now is
one to compile for. Invariant: n such calls cost log2(n / 8) + 1 compiles at most. A warm-up, or a
list that has grown to its bound, leaves nothing eager for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..records import Missed

__all__ = ["FOREVER", "Retries"]

FOREVER = -1  # calls that a frame runs as eager which is not compiled again
_FIRST = 8  # calls as eager before the first retry


@dataclass(eq=False, slots=True)
class Retries:
    """Of one frame. `settles`: its variants differ in what grew. For what still grows a compile
    would serve one call: the call has to differ from them as that of the retry before did.
    """

    settles: bool = False
    is_due: bool = False
    passed: int = _FIRST  # calls as eager when this retry is due
    left: int = _FIRST  # until then; handed to the dispatcher where that counts them
    _missed: Missed | None = None

    def count(self) -> bool:
        """One more call that fits no variant: whether a retry is due."""
        if self.left > 0:
            self.left -= 1
        else:
            self.is_due = True
        return self.is_due

    def takes(self, missed: Missed) -> bool:
        """Whether the call is one to compile for."""
        before, self._missed = self._missed, missed
        return not self.settles or before == missed

    def end(self) -> None:
        """One retry is over: the next is due when these calls have doubled."""
        self.left = self.passed
        self.passed += self.left
        self.is_due = False

    def handed_over(self) -> int:
        """The calls that are left, counted by the dispatcher from now on."""
        left, self.left = self.left, 0
        return left
