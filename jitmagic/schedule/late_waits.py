"""Lets collectives run beside other steps: each starts early, and is waited for late.

In: the program in its final order, where a step calls a collective and waits. Out: a program with
two steps instead: the collective, as soon as what it reads is computed, and the wait, before the
first step that needs its results or writes to what it reads. Collectives start in the order of the
graph, which is the same in every process. So that memory does not grow with the length of the
program, one starts earlier than the user calls it only while little is under way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..lazy_dataclass import dataclass
from ..loops.ir import Alias, Buffer, BufferRef, Extern, LoopProgram, Step
from ..loops.ops.extern import is_collective, runs_unknown_code, started_by, wait_for
from ..symbols.size import hint_of
from .dependencies import reads_of, storages, writes_of
from .memory import storage_bytes

__all__ = ["with_late_waits"]

_UNDER_WAY = 64 << 20  # bytes of results: a few layers' weights, or as many gradient buckets


@dataclass(frozen=True, slots=True)
class _Piece:
    """A step and what keeps it in order with others: storages and views that it reads and writes,
    of which one is written when it is made.
    """

    step: Step
    reads: frozenset[str]
    writes: frozenset[str]

    def must_follow(self, other: _Piece) -> bool:
        """Return whether this piece depends on another one that is before it."""
        changed = other.writes & (self.reads | self.writes)
        return bool(changed or other.reads & self.writes)


def with_late_waits(program: LoopProgram) -> LoopProgram:
    """Return the program with its collectives taken apart."""
    if not any(map(_is_collective, program.steps)):
        return program
    buffers = dict(program.buffers)
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Extern) and _is_collective(step):
            steps += _taken_apart(step, buffers)
        else:
            steps.append(step)
    apart = replace(program, buffers=buffers, steps=tuple(steps))
    ordered = _earlier_starts(_later_waits(_pieces(apart)), buffers)
    return replace(apart, steps=tuple(piece.step for piece in ordered))


def _is_collective(step: Step) -> bool:
    """Return whether the step is a collective whose results are used: others stay whole."""
    return isinstance(step, Extern) and bool(started_by(step.op)) and None not in step.results


def _taken_apart(step: Extern, buffers: dict[str, Buffer]) -> list[Step]:
    """Return the collective and a wait for each of its results."""
    start = started_by(step.op)
    assert start is not None
    read = tuple(BufferRef(name) for name in dict.fromkeys(step.references))
    started: list[str] = []
    waits: list[Step] = []
    for place, result in enumerate(step.results):
        assert result is not None
        name = f"{result}_started"
        buffers[name] = replace(buffers[result], name=name, role="temp")
        started.append(name)
        taken = (BufferRef(name), read)
        waits.append(Extern(f"{step.name}_wait_{place}", wait_for(), taken, {}, (result,)))
    return [replace(step, op=start, results=tuple(started)), *waits]


def _pieces(program: LoopProgram) -> list[_Piece]:
    owner = storages(program)
    views = {step.name for step in program.steps if isinstance(step, Alias)}
    inputs = frozenset(owner[name] for name in program.inputs)
    pieces = []
    for step in program.steps:
        read, written = reads_of(step), writes_of(step)
        reads = frozenset(owner[name] for name in read) | views.intersection(read)
        writes = frozenset(owner[name] for name in written)
        if isinstance(step, Alias):
            writes = frozenset({step.name})
        if _waits(step):  # it may raise, and eager must then find the inputs unchanged
            reads |= inputs
        pieces.append(_Piece(step, reads, writes))
    return pieces


def _waits(step: Step) -> bool:
    return isinstance(step, Extern) and step.op == wait_for()


def _starts(step: Step) -> bool:
    return isinstance(step, Extern) and is_collective(step.op)


def _later_waits(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Move waits, and the views of what they return, to just before the first piece that follows
    them.
    """
    ordered: list[_Piece] = []
    for piece in reversed(pieces):
        place = 0
        if isinstance(piece.step, Alias) or _waits(piece.step):
            later = (n for n, other in enumerate(ordered) if other.must_follow(piece))
            place = next(later, len(ordered))
        ordered.insert(place, piece)
    return ordered


def _earlier_starts(pieces: Sequence[_Piece], buffers: Mapping[str, Buffer]) -> list[_Piece]:
    """Move collectives to just after what they follow."""
    ordered: list[_Piece] = []
    for piece in pieces:
        place = len(ordered)
        if _starts(piece.step):
            while place and not _stops(piece, ordered[place - 1]):
                place -= 1
            place = _with_room(piece, ordered, place, buffers)
        ordered.insert(place, piece)
    return ordered


def _stops(piece: _Piece, other: _Piece) -> bool:
    """Return whether a collective may not start before another piece. An unknown operator may
    communicate too.
    """
    step = other.step
    unknown = isinstance(step, Extern) and runs_unknown_code(step.op) and not _waits(step)
    return unknown or piece.must_follow(other)


def _with_room(
    piece: _Piece, ordered: Sequence[_Piece], earliest: int, buffers: Mapping[str, Buffer]
) -> int:
    """Return the first place, from `earliest`, where not too much is under way."""
    own = sum(_bytes(buffers[name]) for name in piece.writes)
    under_way: dict[str, int] = {}
    for place, other in enumerate(ordered):
        total = sum(under_way.values())
        if place >= earliest and (not total or total + own <= _UNDER_WAY):
            return place
        if _starts(other.step):
            under_way |= {name: _bytes(buffers[name]) for name in other.writes}
        elif _waits(other.step):
            for name in other.reads:
                under_way.pop(name, None)
    return len(ordered)


def _bytes(buffer: Buffer) -> int:
    return hint_of(storage_bytes(buffer))
