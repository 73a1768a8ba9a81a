"""Forces graph breaks upon programs, which must still do what Python does.

The first trace of a frame ends at a step where it has no reason to end, or leaves a loop to Python.
The residual, the resume functions and their traces do the rest. Only instructions that may break in
practice are tried. `run_without_dispatcher` needs neither torch nor an extension, so it serves all
interpreters.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from jitmagic.bytecode.snapshot import FrameSnapshot
from jitmagic.options import Options
from jitmagic.trace.assumptions import Assumptions
from jitmagic.trace.breaks import UserGraphBreak
from jitmagic.trace.machine import Machine, trace
from jitmagic.trace.python_loops.loop_facts import known_loops
from jitmagic.trace.residual.emit import FrameScope, emit
from jitmagic.trace.residual.resume import FlatCode
from jitmagic.trace.restarts import Stop
from jitmagic.trace.result import CannotEmit
from jitmagic.trace.state import Frame, Signal

from .agreement import plain

__all__ = ["break_anywhere", "leave_loops", "run_without_dispatcher"]

# What only moves things or belongs to the instruction behind it never breaks.
NEVER = (
    "PRECALL KW_NAMES PUSH_NULL STORE_FAST STORE_DEREF MAKE_CELL MAKE_FUNCTION SWAP COPY POP_TOP "
    "NOP RESUME COPY_FREE_VARS BUILD_TUPLE BUILD_LIST BUILD_SLICE BUILD_STRING LIST_APPEND MAP_ADD "
    "SET_ADD JUMP_FORWARD JUMP_BACKWARD RETURN_VALUE RETURN_CONST LOAD_CLOSURE LOAD_DEREF END_FOR "
    "SET_FUNCTION_ATTRIBUTE LIST_TO_TUPLE LOAD_FAST_AND_CLEAR"
).split()

Run = Callable[[FunctionType, tuple, Stop], Any]


def break_anywhere(fn: Any, make: Callable[[], tuple], tries: int, run: Run) -> None:
    """Raise AssertionError where `run`, with its first trace stopped early, and Python differ.

    Tries about so many stops, evenly spread.
    """
    steps = _Steps(FrameSnapshot.of_call(fn, make()), Options(), None, {}, Assumptions())
    steps.run()
    for step in steps.sensible[:: max(1, len(steps.sensible) // tries)]:
        wanted_args, args = make(), make()
        wanted = fn(*wanted_args)
        copied = FunctionType(fn.__code__, fn.__globals__, fn.__name__, None, fn.__closure__)
        got = run(copied, args, Stop(step, UserGraphBreak.of()))
        assert plain(got) == plain(wanted), f"break at step {step}"
        assert plain(args) == plain(wanted_args), f"break at step {step}"


def leave_loops(fn: Any, make: Callable[[], tuple]) -> int:
    """Raise AssertionError where a program with one or all loops left to Python differs from
    Python.

    Returns the number of loops.
    """
    count = len(FlatCode.of(fn.__code__).root.loops)
    for chosen in (*(slice(n, n + 1) for n in range(count)), slice(None)):
        flat = FlatCode.of(fn.__code__)
        flat.root.plain.update(list(flat.root.loops)[chosen])
        wanted_args, args = make(), make()
        wanted = fn(*wanted_args)
        got = _run(_Part(fn, flat), args, None)
        assert plain(got) == plain(wanted), f"loops {chosen}"
        assert plain(args) == plain(wanted_args), f"loops {chosen}"
    return count


class _Steps(Machine):
    """Records the steps of the root frame at which a break makes sense."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sensible: list[int] = []

    def execute(self, frame: Frame) -> Signal:
        if frame is self.root and frame.instruction.op not in NEVER:
            self.sensible.append(self.step + 1)
        return super().execute(frame)


@dataclass(frozen=True)
class _GoOn:
    """The value that a residual returns to the loop of the dispatcher."""

    part: _Part
    values: tuple


@dataclass(frozen=True, eq=False)
class _Part:
    """A function or one of its resume functions: each call is traced and has its residual."""

    fn: FunctionType
    flat: FlatCode

    def residual(self, values: tuple, stop: Stop | None = None) -> FunctionType:
        code, fn = self.flat.code, self.fn
        count = len(values) - len(code.co_freevars)
        names = fn.__name__, fn.__qualname__
        place = fn.__globals__, vars(builtins)
        snapshot = FrameSnapshot(code, values[:count], values[count:], *place, *names)
        scope = FrameScope(*place, lambda flat: _Part(fn, flat), _go_on, _nothing, fn)
        loops = replace(known_loops(self.flat, values, may_leave=True), rolls=False, peels=False)
        return emit(trace(snapshot, Options(), stop, loops), self.flat, None, scope)


def _nothing() -> None:
    """Do nothing: the residual alone holds its values."""


def _go_on(part: _Part, *values: Any) -> _GoOn:
    return _GoOn(part, values)


def run_without_dispatcher(fn: FunctionType, args: tuple, stop: Stop) -> Any:
    """Return fn(*args), of a function without anything for a graph to compute."""
    return _run(_Part(fn, FlatCode.of(fn.__code__)), args, stop)


def _run(part: _Part, args: tuple, stop: Stop | None) -> Any:
    start = FrameSnapshot.of_call(part.fn, args)
    values = (*start.args, *start.cells)
    try:
        residual = part.residual(values, stop)
    except CannotEmit:  # inside a handler: all of the call is left to Python
        return part.fn(*args)
    result = residual(*values)
    while isinstance(result, _GoOn):
        result = result.part.residual(result.values)(*result.values)
    return result
