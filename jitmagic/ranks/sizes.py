"""Lets the ranks of a distributed program agree on which sizes are dynamic.

A rank that finds that a size varies posts it. Every other rank then compiles the function again
with that size as a symbol, at its next call: the ranks compile at the same time, once, and not each
when it meets another size while the others wait for it. Functions are told apart by their code, and
inputs by how reports name them, both of which are the same in every process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping

import torch

from ..bytecode import FrameSnapshot
from ..frame.handle import Handle, all_handles
from ..frame.native import Entry
from ..guards.guard import TensorMatch
from ..guards.source import Argument, Source, describe
from .board import Board, board, listen, on_tick, poll, watch
from .waits import report_waits

__all__ = ["agree", "forget"]

_TOPIC = "sizes"

Sizes = dict[str, set[int]]  # name of an input -> indices (symbols/size.py) of its sizes that vary
_agreed: dict[str, Sizes] = {}  # by function
_changed: set[str] = set()  # functions of which other ranks have posted sizes since the last tick


def agree(handle: Handle, snapshot: FrameSnapshot) -> None:
    """Post the sizes that vary in calls of a frame, and note those that other ranks have posted."""
    notes = board()
    if notes is None:
        return
    report_waits()
    watch(notes)
    try:
        poll(notes)
        _share(notes, handle, snapshot)
    except RuntimeError:  # the process that served the store has ended
        return


def forget() -> None:
    """Drop what was agreed; other ranks keep it."""
    _agreed.clear()


def _share(notes: Board, handle: Handle, snapshot: FrameSnapshot) -> None:
    key, own = _key(handle), handle.ledger.differing_sizes(snapshot)
    known = _agreed.setdefault(key, {})
    news = {
        describe(source): sorted(sizes)
        for source, sizes in own.items()
        if not sizes <= known.get(describe(source), set())
    }
    _merge(known, news)
    for source in _inputs(handle, snapshot):
        _take(handle, source, known)
    if news:
        notes.post(_TOPIC, json.dumps([key, news]))


def _receive(notes: Board, rank: int, text: str) -> None:
    if rank == notes.rank:
        return
    key, sizes = json.loads(text)
    _merge(_agreed.setdefault(key, {}), sizes)
    _changed.add(key)


def _tick(notes: Board) -> None:
    """Let functions compile again. Only this thread waits for compiles that run: one that compiles
    a function itself, and reads notes, would wait for another that does the same.
    """
    while _changed:
        key = _changed.pop()
        for handle in all_handles():
            if _key(handle) == key:
                _compile_again(handle, _agreed.get(key, {}))


listen(_TOPIC, _receive)
on_tick(_tick)


def _compile_again(handle: Handle, known: Sizes) -> None:
    """Drop the variants, so that the next call compiles one, unless one has the sizes as symbols
    once no compile runs.
    """
    with handle.lock:
        if handle.given_up is None and handle.building is None and _lacks(handle, known):
            handle.dispatcher.clear()


def _lacks(handle: Handle, known: Sizes) -> bool:
    """Return whether a frame has variants, but none with these sizes as symbols."""
    variants = [list(_guards(entry)) for entry in handle.dispatcher.entries]
    for guard in (guard for one in variants for guard in one):
        _take(handle, guard.source, known)
    return bool(variants) and not any(
        all(_is_free(guard, known) for guard in one) for one in variants
    )


def _guards(entry: Entry) -> Iterator[TensorMatch]:
    return (guard for guard in entry.notes.guards if isinstance(guard, TensorMatch))


def _is_free(guard: TensorMatch, known: Sizes) -> bool:
    return known.get(describe(guard.source), set()) <= set(guard.free_indices)


def _take(handle: Handle, source: Source, known: Sizes) -> None:
    if sizes := known.get(describe(source)):
        handle.ledger.agreed.setdefault(source, set()).update(sizes)


def _inputs(handle: Handle, snapshot: FrameSnapshot) -> Iterator[Source]:
    """Yield the tensors that a frame is called with, and those that its variants read."""
    for index, value in enumerate(snapshot.args):
        if isinstance(value, torch.Tensor):
            yield Argument(index, snapshot.code.co_varnames[index])
    for entry in handle.dispatcher.entries:
        yield from (guard.source for guard in _guards(entry))


def _key(handle: Handle) -> str:
    code = handle.original.code
    parts = (handle.original.qualname, code.co_code.hex(), repr(code.co_names), code.co_firstlineno)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _merge(known: Sizes, more: Mapping[str, Collection[int]]) -> None:
    for name, indices in more.items():
        known.setdefault(name, set()).update(indices)
