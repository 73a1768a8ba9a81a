"""Lists the kernels that are interpreted until compiled ones are built.

The runtime begins and ends a Replacement; a report shows it, and while there is one no call is
timed: its kernels are not those of later calls, and a compiler takes a processor.
"""

from __future__ import annotations

import os
import threading
import time

from .lazy_dataclass import dataclass, field

__all__ = ["Replacement", "is_replacing", "wait_for_replacements"]


@dataclass(eq=False, slots=True)
class Replacement:
    """Represents interpreted kernels for which `compiler` builds those that will replace them.

    seconds: what that took, once it has ended; error: why it failed
    """

    compiler: str
    done: threading.Event = field(default_factory=threading.Event)
    process: int = field(default_factory=os.getpid)
    begun: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    error: str = ""

    @property
    def is_done(self) -> bool:
        """Return whether nothing is built any more; a forked child has no building thread."""
        return self.done.is_set() or self.process != os.getpid()

    def begin(self) -> None:
        """Note that kernels are interpreted from now on."""
        _ongoing.append(self)

    def end(self, error: str = "") -> None:
        """Note the end of the build."""
        self.seconds = time.monotonic() - self.begun
        self.error = error
        _ongoing.remove(self)
        self.done.set()

    def __str__(self) -> str:
        if self.error:
            return f"interpreted, as {self.compiler} failed: {self.error}"
        if not self.is_done:
            return f"interpreted, while {self.compiler} builds them"
        return (
            f"interpreted at first; those of {self.compiler} took over after {self.seconds:.2g} s"
        )


_ongoing: list[Replacement] = []


def is_replacing() -> bool:
    """Return whether compilers are building kernels while calls run interpreted ones."""
    return any(not one.is_done for one in _ongoing)


def wait_for_replacements(seconds: float | None = None) -> bool:
    """Wait until no kernels are replaced any more; return whether that is so after `seconds`."""
    ends = None if seconds is None else time.monotonic() + seconds
    for one in [*_ongoing]:
        left = None if ends is None else max(0.0, ends - time.monotonic())
        if not one.is_done and not one.done.wait(left):
            return False
    return True
