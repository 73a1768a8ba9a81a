"""Family: what belongs to one tagged function, and Compiler: what it is compiled with.

Comes in: the root handle, then its resume functions and the callees that the hook found. Goes out:
what they share: options, compiler, journal, and which messages were shown. Invariant: when the root
goes, everything compiled because of it goes too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from .. import _frame
from ..bytecode import FrameSnapshot
from ..options import Options
from ..records import Eager, Failed, Journal, PendingBuild, Recording
from .native import Entry

__all__ = ["Compiler", "Family"]


@dataclass(frozen=True, slots=True)
class Compiler:
    """The functions by which this package compiles; it knows nothing else of the stages. `compile`
    takes the handle and returns an Entry with a Variant in its notes; Eager or Failed: no such call
    is compiled; PendingBuild: a later one may be.
    """

    compile: Callable[[Any, FrameSnapshot, Recording], Entry | Eager | Failed | PendingBuild]
    flatten: Callable[[CodeType], Any] = lambda code: code  # the tracer's view: `handle.flat`
    # What tagged functions can be asked: `f.why(*args)` is `questions["why"](f)(*args)`.
    questions: Mapping[str, Callable[[Any], Callable[..., Any]]] = field(default_factory=dict)
    is_listed: bool = True  # False: copies to be looked at (explain, test), a cell's top level


@dataclass(eq=False)
class Family:
    """A tagged function and all that is compiled because of it."""

    options: Options
    compiler: Compiler
    journal: Journal
    tagged: CodeType | None = None  # the root's own code
    members: list[Any] = field(default_factory=list)  # handles: all but the root's
    limit_reached: bool = False  # by the root or one of its resume functions
    sizes_grow: bool = False  # noticed in one of its functions
    reported: set[str] = field(default_factory=set)  # messages shown once

    def drop_dead(self) -> None:
        """Let go of callees whose code is gone: helpers that were defined anew."""
        self.members = [member for member in self.members if member.original.is_alive]

    def leave_alone(self, callees: Iterable[CodeType]) -> None:
        """Run functions as they are where frames of the family call them."""
        for code in callees:
            _frame.skip(code, self)

    def close(self) -> None:
        """Drop every entry and stub: what they refer to is hidden from the garbage collector."""
        for member in self.members:
            member.drop()
        self.members.clear()
