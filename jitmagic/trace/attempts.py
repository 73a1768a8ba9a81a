"""Decides what the next attempt at a trace assumes, after one that could not be finished.

A graph break ends the next attempt earlier; a symbol whose value was needed is a constant there;
a peeled iteration or a rolled loop that was of no use is given up.
"""

from __future__ import annotations

from dataclasses import replace

from ..symbols.context import Specialize
from .assumptions import Assumptions
from .breaks import RolledLoop
from .python_loops.peeled import refused_peeling
from .python_loops.plain import open_loops
from .restarts import CompiledBranchRaises, Restart, Stop, earlier
from .values.base import Machine
from .varying.attempt_symbols import with_constants, without_symbolic_sizes

__all__ = ["Attempt", "next_attempt"]

Attempt = tuple[Stop | None, Assumptions]
"""The instruction before which an attempt ends at the latest, and what it assumes."""


def next_attempt(machine: Machine, error: Exception, last: Stop | None, first: Attempt) -> Attempt:
    """Return the attempt after one that raised `error`.

    `last`: its stop. `first`: the first attempt. Raises `error` if no other attempt can help.
    """
    plain, callees = frozenset(machine.watch.plain), tuple(machine.watch.plain_callees)
    assumed: Assumptions = replace(machine.assumed, plain=plain, plain_callees=callees)
    known = assumed.constants
    match error:
        case Restart():
            return _after_restart(machine, error.stop, last, first, assumed)
        case CompiledBranchRaises():
            return first[0], replace(assumed, is_compiling=False)
        case Specialize():
            # Each such restart makes a symbol a constant, so their number is limited. The stop is
            # reset: with a constant there the next attempt may get past it.
            constants = with_constants(known, error, machine.symbols.where, machine.root.at)
        case _:  # probably code of jitmagic or torch that needs ints
            constants = without_symbolic_sizes(known, machine.symbols, error)
    return first[0], replace(assumed, constants=constants)


def _after_restart(
    machine: Machine, stop: Stop, last: Stop | None, first: Attempt, assumed: Assumptions
) -> Attempt:
    """Return the next attempt after a graph break at `stop`.

    If the graph is better without the peeled iteration, or without the rolled loop that ended it,
    the next attempt does without, and without the constants that were needed for it.
    """
    given = first[1]
    if (before_loop := refused_peeling(machine)) is not None:
        loops = open_loops(machine).items()
        recording = assumed.recording.union(head for head, loop in loops if loop.recorded)
        stop, assumed = before_loop, replace(assumed, peels=False, recording=recording)
        if assumed.constants != given.constants:
            return first[0], replace(assumed, constants=given.constants)
    elif assumed.rolls and _cannot_be_rebuilt(last, stop):
        unrolled = replace(assumed, rolls=False, rolls_tests=False)
        return first[0], replace(unrolled, constants=given.constants)
    casts = (leaf.source for leaf in machine.notes.root.cached_casts())
    return earlier(stop, last), replace(assumed, written_later=assumed.written_later.union(casts))


def _cannot_be_rebuilt(last: Stop | None, stop: Stop) -> bool:
    """Return whether a trace that was to end at a rolled loop has to end before it."""
    if last is None or type(last.reason) is not RolledLoop:
        return False
    return not isinstance(stop.reason, RolledLoop)
