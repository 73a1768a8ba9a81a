"""Holds what the calls of a file both read and write: entries of dicts, and attributes, a module's
assigned buffers among them.

In: the writes of all calls, of which some change what others read. Out: `State`: for each such
entry or attribute its place in the file, where calls find what earlier calls have written. It
starts with the value that the program has when it is saved, a tensor or a number. Other values,
and writes to a whole container, raise CannotKeep.

Guards on state stay in the file. A number is an input of the graph: its guards hold for other
values too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch

from ..bytecode import FrameSnapshot
from ..errors import CannotKeep
from ..guards.guard import (
    DifferentObjects,
    Guard,
    InRange,
    NoOverlap,
    NumbersRelate,
    TensorMatch,
    TypeIs,
    ValueEquals,
)
from ..guards.live_objects import instance_dict
from ..guards.read import UNREADABLE, read_source
from ..guards.source import Derived, Global, InstanceDict, Item, Source, TypeOf
from ..lazy_dataclass import dataclass, replace
from .program import Names

__all__ = ["HINT", "Slot", "State", "Write", "check_guard", "other_numbers", "refusal"]

HINT = "  hint: if only its first call is so, call the program once before you save it"
_HOLD_AFTER_WRITES = (
    *(DifferentObjects, InRange, NoOverlap, NumbersRelate, TensorMatch, TypeIs),
)  # those of other kinds compare with the value that was there when the program was saved


@dataclass(frozen=True, slots=True)
class Write:
    """A write to an object of the program that the file has an object of its own for.

    source: the object
    key: the attribute or the key that is written; None: any part of the object
    shown: the object or its part as text
    """

    source: Source
    target: Any
    key: object
    shown: str

    @property
    def is_attribute(self) -> bool:
        """Return whether an attribute is written, not an entry of a dict."""
        return type(self.target) is not dict


@dataclass(frozen=True, slots=True)
class Slot:
    """An entry or attribute in the file.

    owner: the source in the file of the object that has it
    value: what it has when the program is saved
    """

    owner: Source
    key: Any
    is_attribute: bool
    value: Any

    @property
    def source(self) -> Source:
        """Return its source in the file."""
        return Item(InstanceDict(self.owner) if self.is_attribute else self.owner, self.key)

    @property
    def name(self) -> str:
        """Return its name as text."""
        owner = self.owner.describe()
        return f"{owner}.{self.key}" if self.is_attribute else f"{owner}[{self.key!r}]"


class State:
    """The slots of a file."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._slots: dict[tuple[int, object], Slot] = {}  # by the dict that has it in the program
        self._owners: dict[int, Source] = {}
        self._alive: list[object] = []  # whose ids are keys

    def __bool__(self) -> bool:
        return bool(self._slots)

    def slots(self) -> Iterable[Slot]:
        return self._slots.values()

    def add(self, write: Write) -> None:
        """Make a slot of what is written. Raises CannotKeep if there can be none."""
        if write.key is None or isinstance(write.source, InstanceDict):
            raise refusal(write)
        try:
            table: Any = instance_dict(write.target) if write.is_attribute else write.target
            value = table[write.key]
        except UNREADABLE:
            raise refusal(write) from None
        if not isinstance(value, torch.Tensor) and type(value) not in (int, float):
            raise refusal(write)
        place = self._names.table(write.target) or Global(self._names.global_name(write.source))
        owner = self._owners.setdefault(id(write.target), place)
        self._alive += [write.target, table]
        slot = Slot(owner, write.key, write.is_attribute, value)
        self._slots.setdefault((id(table), write.key), slot)

    def owner(self, target: object) -> Source | None:
        """Return the source in the file of an object with slots."""
        return self._owners.get(id(target))

    def place(self, source: Source, snapshot: FrameSnapshot) -> Source | None:
        """Return the source in the file of a value in a slot; None for one that is in none."""
        for at in source.path() if self._slots else ():
            if isinstance(at, TypeOf):
                return None  # no write changes the class of an object
            if isinstance(at, Item) and (slot := self._slot_at(at, snapshot)) is not None:
                return _moved(source, at, slot.source)
        return None

    def _slot_at(self, item: Item, snapshot: FrameSnapshot) -> Slot | None:
        with suppress(*UNREADABLE):
            return self._slots.get((id(read_source(item.base, snapshot)), item.key))
        return None


def _moved(source: Source, part: Source, to: Source) -> Source:
    """Return a source whose part is at another source."""
    if source is part:
        return to
    if not isinstance(source, Derived) or len(source.bases) > 1:
        raise CannotKeep(f"a read of {source.describe()}, which the program writes to")
    return replace(source, base=_moved(source.base, part, to))


def refusal(write: Write) -> CannotKeep:
    """Return the error of a write that calls would read."""
    return CannotKeep(f"a write to {write.shown}, which the program reads too\n{HINT}")


def check_guard(guard: Guard, shown: str, stays: bool) -> None:
    """Raise CannotKeep for a guard on state that fails once the state is another one, or that the
    file cannot check.
    """
    holds_for_one = isinstance(guard, InRange) and guard.low == guard.high
    if not stays or holds_for_one or not isinstance(guard, _HOLD_AFTER_WRITES):
        raise CannotKeep(f"a write to {shown}, on whose value the program depends\n{HINT}")


def other_numbers(
    guards: Iterable[Guard], state: State, snapshot: FrameSnapshot
) -> Iterator[ValueEquals]:
    """Yield guards that the numbers in slots had another value, for those that are constants now:
    a compile that knows of them makes these numbers inputs of the graph.
    """
    for guard in guards:
        if isinstance(guard, ValueEquals) and type(guard.value) in (int, float):
            number: Any = guard.value
            if state.place(guard.source, snapshot) is not None:
                yield ValueEquals(guard.source, number + 1)
