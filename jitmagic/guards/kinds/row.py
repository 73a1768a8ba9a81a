"""A kind of guard is one row: its record, its rank, and what is done with it.

    lower     the steps that check it natively (extensions/frame/guard_program.cpp has the opcodes)
    differs   what differs in a frame, in a sentence, or None: the readable check. It agrees with
              the native one for every guard and frame
    show      the condition, in a line that one could read aloud
    advise    the edit of the user's code that would make calls fit it; "" where nothing of theirs
              can be changed, for a wrong hint is worse than none

A row that lacks one of the first three cannot be made. `OfSource` is the base of the many that are
about what one path leads to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from ...bytecode import FrameSnapshot
from ..guard import Guard
from ..read import UNREADABLE, read_source
from ..source import Source, describe

__all__ = ["KINDS", "Kind", "OfSource", "Registers", "Step", "missing", "row"]

Step = tuple[Any, ...]
G = TypeVar("G", bound=Guard)


class Registers(Protocol):
    """The native program under construction: registers that hold what paths lead to."""

    namespace: dict[str, Any]
    builtins: dict[str, Any]

    def register(self, source: Source) -> int: ...

    def registers(self, sources: tuple[Source, ...]) -> tuple[int, ...]: ...


class Kind(ABC, Generic[G]):
    """What is done with guards of one kind. `rank`: within one depth of paths, what fails soonest
    and costs least is checked first.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def sources(self, guard: G) -> tuple[Source, ...]:
        return ()

    @abstractmethod
    def lower(self, guard: G, registers: Registers) -> tuple[Step, ...]: ...

    @abstractmethod
    def differs(self, guard: G, frame: FrameSnapshot) -> str | None: ...

    @abstractmethod
    def show(self, guard: G) -> str: ...

    def advise(self, guard: G, frame: FrameSnapshot) -> str:
        return ""


class OfSource(Kind[G]):
    """About the value that `guard.source` leads to."""

    @abstractmethod
    def step(self, guard: G, register: int) -> Step: ...

    @abstractmethod
    def value_differs(self, guard: G, name: str, value: Any) -> str | None: ...

    def keep(self, guard: G, name: str, value: Any) -> str:
        """`advise`, where the path leads somewhere."""
        return ""

    def sources(self, guard: G) -> tuple[Source, ...]:
        return (_source(guard),)

    def lower(self, guard: G, registers: Registers) -> tuple[Step, ...]:
        return (self.step(guard, registers.register(_source(guard))),)

    def differs(self, guard: G, frame: FrameSnapshot) -> str | None:
        source = _source(guard)
        try:
            value = read_source(source, frame)
        except UNREADABLE:
            return missing(source)
        return self.value_differs(guard, describe(source), value)

    def advise(self, guard: G, frame: FrameSnapshot) -> str:
        source = _source(guard)
        try:
            value = read_source(source, frame)
        except UNREADABLE:
            return f"keep {describe(source)} from call to call"
        return self.keep(guard, describe(source), value)


def _source(guard: Guard) -> Source:
    return guard.source  # type: ignore[attr-defined, no-any-return]


def missing(source: Source) -> str:
    return f"{describe(source)} is not there any more"


KINDS: dict[type[Guard], Kind[Any]] = {}


def row(record: type[G], rank: int) -> Callable[[type[Kind[G]]], type[Kind[G]]]:
    """Register a row; a record has one."""

    def register(kind: type[Kind[G]]) -> type[Kind[G]]:
        assert record not in KINDS
        KINDS[record] = kind(rank)
        return kind

    return register
