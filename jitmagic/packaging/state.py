"""Holds what the calls of a file both read and write: entries of dicts, and attributes, a module's
assigned buffers among them.

Global variables are entries of the dict of globals, and variables of an enclosing function are
contents of cells.

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
from types import CellType
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
from ..guards.source import CellContents, Derived, Global, InstanceDict, Item, Source, TypeOf
from ..lazy_dataclass import dataclass, replace

__all__ = ["CELL", "HINT", "Slot", "State", "Write", "check_guard", "other_numbers", "refusal"]

CELL = "cell_contents"  # the key of the content of a cell
HINT = "  hint: if only its first call is so, call the program once before you save it"
_HOLD_AFTER_WRITES = (
    *(DifferentObjects, InRange, NoOverlap, NumbersRelate, TensorMatch, TypeIs),
)  # those of other kinds compare with the value that was there when the program was saved


@dataclass(frozen=True, slots=True)
class Write:
    """A write to an object of the program that the file has an object of its own for.

    source: the object
    place: its source in the file
    key: the attribute or the key that is written, CELL for a cell; None: any part of the object
    shown: the object or its part as text
    """

    source: Source
    place: Source
    target: Any
    key: object
    shown: str

    @property
    def kind(self) -> str:
        """Return what is written: an "entry" of a dict, the content of a "cell", or an
        "attribute".
        """
        return {dict: "entry", CellType: "cell"}.get(type(self.target), "attribute")


@dataclass(frozen=True, slots=True)
class Slot:
    """An entry, an attribute or the content of a cell in the file.

    owner: the source in the file of the object that has it
    kind: as `Write.kind`
    value: what it has when the program is saved
    name: its name as text
    """

    owner: Source
    key: Any
    kind: str
    value: Any
    name: str

    @property
    def source(self) -> Source:
        """Return its source in the file."""
        if self.kind == "cell":
            return CellContents(self.owner)
        return Item(InstanceDict(self.owner) if self.kind == "attribute" else self.owner, self.key)


class State:
    """The slots of a file."""

    def __init__(self) -> None:
        self._slots: dict[tuple[int, object], Slot] = {}  # by the dict that has it in the program
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
            table, value = _now(write)
        except UNREADABLE:
            raise refusal(write) from None
        if not isinstance(value, torch.Tensor) and type(value) not in (int, float):
            raise refusal(write)
        self._alive.append(table)
        slot = Slot(write.place, write.key, write.kind, value, write.shown)
        self._slots.setdefault((id(table), write.key), slot)

    def place(self, source: Source, snapshot: FrameSnapshot) -> Source | None:
        """Return the source in the file of a value in a slot; None for one that is in none."""
        for at in source.path() if self._slots else ():
            if isinstance(at, TypeOf):
                return None  # no write changes the class of an object
            with suppress(*UNREADABLE):
                if (slot := self._slots.get(_key_of(at, snapshot))) is not None:
                    return _moved(source, at, slot.source)
        return None


def _now(write: Write) -> tuple[Any, Any]:
    """Return the dict or cell that is written to, and what it has there. Raises one of UNREADABLE
    if it has nothing.
    """
    target = write.target
    if write.kind == "cell":
        return target, target.cell_contents
    table: Any = target if write.kind == "entry" else instance_dict(target)
    return table, table[write.key]


def _key_of(source: Source, snapshot: FrameSnapshot) -> tuple[int, object]:
    """Return the id of the dict or cell that has the value at a source, and the key there."""
    match source:
        case Item(base, key):
            return id(read_source(base, snapshot)), key
        case Global(name):
            return id(snapshot.globals), name
        case CellContents(base):
            return id(read_source(base, snapshot)), CELL
    return 0, None


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
