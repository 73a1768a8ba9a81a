"""Rolled loops: Python runs loops whose trip count varies, and one iteration is compiled.

The graph breaks at the head of such a loop. The resume function after it is one iteration: it ends
with a break at the same head, so the next iteration calls it again. The loop is unrolled instead,
with its trip count as a guarded constant, if the trace may not break, if no resume function can
begin in the loop (of a generator), or if the iteration depends on its number.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

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
    LoopIteration,
    LoopOfBreaks,
    PlainLoop,
    RolledLoop,
    TrainingLoop,
)
from ..library_files import is_library
from ..residual.resume import STORES, FlatCode, Root, item_name
from ..residual.resume_facts import without_index
from ..restarts import Restart, Stop
from ..result import Break, Trace
from ..values.base import Machine, Value

__all__ = [
    "UNROLLED",
    "Loops",
    "check_filled",
    "check_head",
    "ends_at_loop",
    "ends_at_other_loop",
    "idle_loop_around",
    "items_of_iteration",
    "leave_open_loops",
    "leave_to_python",
    "loops_of",
    "numbers_of_iteration",
    "peels",
    "record_facts",
    "roll",
    "trip_count_origins",
    "trip_count_varies",
    "unroll",
]


@dataclass(frozen=True, slots=True)
class Loops:
    """Facts about the loops of the root frame; heads are indices of instructions of its code.

    `may_roll`: a loop whose trip count varies ends the graph. `peels`: such a loop does so after
    its first iteration, if the trace made its iterator. `heads`: loops that break at each
    iteration. `unrolled`: loops whose iterations depend on their number.
    """

    may_roll: bool = False
    peels: bool = False
    heads: frozenset[int] = frozenset()
    unrolled: frozenset[int] = frozenset()
    filled: frozenset[Source] = frozenset()  # lists filled by a loop whose trip count varies
    may_leave: bool = False  # long loops without tensor work may be left to Python
    plain: frozenset[int] = frozenset()  # heads of loops that are left to Python
    calling: Mapping[int, tuple[Guard, ...]] = field(default_factory=dict)
    """Plain loops whose callees are compiled, with the facts that this depends on."""
    bodies: Mapping[int, frozenset[int]] | None = None  # all loops of the root frame, by heads


UNROLLED = Loops()


class _StartedLoops:
    """The heads of rolled loops whose first iteration is part of this graph."""

    def __init__(self) -> None:
        self.heads: set[int] = set()


def trip_count_varies(machine: Machine, symbols: Iterable[Symbol], what: str) -> NoReturn:
    """Break or specialise: the program asks an iterable of varying length for its next item."""
    symbols = tuple(symbols)
    undecided = any(map(hintless, symbols)) and not _is_speculated(machine)
    if (machine.loops.may_roll or undecided) and _can_end(machine):
        raise GraphBreak(RolledLoop.of(what=what))
    raise Specialize(symbols, f"the trip count of a loop ({what})", is_trip_count=True)


def check_head(machine: Machine) -> None:
    """Break if the root frame's next instruction is the head of a loop that Python runs."""
    at, loops = machine.root.at, machine.loops
    if at in loops.calling:
        raise Restart(Stop(machine.step, LoopOfBreaks.of(), machine.root.line(), loops.calling[at]))
    if at in machine.watch.left_to_python.heads:
        raise GraphBreak(PlainLoop.of())
    if at not in loops.heads:
        if at == machine.root.rolls_at:
            raise GraphBreak(TrainingLoop.of())
        return
    started = machine.notes.root.of(_StartedLoops).heads
    if loops.peels and at not in started and _begins_here(machine.root.stack[-1]):
        started.add(at)
        return
    raise GraphBreak(LoopIteration.of())


def _begins_here(iterator: Value | None) -> bool:
    """Return whether the trace made the iterator; Python advances one from before the trace."""
    return iterator is not None and iterator.source is None


def peels(machine: Machine) -> bool:
    """Return whether the trace may take the first item of an iterable of varying length."""
    here = machine.frame is machine.root
    return here and machine.loops.peels and machine.loops.may_roll and _can_end(machine)


def check_filled(machine: Machine, source: Source | None) -> None:
    """Break before all items of a list are read, if a loop whose trip count varies filled it."""
    filled = machine.loops.filled
    if filled and source is not None and without_index(source) in filled:
        raise GraphBreak(FilledList.of())


def _can_end(machine: Machine) -> bool:
    """Return whether the trace may end at the current loop head.

    It may not in the graph of a transformed function or a backward, which must be whole, nor in a
    library or a generator.
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


def _is_speculated(machine: Machine) -> bool:
    """Return whether data-dependent branches are speculated (values/numbers/speculation.py)."""
    return machine.may_speculate is not None and machine.may_speculate(
        machine.frame.program.body.filename
    )


def loops_of(
    flat: FlatCode,
    may_roll: bool = False,
    peels: bool = False,
    may_leave: bool = False,
    calling: Mapping[int, tuple[Guard, ...]] | None = None,
) -> Loops:
    """Return the Loops of a function; `calling`: further plain loops with compiled callees."""
    root = flat.root

    def numbers(heads: set[Instruction]) -> frozenset[int]:
        return frozenset(index for index, head in flat.at.items() if head in heads)

    calling = {**dict.fromkeys(numbers(root.calling), ()), **(calling or {})}
    plain = numbers(root.plain).union(calling)
    loops = Loops(may_leave=may_leave, plain=plain, calling=calling, bodies=_bodies(flat))
    if not may_roll and not root.rolled and not root.counting:
        return loops
    filled = frozenset(root.resume_facts.filled)
    if flat.head in root.counting and flat.item is not None:
        filled |= {Argument(-1, flat.item)}
    heads, unrolled = numbers(root.rolled - root.plain), numbers(root.unrolled)
    return replace(
        loops, may_roll=may_roll, peels=peels, heads=heads, unrolled=unrolled, filled=filled
    )


def _bodies(flat: FlatCode) -> dict[int, frozenset[int]]:
    """Return the root's loops in the indices of a function's own code.

    A resume function may begin inside of a loop.
    """
    numbers = {instruction: number for number, instruction in flat.at.items()}
    return {
        numbers[head]: frozenset(numbers[one] for one in loop if one in numbers)
        for head, loop in flat.root.loops.items()
        if head in numbers
    }


def trip_count_origins(trace: Trace) -> list[Hashable]:
    """Return the origins of the trip counts for which loops were unrolled.

    Data-dependent trip counts are left out: they were speculated, or they ended the graph.
    """
    counts = [constant.origin for constant in trace.specialized if constant.is_trip_count]
    return [origin for origin in counts if not isinstance(origin, DataSize)]


def ends_at_loop(trace: Trace) -> bool:
    """Return whether Python continues with a loop after the trace."""
    return isinstance(trace.exit, Break) and isinstance(trace.exit.reason, RolledLoop | FilledList)


def ends_at_other_loop(flat: FlatCode, trace: Trace) -> bool:
    """Return whether Python continues with a loop that this is not an iteration of."""
    return ends_at_loop(trace) and flat.at[trace.exit.index] is not flat.head  # type: ignore[attr-defined]


def leave_to_python(flat: FlatCode, heads: Iterable[int]) -> None:
    """Leave these loops to Python as a whole from now on."""
    flat.root.plain.update(flat.at[head] for head in heads if head in flat.at)


def leave_open_loops(flat: FlatCode, trace: Trace) -> dict[int, tuple[Guard, ...]]:
    """Leave loops to Python whose iterations consist of graph breaks: no node between two breaks.

    Python runs them as a whole, and functions that they call may be compiled. If the break depends
    on facts of this call (`because`), other calls may not break there, so only the next trace uses
    the result.
    """
    root, found = flat.root, []
    for head, loop in trace.open_loops.items():
        if loop.recorded:
            root.recording.add(flat.at[head])
        elif loop.began_inside and loop.has_iterated and flat.at[head] not in root.recording:
            found.append(head)
    if not trace.because:
        root.calling.update(flat.at[head] for head in found)
        leave_to_python(flat, found)
    return dict.fromkeys(found, trace.because)


def idle_loop_around(flat: FlatCode, unrolled: Trace, rolled: Trace) -> list[int]:
    """Return the head of the outermost loop without tensor work around the end of a trace, if any.

    If its trip count varies, Python runs it as a whole instead of iteration by iteration.
    """
    if not ends_at_loop(rolled):
        return []
    end = flat.at[rolled.exit.index]  # type: ignore[attr-defined]
    around = {head: flat.root.loops[flat.at[head]] for head in unrolled.idle_loops}
    return sorted(
        (head for head, loop in around.items() if end in loop),
        key=lambda head: -len(around[head]),
    )[:1]


def roll(flat: FlatCode, trace: Trace) -> None:
    """Mark the loop that ended a trace as rolled, for all later traces."""
    if not ends_at_loop(trace):
        return
    head = flat.at[trace.exit.index]  # type: ignore[attr-defined]
    is_call = isinstance(trace.exit.reason, FilledList) or head.op.startswith("CALL")  # type: ignore[attr-defined]
    if is_call and head.op != "FOR_ITER":  # the callee has such a loop, or the call reads a list
        flat.root.counting.add(head)
    else:
        flat.root.rolled.add(head)
        flat.root.resume_facts.fill(trace)


def record_facts(flat: FlatCode, trace: Trace, snapshot: FrameSnapshot) -> None:
    """Record the facts of a graph break for the resume functions after it."""
    if isinstance(trace.exit, Break) and trace.exit.reason.plain_rest:
        return  # the frame is not cut there
    item = None
    if ends_at_loop(trace):
        head = flat.at[trace.exit.index]  # type: ignore[attr-defined]
        flat.root.resume_facts.change(trace, snapshot, _stored_in_loop(flat.root, head))
    if isinstance(trace.exit, Break) and (head := flat.at[trace.exit.index]).op == "FOR_ITER":
        item = item_name(flat.root, head, len(trace.exit.stack))
    flat.root.resume_facts.add(trace, flat.at, item)


def _stored_in_loop(root: Root, head: Instruction) -> set[object]:
    """Return the live variables that the loop with that head writes to."""
    body = root.body.instructions
    begin = body.index(head)
    jumps = (n for n, one in enumerate(body) if one.target is head and n > begin)
    stores = body[begin : max(jumps, default=begin)]
    return {one.arg for one in stores if one.op in STORES} & root.live[head]


def unroll(flat: FlatCode) -> None:
    """Mark the loop that this resume function is an iteration of as unrolled, for later traces."""
    assert flat.head is not None
    flat.root.rolled.discard(flat.head)
    flat.root.unrolled.add(flat.head)


def numbers_of_iteration(flat: FlatCode) -> frozenset[Source]:
    """Return the numbers in older objects that iterations change; empty for other functions."""
    if flat.head not in flat.root.rolled:
        return frozenset()
    return flat.root.resume_facts.changed_in(flat.parameters)


def items_of_iteration(flat: FlatCode, args: tuple[object, ...]) -> frozenset[Source]:
    """Return the ints in the item of a loop, if the resume function is an iteration of it."""
    if flat.item is None or flat.head not in flat.root.rolled:
        return frozenset()
    index = flat.parameters.index(flat.item)
    return frozenset(_ints(args[index], Argument(index, flat.item)))


def _ints(value: object, source: Source) -> Iterable[Source]:
    """Yield the ints in an item: the item itself, or parts of a tuple from enumerate() or zip()."""
    if type(value) is int:
        yield source
    elif type(value) is tuple:
        for index, part in enumerate(value):
            yield from _ints(part, Item(source, index))
