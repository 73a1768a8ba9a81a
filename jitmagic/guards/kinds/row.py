"""A kind of guard is one row: its record, its rank, and its operations.

    lower     the steps that check it natively (extensions/frame/guard_program.cpp has the opcodes)
    differs   the difference in a frame, in a sentence, or None: the readable check. It agrees with
              the native one for every guard and frame
    show      the condition, in one readable line
    advise    the edit of the user's code that would make calls fit it; "" if no edit of the user's
              code helps, because a wrong hint is worse than none

The first three are abstract. `OfSource` is the base of the many kinds about the value of one path.
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
    """The native program under construction: registers that hold the values of paths."""

    namespace: dict[str, Any]
    builtins: dict[str, Any]

    def register(self, source: Source) -> int: ...

    def registers(self, sources: tuple[Source, ...]) -> tuple[int, ...]: ...


class Kind(ABC, Generic[G]):
    """The operations on guards of one kind.

    `rank` orders guards of equal path depth: cheap ones that fail often are checked first.
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
    """A kind about the value that `guard.source` leads to."""

    @abstractmethod
    def step(self, guard: G, register: int) -> Step: ...

    @abstractmethod
    def value_differs(self, guard: G, name: str, value: Any) -> str | None: ...

    def keep(self, guard: G, name: str, value: Any) -> str:
        """Implement `advise` for a path that leads to a value."""
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
    return f"{describe(source)} no longer exists"


KINDS: dict[type[Guard], Kind[Any]] = {}


def row(record: type[G], rank: int) -> Callable[[type[Kind[G]]], type[Kind[G]]]:
    """Register a class as the row of a record; there is one per record."""

    def register(kind: type[Kind[G]]) -> type[Kind[G]]:
        assert record not in KINDS
        KINDS[record] = kind(rank)
        return kind

    return register
