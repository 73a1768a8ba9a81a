"""Lets the ranks of a distributed program agree on what varies between calls of a function.

A rank that finds that a size or a number varies, or that the direction of a branch on data cannot
be foretold, posts it. Every other rank then compiles the function again with the same assumptions,
at its next call: the ranks compile at the same time, once, and not each when it meets another size
while the others wait for it. Inputs are told apart by how reports name them, which is the same in
every process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import torch

from ...bytecode import FrameSnapshot
from ...guards.check import is_number
from ...guards.guard import Guard, InRange, TensorMatch, ValueEquals
from ...guards.source import Argument, Source, describe
from ...lazy_dataclass import dataclass, field
from ...ranks.board import Board, board, listen, on_tick, poll, watch
from ...ranks.waits import report_waits
from ..handle import Handle, all_handles
from ..native import Entry
from .identity import frame_name, frames_named
from .limits import follow_limits

__all__ = ["agree", "forget"]

_TOPIC = "varying"


@dataclass(slots=True)
class _Varying:
    """Lists what varies in the calls of a function.

    sizes: name of an input -> indices (symbols/size.py) of its sizes
    breaks: variants break at branches on data, as speculation about these failed too often
    """

    sizes: dict[str, set[int]] = field(default_factory=dict)
    numbers: set[str] = field(default_factory=set)
    breaks: bool = False

    def add(self, other: _Varying) -> _Varying | None:
        """Add what another one has; return what of it is new, if anything."""
        sizes = {
            name: indices - self.sizes.get(name, set()) for name, indices in other.sizes.items()
        }
        new = _Varying(
            {name: indices for name, indices in sizes.items() if indices},
            other.numbers - self.numbers,
            other.breaks and not self.breaks,
        )
        for name, indices in new.sizes.items():
            self.sizes.setdefault(name, set()).update(indices)
        self.numbers |= new.numbers
        self.breaks |= new.breaks
        return new if new.sizes or new.numbers or new.breaks else None

    @property
    def count(self) -> int:
        """Return how many facts there are; it grows with each new one."""
        return sum(map(len, self.sizes.values())) + len(self.numbers) + self.breaks

    def fits(self, entry: Entry) -> bool:
        """Return whether a variant has all of it as symbols."""
        return all(map(self._is_free, entry.notes.guards)) and not (
            self.breaks and entry.notes.speculates
        )

    def _is_free(self, guard: Guard) -> bool:
        if isinstance(guard, TensorMatch):
            return self.sizes.get(describe(guard.source), set()) <= set(guard.free_indices)
        return (source := _number_in(guard)) is None or describe(source) not in self.numbers


_agreed: dict[str, _Varying] = {}  # by function
_changed: set[str] = set()  # functions of which other ranks have posted more


def agree(handle: Handle, snapshot: FrameSnapshot) -> int:
    """Post what varies in calls of a frame, and note what other ranks have posted. Return how many
    facts are known: a trace that began with fewer does not assume all of them.
    """
    notes = board()
    if notes is None:
        return 0
    report_waits()
    watch(notes)
    try:
        poll(notes)
        _share(notes, handle, snapshot)
    except RuntimeError:  # the process that served the store has ended
        return 0
    return _agreed[frame_name(handle.original)].count


def forget() -> None:
    """Drop what was agreed; other ranks keep it."""
    _agreed.clear()


def _share(notes: Board, handle: Handle, snapshot: FrameSnapshot) -> None:
    name, ledger = frame_name(handle.original), handle.ledger
    known = _agreed.setdefault(name, _Varying())
    differing = {} if handle.options.dynamic is False else ledger.differing_sizes(snapshot)
    sizes = {describe(source): indices for source, indices in differing.items()}
    numbers = set(map(describe, ledger.differing_numbers(snapshot) or ()))
    news = known.add(_Varying(sizes, numbers, not ledger.speculates))
    for source in _inputs(handle, snapshot):
        _take(handle, source, known)
    ledger.speculates &= not known.breaks
    if news is not None:
        texts = {one: sorted(indices) for one, indices in news.sizes.items()}
        notes.post(_TOPIC, json.dumps([name, texts, sorted(news.numbers), news.breaks]))


def _receive(notes: Board, rank: int, text: str) -> None:
    if rank == notes.rank:
        return
    name, texts, numbers, breaks = json.loads(text)
    sizes = {one: set(indices) for one, indices in texts.items()}
    if _agreed.setdefault(name, _Varying()).add(_Varying(sizes, set(numbers), breaks)) is not None:
        _changed.add(name)


def _tick(notes: Board) -> None:
    """Let functions compile again. Only this thread waits for compiles that run: one that compiles
    a function itself, and reads notes, would wait for another that does the same.
    """
    while _changed:
        name = _changed.pop()
        for handle in frames_named(name, all_handles()):
            _compile_again(handle, _agreed.get(name, _Varying()))


listen(_TOPIC, _receive)
on_tick(_tick)
follow_limits(all_handles)


def _compile_again(handle: Handle, known: _Varying) -> None:
    """Drop the variants, so that the next call compiles one, unless one has it all as symbols once
    no compile runs.
    """
    with handle.lock:
        entries = handle.dispatcher.entries
        for source in _guarded(handle):
            _take(handle, source, known)
        is_open = handle.given_up is None and handle.building is None
        if is_open and entries and not any(map(known.fits, entries)):
            handle.dispatcher.clear()


def _take(handle: Handle, source: Source, known: _Varying) -> None:
    name, ledger = describe(source), handle.ledger
    if sizes := known.sizes.get(name):
        ledger.agreed_sizes.setdefault(source, set()).update(sizes)
    if name in known.numbers:
        ledger.agreed_numbers.add(source)


def _inputs(handle: Handle, snapshot: FrameSnapshot) -> Iterator[Source]:
    """Yield the tensors and numbers that a frame is called with, and those that its variants
    read.
    """
    for index, value in enumerate(snapshot.args):
        if isinstance(value, torch.Tensor) or is_number(value):
            yield Argument(index, snapshot.code.co_varnames[index])
    yield from _guarded(handle)


def _guarded(handle: Handle) -> Iterator[Source]:
    for entry in handle.dispatcher.entries:
        for guard in entry.notes.guards:
            source = guard.source if isinstance(guard, TensorMatch) else _number_in(guard)
            if source is not None:
                yield source


def _number_in(guard: Guard) -> Source | None:
    """Return the source of the number that a guard compares, if it does."""
    if isinstance(guard, InRange) or (isinstance(guard, ValueEquals) and is_number(guard.value)):
        return guard.source
    return None
