"""Plain loops: a long loop whose rounds do no tensor work is left to Python as a whole.

Comes in: the rounds of loops as the machine follows them. Goes out: a graph break before the
outermost loop of the root frame that would be unrolled for long and records nothing, which Python
then runs from its first round to its last (exit_edges.py); or before the call of the root frame
that runs such code. The decision is taken after a sample of rounds where the number of those left
is known. It counts instructions and not seconds, so that every machine decides alike.

Tensor work is what `GraphBuilder.work` counts: arithmetic on numbers, whether they are symbols of
the graph or not, is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, NoReturn

from ...budget import check
from ...bytecode.instruction import Instruction
from ...errors import UserLine
from ...guards.guard import Guard
from ..breaks import (
    GraphBreak,
    ManyRounds,
    PlainCall,
    PlainFunction,
    PlainLoop,
    TooManyInstructions,
)
from ..library_files import is_installed
from ..restarts import Restart, Stop
from ..result import BreakReason, OpenLoop
from ..state import Frame, GuardBook
from ..values.base import Lazy
from ..values.containers.iterators import IteratorValue
from .training import check_round

__all__ = ["Leaving", "LoopWatch", "check_instruction", "effort_of", "found_loops", "go_back"]

_LONGEST = 30_000  # instructions without tensor work: 0.4 s at the 12 µs that one takes to follow
_NUMBER_NODE = 100  # what arithmetic on a symbol costs all stages: 1.2 to 1.6 ms, in instructions
_TENSOR_NODE = 80  # a small operation of a loop: 1 ms in all stages, in instructions
_MANY_ROUNDS = 512  # of which each does as little, inner loops included: no loop over layers
_SMALL_ROUND = 16  # operations
_CHECKED_EVERY = 256  # instructions
_SAMPLE = _LONGEST // 10  # after so many, what is left of a loop is estimated


@dataclass(eq=False)
class Leaving:
    """Records what the attempts at one trace leave to Python: heads of loops, by number of
    instruction of the root frame's code, and functions that nothing else is expected of.
    """

    heads: set[int] = field(default_factory=set)
    callees: dict[CodeType, None] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class LoopRun:
    """One run of a loop, from its entry on; the numbers are the machine's at that time."""

    step: int
    effort: int
    work: int
    facts: int = 0  # guards
    rounds: int = 0
    trips: int = 0  # of all loops, before it
    second: int = 0  # the step at which its second round began


@dataclass(eq=False, slots=True)
class SeenLoop:
    """Records of all runs of a loop of the root frame whether a round has recorded something, and
    the guards that its rounds have added, as spans of numbers.
    """

    is_idle: bool = True
    facts: list[tuple[int, int]] = field(default_factory=list)

    def see(self, machine: Any, run: LoopRun) -> None:
        """A round has ended."""
        self.is_idle &= run.work == _work(machine)
        if self.facts and self.facts[-1][0] == run.facts:
            self.facts.pop()
        self.facts.append((run.facts, len(machine.guards)))


class LoopWatch:
    """Records what one attempt has seen of loops. `plain`: heads of loops that are Python's."""

    def __init__(self, plain: Iterable[int]) -> None:
        self.leaving = Leaving(set(plain))
        self.stretch = LoopRun(0, 0, 0)  # since something was recorded last
        self.seen: dict[int, SeenLoop] = {}  # loops of the root frame, by heads
        self.trips = 0  # rounds of all loops
        self.first_round: int | None = None  # the step at which a loop of the root first goes back
        self.returned: dict[CodeType, int] = {}  # functions that were inlined: the effort before


def effort_of(machine: Any) -> int:
    """Return how long a trace has taken, in instructions: what is recorded costs later stages."""
    effort: int = machine.instructions + _NUMBER_NODE * machine.graph.root.arithmetic
    return effort


def _work(machine: Any) -> int:
    work: int = machine.graph.root.work
    return work


def go_back(machine: Any, frame: Frame, instruction: Instruction) -> None:
    """Follow a backward jump: to the next round of a loop, or leave that to Python."""
    frame.goes_back = True
    machine.watch.trips += 1
    if frame is machine.root and machine.watch.first_round is None:
        machine.watch.first_round = machine.step + 1
    frame.jump(instruction.target)
    check_round(machine, frame)


def check_instruction(machine: Any, frame: Frame) -> None:
    """Before an instruction: end the graph where it would become too long, or the compile where
    its time is up.
    """
    if machine.loops.may_leave and frame.at in _loops_of(machine, frame):
        _arrive_at_head(machine, frame)
    number = machine.instructions
    if number > machine.options.unroll_limit:
        raise GraphBreak(TooManyInstructions.of(limit=machine.options.unroll_limit))
    if not number % _CHECKED_EVERY:
        check()
        if machine.loops.may_leave:
            _check_stretch(machine)


def found_loops(machine: Any, breaks: bool) -> tuple[Any, ...]:
    """Return what a Trace says of loops, from `plain_loops` on."""
    leaving: Leaving = machine.watch.leaving
    plain = frozenset(leaving.heads), tuple(leaving.callees)
    return *plain, _idle_loops(machine), _open_loops(machine) if breaks else {}


def _idle_loops(machine: Any) -> dict[int, tuple[Guard, ...]]:
    """The loops of the root frame of which at least one round was followed and none has recorded
    anything, by their heads, with the guards that their rounds have added.
    """
    seen: dict[int, SeenLoop] = machine.watch.seen
    book: GuardBook = machine.guards
    return {
        head: tuple(guard for span in loop.facts for guard in book.between(*span))
        for head, loop in seen.items()
        if loop.is_idle
    }


def _open_loops(machine: Any) -> dict[int, OpenLoop]:
    """The loops of the root frame that the trace ends in, by their heads."""
    root: Frame = machine.root
    found = {}
    for at, loop in _loops_of(machine, root).items():
        if root.at in loop:
            run = root.loops.get(at, LoopRun(0, 0, 0))
            went_round = run.rounds > 0 or (root.goes_back and root.at == at)
            found[at] = OpenLoop(not run.step, went_round, run.work != _work(machine))
    return found


def _loops_of(machine: Any, frame: Frame) -> Mapping[int, frozenset[int]]:
    """The loops of a frame's code, by the numbers of their heads. A resume function begins in the
    middle of one: its loops are those of the function that it is a part of.
    """
    known: Mapping[int, frozenset[int]] | None = machine.loops.bodies
    return known if frame is machine.root and known is not None else frame.program.loops_of()


def _arrive_at_head(machine: Any, frame: Frame) -> None:
    """A frame is at the head of a loop: at its entry, or (`frame.goes_back`) behind a round."""
    run, goes_back = frame.loops.get(frame.at), frame.goes_back
    frame.goes_back = False
    if not goes_back or run is None:
        run = frame.loops[frame.at] = LoopRun(0, 0, 0) if goes_back else _run_begins(machine)
    if not goes_back:
        return
    run.rounds += 1
    run.second = run.second or machine.step
    if frame is machine.root:
        machine.watch.seen.setdefault(frame.at, SeenLoop()).see(machine, run)
    _estimate(machine, frame, run)


def _run_begins(machine: Any) -> LoopRun:
    """A loop is entered now."""
    done = effort_of(machine), _work(machine)
    return LoopRun(machine.step, *done, len(machine.guards), trips=machine.watch.trips)


def _estimate(machine: Any, frame: Frame, run: LoopRun) -> None:
    """End the graph where the rounds that are left would be unrolled for too long."""
    done, left = effort_of(machine) - run.effort, _rounds_left(frame)
    users = not is_installed(frame.program.code.co_filename)  # optimizers loop over parameters
    if users and run.work != _work(machine) and _are_many(machine, run, done, left):
        _leave_rounds(machine, frame, run, ManyRounds.of())
    if done < _SAMPLE or left is None:
        return
    expected = done + done // run.rounds * left
    if run.work == _work(machine):
        if expected > _LONGEST:
            _leave_to_python(machine)
    elif done > machine.options.unroll_limit // 10 and expected > machine.options.unroll_limit:
        reason = TooManyInstructions.of(limit=machine.options.unroll_limit)
        _leave_rounds(machine, frame, run, reason)


def _leave_rounds(machine: Any, frame: Frame, run: LoopRun, reason: BreakReason) -> NoReturn:
    """What resumes at the second round is one round, compiled once for all that follow."""
    if frame is not machine.root or not run.step:
        raise GraphBreak(reason)
    raise Restart(Stop(run.second, reason, frame.line()))


def _are_many(machine: Any, run: LoopRun, done: int, left: int | None) -> bool:
    """Return whether the rounds of a loop, inner ones included, are many and small, and would be
    compiled for long: 3,000 rounds of `x = x + i` took 7 to 12 s.
    """
    trips, work = machine.watch.trips - run.trips, _work(machine) - run.work
    cost = done + _TENSOR_NODE * work
    if cost < _SAMPLE or work > trips * _SMALL_ROUND or machine.options.fullgraph:
        return False
    # A `while` goes on for twice as many rounds; one that was left to Python before, for long.
    more = (3.0 if run.step else 100.0) if left is None else 1 + left / run.rounds
    most: float = 1.5 * machine.options.unroll_limit
    return bool(trips * more > _MANY_ROUNDS and cost * more > most)


def _rounds_left(frame: Frame) -> int | None:
    """Return the rounds that a `for` loop has left; None: unknown."""
    if frame.instruction.op != "FOR_ITER" or (top := frame.stack[-1]) is None:
        return None
    iterator = top.real if isinstance(top, Lazy) else top
    return iterator.items_left() if isinstance(iterator, IteratorValue) else None


def _check_stretch(machine: Any) -> None:
    """Called now and then: end the graph where nothing has been recorded for long."""
    if _work(machine) != machine.watch.stretch.work:
        machine.watch.stretch = _run_begins(machine)
    elif effort_of(machine) - machine.watch.stretch.effort > _LONGEST:
        _leave_to_python(machine)


def _leave_to_python(machine: Any) -> None:
    """The outermost loop of the root frame that is running and has recorded nothing, else the call
    that runs the loop, or whatever it is that takes so long.
    """
    root: Frame = machine.root
    bodies = _loops_of(machine, root)
    plain = [
        (run.step, at)
        for at, run in root.loops.items()
        if run.rounds and run.work == _work(machine) and root.at in bodies[at]
    ]
    if plain:
        step, at = min(plain)
        machine.watch.leaving.heads.add(at)
        _leave_callees(machine, root.loops[at])
        raise Restart(Stop(step or machine.step, PlainLoop.of(), _line_at(root, at)))
    if len(machine.frames) > 1:
        _leave_callees(machine, machine.watch.stretch)
        callee = machine.frames[1].program
        has_returned = callee.code in machine.watch.leaving.callees  # a recursion
        raise GraphBreak((PlainFunction if has_returned else PlainCall).of(name=callee.body.name))


def _line_at(frame: Frame, at: int) -> UserLine:
    line = frame.line()
    return replace(line, lineno=frame.program.body.instructions[at].lineno or line.lineno)


def _leave_callees(machine: Any, since: LoopRun) -> None:
    """Functions that were called and returned since then, when nothing was recorded."""
    begun: dict[CodeType, int] = machine.watch.returned
    machine.watch.leaving.callees.update(
        (code, None) for code, at in begun.items() if at >= since.effort
    )
