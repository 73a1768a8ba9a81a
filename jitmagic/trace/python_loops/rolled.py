"""Rolled loops: Python runs loops whose trip count varies, and one iteration is compiled.

The graph breaks at the head of such a loop. The resume function after it is one iteration: it ends
with a break at the same head, so the next iteration calls it again. The loop is unrolled instead,
with its trip count as a guarded constant, if the trace may not break, if no resume function can
begin in the loop (of a generator), or if the iteration depends on its number.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import NoReturn

from ...guards.source import Source
from ...symbols.context import Specialize
from ...symbols.size import hintless
from ...symbols.symbolic_numbers import Symbol
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
from ..residual.resume_facts import without_index
from ..restarts import Restart, Stop
from ..values.base import Machine, Value
from .peeled import finish_peeling, is_peeling, start_peeling

__all__ = ["check_filled", "check_head", "peels", "trip_count_varies"]


def trip_count_varies(machine: Machine, symbols: Iterable[Symbol], what: str) -> NoReturn:
    """Break or specialise: the program asks an iterable of varying length for its next item."""
    symbols = tuple(symbols)
    # A data-dependent count has no value in the trace and cannot become a constant. In library code
    # it is speculated instead, and the loop unrolled.
    if any(map(hintless, symbols)):
        rolls = not _is_speculated(machine)
    else:
        rolls = machine.assumed.rolls or is_peeling(machine)
    can_end = _can_end(machine)
    if rolls and can_end:
        finish_peeling(machine)
        # An LSTM in plain Python over 16 lengths: 8 compiles and then eager when unrolled, 2
        # compiles of the frame when rolled.
        raise GraphBreak(RolledLoop.of(what=what))
    why = f"the trip count of a loop ({what})"
    raise Specialize(symbols, why, is_trip_count=can_end)


def check_head(machine: Machine) -> None:
    """Break if the root frame's next instruction is the head of a loop that Python runs."""
    at, assumed = machine.root.at, machine.assumed
    if at in assumed.calling:
        because = assumed.calling[at]
        raise Restart(Stop(machine.step, LoopOfBreaks.of(), machine.root.line(), because))
    if at in machine.watch.plain:
        raise GraphBreak(PlainLoop.of())
    if at in assumed.rolled - assumed.plain:
        reason = LoopIteration.of()
        if assumed.peels and not is_peeling(machine) and _begins_here(machine.root.stack):
            start_peeling(machine, reason)
            return
        finish_peeling(machine)
        raise GraphBreak(reason)
    if at == machine.root.rolls_at:
        raise GraphBreak(TrainingLoop.of())


def _begins_here(stack: list[Value | None]) -> bool:
    """Return whether the trace made the iterator; Python advances one from before the trace."""
    iterator = stack[-1] if stack else None
    return iterator is not None and iterator.source is None


def peels(machine: Machine, what: str) -> bool:
    """Return whether the trace takes the first item of an iterable of varying length."""
    is_here = machine.frame is machine.root and machine.assumed.peels
    if is_here and (machine.assumed.rolls or is_peeling(machine)) and _can_end(machine):
        start_peeling(machine, RolledLoop.of(what=what))
        return True
    return False


def check_filled(machine: Machine, source: Source | None) -> None:
    """Break before all items of a list are read, if a loop whose trip count varies filled it."""
    filled = machine.assumed.filled
    # A read item by item would fix the length, so that each trip count of the loop before would be
    # a variant of the code after it.
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
    # A resume function is a plain function, which could not be suspended at a `yield`.
    if code.flags & inspect.CO_GENERATOR:
        return False
    return not (frame is machine.root and frame.at in machine.assumed.unrolled)


def _is_speculated(machine: Machine) -> bool:
    """Return whether data-dependent branches are speculated (values/numbers/speculation.py)."""
    speculates_in: Callable[[str], bool] | None = machine.assumed.speculates_in
    return speculates_in is not None and speculates_in(machine.frame.program.body.filename)
