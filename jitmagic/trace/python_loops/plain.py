"""Plain loops: leaves a long loop without tensor work to Python as a whole.

The graph breaks before the outermost loop of the root frame that would take long to unroll and has
recorded no node; Python runs that loop to its end (exit_edges.py). If the loop is in an inlined
callee, the graph breaks before the call. If the trip count is known, the cost of the first
iterations is extrapolated. Limits count instructions, not seconds, so that every machine decides
alike.

A call with such a loop of 20,000 iterations takes 0.79 ms (eager 0.80 ms; 55 ms before such
loops were left to Python).

`GraphBuilder.work` counts tensor work. Arithmetic on numbers does not count, even on symbols of the
graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType
from typing import NoReturn

from ...budget import check
from ...bytecode.instruction import Instruction
from ...errors import UserLine
from ...guards.guard import Guard
from ...lazy_dataclass import dataclass, field, replace
from ..assumptions import Assumptions
from ..breaks import (
    GraphBreak,
    ManyIterations,
    PlainCall,
    PlainFunction,
    PlainLoop,
    TooManyInstructions,
)
from ..library_files import is_installed
from ..restarts import Restart, Stop
from ..result import BreakReason, OpenLoop, SeenLoops
from ..state import Frame, GuardBook
from ..values.base import Machine
from .training import check_iteration, iterations_left

__all__ = ["LoopWatch", "check_instruction", "effort_of", "go_back", "open_loops", "seen_loops"]

_LONGEST = 30_000  # instructions without tensor work: 0.4 s to trace, at 12 µs each
# Costs of a node in all stages of a compile, in traced instructions of 12 µs:
_NUMBER_NODE = 100  # arithmetic on a symbol: 1.2 to 1.6 ms
_TENSOR_NODE = 80  # a small tensor operation: 1 ms
_MANY_ITERATIONS = 512  # small iterations, inner loops included; loops over layers have fewer
_SMALL_ITERATION = 16  # operations of a small iteration
_CHECKED_EVERY = 256  # instructions
_SAMPLE = _LONGEST // 10  # instructions after which the rest of a loop is estimated


@dataclass(eq=False, slots=True)
class LoopRun:
    """One execution of a loop from entry to exit; counters of the machine as they were at entry."""

    step: int
    effort: int
    work: int
    facts: int = 0  # guards
    iterations: int = 0
    trips: int = 0  # iterations of all loops before it
    second: int = 0  # the step at which its second iteration began
    instructions: int = 0  # those in its effort


@dataclass(eq=False, slots=True)
class SeenLoop:
    """Summary of all runs of a loop of the root frame: whether any iteration recorded a node.

    `facts` are the guards that its iterations added, as spans of indices in the GuardBook.
    """

    is_idle: bool = True
    facts: list[tuple[int, int]] = field(default_factory=list)

    def see(self, machine: Machine, run: LoopRun) -> None:
        """Record the end of an iteration."""
        self.is_idle &= run.work == _work(machine)
        if self.facts and self.facts[-1][0] == run.facts:
            self.facts.pop()
        self.facts.append((run.facts, len(machine.guards)))


class LoopWatch:
    """The loops that one attempt has seen.

    `plain` and `plain_callees`: heads of loops, and functions, that are left to Python.
    """

    def __init__(self, assumed: Assumptions) -> None:
        self.plain = set(assumed.plain)
        self.plain_callees = dict.fromkeys(assumed.plain_callees)
        self.stretch = LoopRun(0, 0, 0)  # since the last recorded operation
        self.seen: dict[int, SeenLoop] = {}  # loops of the root frame, by heads
        self.trips = 0  # iterations of all loops
        self.first_jump_back: int | None = None  # the step of the root's first backward jump
        self.returned: dict[CodeType, int] = {}  # functions: the effort at their call


def effort_of(machine: Machine) -> int:
    """Return the cost of the trace and of its nodes in later stages, in instructions."""
    effort: int = machine.instructions + _NUMBER_NODE * machine.graph.root.arithmetic
    return effort


def _work(machine: Machine) -> int:
    work: int = machine.graph.root.work
    return work


def go_back(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Follow a backward jump to the next iteration of a loop, or break if Python shall run that."""
    frame.goes_back = True
    machine.watch.trips += 1
    if frame is machine.root and machine.watch.first_jump_back is None:
        machine.watch.first_jump_back = machine.step + 1
    frame.jump(instruction.target)
    check_iteration(machine, frame)


def check_instruction(machine: Machine, frame: Frame) -> None:
    """End the graph if it would become too long, or the compile if its time is up."""
    if machine.assumed.may_leave and frame.at in _loops_of(machine, frame):
        _arrive_at_head(machine, frame)
    number = machine.instructions
    if number > machine.options.unroll_limit:
        raise GraphBreak(TooManyInstructions.of(limit=machine.options.unroll_limit))
    if not number % _CHECKED_EVERY:
        check()
        if machine.assumed.may_leave:
            _check_stretch(machine)


def seen_loops(machine: Machine, breaks: bool) -> SeenLoops:
    """Return the loops that the trace has met; `breaks`: it ends at a graph break."""
    watch: LoopWatch = machine.watch
    plain = frozenset(watch.plain), tuple(watch.plain_callees)
    return SeenLoops(*plain, _idle_loops(machine), open_loops(machine) if breaks else {})


def _idle_loops(machine: Machine) -> dict[int, tuple[Guard, ...]]:
    """Return the loops of the root frame that were unrolled and recorded nothing, by their heads.

    The values are the guards that their iterations have added.
    """
    seen: dict[int, SeenLoop] = machine.watch.seen
    book: GuardBook = machine.guards
    return {
        head: tuple(guard for span in loop.facts for guard in book.between(*span))
        for head, loop in seen.items()
        if loop.is_idle
    }


def open_loops(machine: Machine) -> dict[int, OpenLoop]:
    """Return the loops of the root frame that contain the end of the trace, by their heads."""
    root: Frame = machine.root
    found = {}
    for at, loop in _loops_of(machine, root).items():
        if root.at in loop:
            run = root.loops.get(at, LoopRun(0, 0, 0))
            has_iterated = run.iterations > 0 or (root.goes_back and root.at == at)
            recorded = run.work != _work(machine) or at in machine.assumed.recording
            found[at] = OpenLoop(not run.step, has_iterated, recorded)
    return found


def _loops_of(machine: Machine, frame: Frame) -> Mapping[int, frozenset[int]]:
    """Return the loops of a frame's code, by the indices of their heads.

    A resume function may begin inside of a loop, so its loops are those of the root's code.
    """
    known: Mapping[int, frozenset[int]] | None = machine.assumed.bodies
    return known if frame is machine.root and known is not None else frame.program.loops_of()


def _arrive_at_head(machine: Machine, frame: Frame) -> None:
    """Record that a frame is at the head of a loop: its entry, or (`goes_back`) an iteration."""
    run, goes_back = frame.loops.get(frame.at), frame.goes_back
    frame.goes_back = False
    if not goes_back or run is None:
        run = frame.loops[frame.at] = LoopRun(0, 0, 0) if goes_back else _started_run(machine)
    if not goes_back:
        return
    run.iterations += 1
    run.second = run.second or machine.step
    if frame is machine.root:
        machine.watch.seen.setdefault(frame.at, SeenLoop()).see(machine, run)
    _estimate(machine, frame, run)


def _started_run(machine: Machine) -> LoopRun:
    """Return the record of a loop that is entered now."""
    effort, facts, trips = effort_of(machine), len(machine.guards), machine.watch.trips
    work, instructions = _work(machine), machine.instructions
    return LoopRun(machine.step, effort, work, facts, trips=trips, instructions=instructions)


def _estimate(machine: Machine, frame: Frame, run: LoopRun) -> None:
    """End the graph if unrolling the remaining iterations would take too long."""
    done, left = effort_of(machine) - run.effort, iterations_left(frame, frame.at)
    if run.work != _work(machine) and _are_many_and_small(machine, frame, run, done, left):
        _break_at_second(machine, frame, run, ManyIterations.of())
    if done < _SAMPLE or left is None:
        return
    expected = done + done // run.iterations * left
    if run.work == _work(machine):
        if expected > _LONGEST:
            _leave_to_python(machine)
        return
    if is_installed(frame.program.code.co_filename):
        # Optimizers compute corrections of each parameter: 198 would count for 178,000.
        done = machine.instructions - run.instructions
        expected = done + done // run.iterations * left
    if done > machine.options.unroll_limit // 10 and expected > machine.options.unroll_limit:
        reason = TooManyInstructions.of(limit=machine.options.unroll_limit)
        _break_at_second(machine, frame, run, reason)


def _break_at_second(machine: Machine, frame: Frame, run: LoopRun, reason: BreakReason) -> NoReturn:
    """Break at the second iteration, whose resume function is compiled once for all that follow."""
    if frame is not machine.root or not run.step:
        raise GraphBreak(reason)
    raise Restart(Stop(run.second, reason, frame.line()))


def _expected_growth(frame: Frame, run: LoopRun, left: int | None) -> float:
    """Return the expected total iterations over those done; exact if `left` is known."""
    if left is not None:
        return 1 + left / run.iterations
    # A guess: two thirds are still to come; far more for a `while` that Python ran before.
    is_resumed_while = not run.step and frame.instruction.op != "FOR_ITER"
    return 100.0 if is_resumed_while else 3.0


def _are_many_and_small(
    machine: Machine, frame: Frame, run: LoopRun, done: int, left: int | None
) -> bool:
    """Return whether the iterations of a loop are many and small, and would take long to compile.

    Inner loops are included. 3,000 iterations of `x = x + i` took 7 to 12 s.
    """
    trips, work = machine.watch.trips - run.trips, _work(machine) - run.work
    cost = done + _TENSOR_NODE * work
    if cost < _SAMPLE or work > trips * _SMALL_ITERATION or machine.options.fullgraph:
        return False
    if is_installed(frame.program.code.co_filename):  # optimizers loop over parameters
        return False
    more, most = _expected_growth(frame, run, left), 1.5 * machine.options.unroll_limit
    return bool(trips * more > _MANY_ITERATIONS and cost * more > most)


def _check_stretch(machine: Machine) -> None:
    """End the graph if no node was recorded for many instructions; called every 256 of them."""
    if _work(machine) != machine.watch.stretch.work:
        machine.watch.stretch = _started_run(machine)
    elif effort_of(machine) - machine.watch.stretch.effort > _LONGEST:
        _leave_to_python(machine)


def _leave_to_python(machine: Machine) -> None:
    """Break before the outermost running loop of the root frame that has recorded nothing.

    If there is none, break at the call that runs the loop.
    """
    root: Frame = machine.root
    bodies = _loops_of(machine, root)
    plain = [
        (run.step, at)
        for at, run in root.loops.items()
        if run.iterations and run.work == _work(machine) and root.at in bodies[at]
    ]
    if plain:
        step, at = min(plain)
        machine.watch.plain.add(at)
        _leave_callees(machine, root.loops[at])
        raise Restart(Stop(step or machine.step, PlainLoop.of(), _line_at(root, at)))
    if len(machine.frames) > 1:
        _leave_callees(machine, machine.watch.stretch)
        callee = machine.frames[1].program
        # A recursion: fib(20) takes 0.93 ms as Python, 4.7 ms and 21 compiles otherwise.
        has_returned = callee.code in machine.watch.plain_callees
        raise GraphBreak((PlainFunction if has_returned else PlainCall).of(name=callee.body.name))


def _line_at(frame: Frame, at: int) -> UserLine:
    line = frame.line()
    return replace(line, lineno=frame.program.body.instructions[at].lineno or line.lineno)


def _leave_callees(machine: Machine, since: LoopRun) -> None:
    """Leave functions to Python that returned since then without recording anything."""
    started: dict[CodeType, int] = machine.watch.returned
    machine.watch.plain_callees |= dict.fromkeys(
        code for code, at in started.items() if at >= since.effort
    )
