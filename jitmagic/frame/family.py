"""Family: the state shared by one tagged function and everything compiled because of it.

Input: the root handle, then its resume functions and the callees that the hook found. Output: their
shared options, compiler, journal and already reported warnings. Invariant: when the root dies,
everything compiled because of it is freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import CodeType
from typing import Any

from .. import _frame
from ..bytecode import FrameSnapshot
from ..lazy_dataclass import dataclass, field
from ..options import Options
from ..records import Eager, Failed, Journal, PendingBuild, Postponed, Recording
from ..torch_types import AnyFunction
from .native import Entry

__all__ = ["Compiler", "Family"]


@dataclass(frozen=True, slots=True)
class Compiler:
    """The compile function and related callables, injected because `frame` imports no later stage.

    `compile(handle, snapshot, recording)` returns an Entry whose `notes` are a Variant, or Eager or
    Failed if the frame runs as plain Python from now on. It returns PendingBuild if something is
    still being built in the background, and Postponed if a compile does not pay yet.
    """

    compile: Callable[
        [Any, FrameSnapshot, Recording], Entry | Eager | Failed | PendingBuild | Postponed
    ]
    flatten: Callable[[CodeType], Any] = lambda code: code  # makes `handle.flat` for the tracer
    # rewrite(code, make_piece, on_error): the code of a generator that calls its pieces; None if
    # there is nothing to compile
    rewrite: Callable[..., CodeType | None] = lambda code, make_piece, on_error: None
    # Queries on tagged functions: `f.why(*args)` is `queries["why"](f)(*args)`.
    queries: Mapping[str, Callable[[object], AnyFunction]] = field(default_factory=dict)
    # The key of a handle's entries and a bundle of them, for pickles; None: there is no such code
    carry: Callable[[Any], tuple[str, bytes] | None] = lambda handle: None
    is_listed: bool = True  # by `status`; not copies for explain and test, nor a cell's top level


@dataclass(eq=False)
class Family:
    """The state that a tagged function shares with its resume functions and hooked callees."""

    options: Options
    compiler: Compiler
    journal: Journal
    tagged: CodeType | None = None  # the root's own code
    members: list[Any] = field(default_factory=list)  # all handles but the root's
    limit_reached: bool = False  # the root or one of its resume functions is at its recompile limit
    bucket: int | None = None  # bytes in a bucket of DistributedDataParallel, once it has called
    sizes_grow: bool = False  # a size grew with every call in one of its functions
    reported: set[str] = field(default_factory=set)  # messages that are shown only once

    def drop_dead(self) -> None:
        """Drop callees whose code is gone, such as redefined helpers."""
        self.members = [member for member in self.members if member.original.is_alive]

    def never_hook(self, callees: Iterable[CodeType]) -> None:
        """Run these functions as plain Python when frames of the family call them."""
        for code in callees:
            _frame.skip(code, self)

    def close(self) -> None:
        """Drop every entry and stub: the garbage collector cannot see what they refer to."""
        for member in self.members:
            member.drop()
        self.members.clear()
