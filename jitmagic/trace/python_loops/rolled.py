"""Rolled loops: how often they run varies, so Python runs them and one round is compiled.

Comes in: the head of a loop whose number of rounds is a symbol. Goes out: a graph break there, and
at each later round, whose resume function is that round alone; or the number is a constant and the
loop is unrolled, where only that will do: the trace may not break, nobody can go on at the
loop (a generator's), or a round needs to know which one it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ...bytecode.instruction import Instruction
from ...bytecode.snapshot import FrameSnapshot
from ...guards.guard import Guard
from ...guards.source import Argument, Item, Source
from ...symbols.context import Specialize
from ...symbols.scalar import Symbol
from ...symbols.size import DataSize, hintless
from ..breaks import (
    FilledList,
    GraphBreak,
    LoopOfBreaks,
    PlainLoop,
    RolledLoop,
    RoundOfLoop,
    TrainingLoop,
)
from ..library_files import is_library
from ..residual.resume import STORES, FlatCode, Root, item_name
from ..residual.resume_facts import without_index
from ..restarts import Restart, Stop
from ..result import Break, Trace
from ..values.base import Value

__all__ = [
    "UNROLLED",
    "Loops",
    "begins_loop",
    "check_filled",
    "check_head",
    "counts_of_rounds",
    "ends_at_loop",
    "hand_on",
    "idle_around",
    "items_of_round",
    "loops_of",
    "note",
    "note_open",
    "note_plain",
    "numbers_of_round",
    "peels",
    "rounds_vary",
    "unroll",
]


@dataclass(frozen=True, slots=True)
class Loops:
    """What a trace knows of loops of varying length. `may_roll`: they end the graph, `peels`: after
    one round of a loop that begins in it; the heads, by number of instruction of the root frame's
    code, of those that do so in each round, and of those that were found to need the number of the
    round."""

    may_roll: bool = False
    peels: bool = False
    heads: frozenset[int] = frozenset()
    unrolled: frozenset[int] = frozenset()
    filled: frozenset[Source] = frozenset()  # lists that a loop of varying length fills
    may_leave: bool = False  # long loops without tensor work, to Python as a whole
    plain: frozenset[int] = frozenset()  # the heads of those that are
    calling: Mapping[int, tuple[Guard, ...]] = field(default_factory=dict)
    """Plain loops whose callees are compiled, with the facts that have to hold for that."""
    bodies: Mapping[int, frozenset[int]] | None = None  # all loops of the root frame, by heads


UNROLLED = Loops()


class _Begun:
    """The heads of rolled loops whose first round is a part of this graph."""

    def __init__(self) -> None:
        self.heads: set[int] = set()


def rounds_vary(machine: Any, symbols: Iterable[Symbol], what: str) -> NoReturn:
    """Somebody wants the next item of what has a varying number of them."""
    symbols = tuple(symbols)
    undecided = any(map(hintless, symbols)) and not _is_foreseen(machine)
    if (machine.loops.may_roll or undecided) and _can_end(machine):
        raise GraphBreak(RolledLoop.of(what=what))
    raise Specialize(symbols, f"the number of rounds of a loop ({what})", counts_rounds=True)


def check_head(machine: Any) -> None:
    """Break at the head of a loop that Python runs: the next instruction of the root frame."""
    at, loops = machine.root.at, machine.loops
    if at in loops.calling:
        raise Restart(Stop(machine.step, LoopOfBreaks.of(), machine.root.line(), loops.calling[at]))
    if at in machine.watch.leaving.heads:
        raise GraphBreak(PlainLoop.of())
    if at not in loops.heads:
        if at == machine.root.rolls_at:
            raise GraphBreak(TrainingLoop.of())
        return
    begun = machine.notes.root.of(_Begun).heads
    if loops.peels and at not in begun and _begins_here(machine.root.stack[-1]):
        begun.add(at)
        return
    raise GraphBreak(RoundOfLoop.of())


def _begins_here(iterator: Value | None) -> bool:
    """Whether the trace made it: Python goes on with one that was there before."""
    return iterator is not None and iterator.source is None


def peels(machine: Any) -> bool:
    """Whether the first item of what has a varying number of them may be taken."""
    here = machine.frame is machine.root
    return here and machine.loops.peels and machine.loops.may_roll and _can_end(machine)


def check_filled(machine: Any, source: Source | None) -> None:
    """Break before all items of a list are read, if a loop of varying length filled it."""
    filled = machine.loops.filled
    if filled and source is not None and without_index(source) in filled:
        raise GraphBreak(FilledList.of())


def _can_end(machine: Any) -> bool:
    """Whether a frame of Python functions is at the head of a loop, which can be gone on with: not
    in a function under a transform, or a backward, whose graph ends with it.
    """
    frame = machine.frame
    if machine.graph is not machine.graph.root:
        return False
    code = frame.program.body
    if frame.instruction.op != "FOR_ITER" or is_library(code.filename):
        return False
    if code.flags & inspect.CO_GENERATOR:
        return False
    return not (frame is machine.root and frame.at in machine.loops.unrolled)


def _is_foreseen(machine: Any) -> bool:
    """Return whether data-dependent branches are speculated (values/numbers/speculation.py)."""
    return machine.foresees is not None and machine.foresees(machine.frame.program.body.filename)


def loops_of(
    flat: FlatCode,
    may_roll: bool = False,
    peels: bool = False,
    may_leave: bool = False,
    calling: Mapping[int, tuple[Guard, ...]] | None = None,
) -> Loops:
    """Return the facts about the loops of a function; `calling`: those found in this call."""
    root = flat.root

    def numbers(heads: set[Instruction]) -> frozenset[int]:
        return frozenset(index for index, head in flat.at.items() if head in heads)

    calling = {**dict.fromkeys(numbers(root.calling), ()), **(calling or {})}
    plain = may_leave, numbers(root.plain).union(calling), calling, _bodies(flat)
    if not may_roll and not root.rolled and not root.counting:
        return Loops(False, False, frozenset(), frozenset(), frozenset(), *plain)
    filled = frozenset(root.handed_on.filled)
    if flat.head in root.counting and flat.item is not None:
        filled |= {Argument(-1, flat.item)}
    heads, unrolled = numbers(root.rolled - root.plain), numbers(root.unrolled)
    return Loops(may_roll, peels, heads, unrolled, filled, *plain)


def _bodies(flat: FlatCode) -> dict[int, frozenset[int]]:
    """The root's loops in the numbers of a function's own code, which may begin inside of one."""
    numbers = {instruction: number for number, instruction in flat.at.items()}
    return {
        numbers[head]: frozenset(numbers[one] for one in loop if one in numbers)
        for head, loop in flat.root.loops.items()
        if head in numbers
    }


def counts_of_rounds(trace: Trace) -> list[Hashable]:
    """Where what may vary comes from for which loops were unrolled. What data decide is foreseen: a
    loop over anything else of that kind has ended the graph.
    """
    counts = [constant.origin for constant in trace.specialized if constant.counts_rounds]
    return [origin for origin in counts if not isinstance(origin, DataSize)]


def ends_at_loop(trace: Trace) -> bool:
    """Whether Python goes on with a loop behind the trace."""
    return isinstance(trace.exit, Break) and isinstance(trace.exit.reason, RolledLoop | FilledList)


def begins_loop(flat: FlatCode, trace: Trace) -> bool:
    """Whether Python goes on with one behind the trace that this is no round of."""
    return ends_at_loop(trace) and flat.at[trace.exit.index] is not flat.head  # type: ignore[attr-defined]


def note_plain(flat: FlatCode, heads: Iterable[int]) -> None:
    """Have Python run these loops from now on, as a whole."""
    flat.root.plain.update(flat.at[head] for head in heads if head in flat.at)


def note_open(flat: FlatCode, trace: Trace) -> dict[int, tuple[Guard, ...]]:
    """The loops of a graph break whose rounds record nothing from one break to the next: only the
    breaks are left of them, which Python runs in a row. Their callees may be compiled. A break that
    rests on facts of the call says nothing of other calls: the next trace alone relies on these.
    """
    root, found = flat.root, []
    for head, loop in trace.open_loops.items():
        if loop.recorded:
            root.recording.add(flat.at[head])
        elif loop.began_inside and loop.went_round and flat.at[head] not in root.recording:
            found.append(head)
    if not trace.because:
        root.calling.update(flat.at[head] for head in found)
        note_plain(flat, found)
    return dict.fromkeys(found, trace.because)


def idle_around(flat: FlatCode, unrolled: Trace, rolled: Trace) -> list[int]:
    """The outermost loop around the end of a trace, if its rounds recorded nothing when it was
    unrolled: one of varying length is Python's as a whole then, not its rounds.
    """
    if not ends_at_loop(rolled):
        return []
    end = flat.at[rolled.exit.index]  # type: ignore[attr-defined]
    around = {head: flat.root.loops[flat.at[head]] for head in unrolled.idle_loops}
    return sorted(
        (head for head, loop in around.items() if end in loop),
        key=lambda head: -len(around[head]),
    )[:1]


def note(flat: FlatCode, trace: Trace) -> None:
    """Have the loop that ended a trace be rolled from now on."""
    if not ends_at_loop(trace):
        return
    head = flat.at[trace.exit.index]  # type: ignore[attr-defined]
    is_call = isinstance(trace.exit.reason, FilledList) or head.op.startswith("CALL")  # type: ignore[attr-defined]
    if is_call and head.op != "FOR_ITER":  # of a function with such a loop, or what reads a list
        flat.root.counting.add(head)
    else:
        flat.root.rolled.add(head)
        flat.root.handed_on.fill(trace)


def hand_on(flat: FlatCode, trace: Trace, snapshot: FrameSnapshot) -> None:
    """What varies at a break is known behind it."""
    if isinstance(trace.exit, Break) and trace.exit.reason.plain_rest:
        return  # the frame is not cut there
    item = None
    if ends_at_loop(trace):
        head = flat.at[trace.exit.index]  # type: ignore[attr-defined]
        flat.root.handed_on.change(trace, snapshot, _stored_in_loop(flat.root, head))
    if isinstance(trace.exit, Break) and (head := flat.at[trace.exit.index]).op == "FOR_ITER":
        item = item_name(flat.root, head, len(trace.exit.stack))
    flat.root.handed_on.add(trace, flat.at, item)


def _stored_in_loop(root: Root, head: Instruction) -> set[object]:
    """The live variables that the loop with that head writes to."""
    body = root.body.instructions
    begin = body.index(head)
    jumps = (n for n, one in enumerate(body) if one.target is head and n > begin)
    stores = body[begin : max(jumps, default=begin)]
    return {one.arg for one in stores if one.op in STORES} & root.live[head]


def unroll(flat: FlatCode) -> None:
    """Have the loop that this function is a round of be unrolled from now on."""
    assert flat.head is not None
    flat.root.rolled.discard(flat.head)
    flat.root.unrolled.add(flat.head)


def numbers_of_round(flat: FlatCode) -> frozenset[Source]:
    """Return what the rounds of a loop change in objects that they find; empty if not a round."""
    if flat.head not in flat.root.rolled:
        return frozenset()
    return flat.root.handed_on.changed_in(flat.parameters)


def items_of_round(flat: FlatCode, args: tuple[object, ...]) -> frozenset[Source]:
    """The ints that differ from round to round, where a resume function is a loop's round."""
    if flat.item is None or flat.head not in flat.root.rolled:
        return frozenset()
    index = flat.parameters.index(flat.item)
    return frozenset(_ints(args[index], Argument(index, flat.item)))


def _ints(value: object, source: Source) -> Iterable[Source]:
    """Of an item: itself, or what enumerate() and zip() put together."""
    if type(value) is int:
        yield source
    elif type(value) is tuple:
        for index, part in enumerate(value):
            yield from _ints(part, Item(source, index))
