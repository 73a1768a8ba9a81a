"""Kind: the operations on one kind of guard, registered under its record class by `@row`.

    lower     returns the steps that check it natively (opcodes: extensions/frame/guard_steps.h)
    differs   checks it in Python: None if it holds, else a sentence that says what is different. It
              agrees with the native check for every guard and frame
    show      returns the condition in one readable line
    advise    returns the edit of the user's code that would make calls fit; "" if no edit helps,
              because a wrong hint is worse than none

The first three are abstract. `OfSource` is the base of the many kinds about the value at one path;
its subclasses implement `step` and `value_differs` instead of `lower` and `differs`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ...bytecode import FrameSnapshot
from ..guard import Guard
from ..read import UNREADABLE, read_source
from ..source import Registers, Source, Step, describe

__all__ = ["KINDS", "Kind", "OfSource", "Registers", "Step", "missing", "row"]

G = TypeVar("G", bound=Guard)


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
    """Base of kinds that check the value at the path `guard.source`."""

    @abstractmethod
    def step(self, guard: G, register: int) -> Step: ...

    @abstractmethod
    def value_differs(self, guard: G, name: str, value: object) -> str | None: ...

    def keep(self, guard: G, name: str, value: object) -> str:
        """Return the result of `advise`, given the path as text and the value at it."""
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
    """Register a class as the row of a record class (a subclass of Guard); there is one each."""

    def register(kind: type[Kind[G]]) -> type[Kind[G]]:
        assert record not in KINDS
        KINDS[record] = kind(rank)
        return kind

    return register
