"""A graph break before any instruction of any program, and the program still does what Python does.

The first trace of a frame is made to end at a step it has no reason to end at; the residual, the
resume functions and their traces do the rest. Only instructions that may break in earnest are
tried.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable
from typing import Any

import pytest

from jitmagic.bytecode.snapshot import FrameSnapshot
from jitmagic.options import Options
from jitmagic.trace.breaks import UserGraphBreak
from jitmagic.trace.machine import Machine, trace
from jitmagic.trace.restarts import Stop
from jitmagic.trace.result import Break, Trace

from .agreement import plain
from .library_programs import PROGRAMS

pytest.importorskip("jitmagic._frame")
jitmagic = pytest.importorskip("jitmagic")
tracing = pytest.importorskip("jitmagic.tracing")

TRIES = 7  # steps tried per program
# What only moves things or belongs to the instruction behind it never breaks.
NEVER = (
    "PRECALL KW_NAMES PUSH_NULL STORE_FAST STORE_DEREF MAKE_CELL MAKE_FUNCTION SWAP COPY POP_TOP "
    "NOP RESUME COPY_FREE_VARS BUILD_TUPLE BUILD_LIST BUILD_SLICE BUILD_STRING LIST_APPEND MAP_ADD "
    "SET_ADD JUMP_FORWARD JUMP_BACKWARD RETURN_VALUE RETURN_CONST LOAD_CLOSURE LOAD_DEREF END_FOR "
    "SET_FUNCTION_ATTRIBUTE LIST_TO_TUPLE LOAD_FAST_AND_CLEAR"
).split()


def steps_of(fn: Callable[..., Any], args: tuple) -> list[int]:
    """Steps of the root frame, evenly spread, at which a break makes sense."""
    machine = Machine(FrameSnapshot.of_call(fn, args), Options(), None, {})
    machine.run()
    return list(range(2, machine.step + 1))


def broken_at(fn: Callable[..., Any], args: tuple, step: int) -> bool:
    made = trace(FrameSnapshot.of_call(fn, args), Options(), Stop(step, UserGraphBreak.of()))
    if not isinstance(made.exit, Break):
        return False
    code = fn.__code__
    names = {one.offset: one.opname for one in dis.get_instructions(code)}
    return names[made.exit.offset] not in NEVER


@pytest.mark.filterwarnings("ignore::jitmagic.errors.RecompileWarning")  # loops with a break inside
@pytest.mark.parametrize(("fn", "make"), PROGRAMS, ids=[fn.__name__ for fn, _ in PROGRAMS])
def test_break_anywhere(
    fn: Callable[..., Any], make: Callable[[], tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    if fn.__defaults__:
        pytest.skip("keeps state between calls")
    candidates = [step for step in steps_of(fn, make()) if broken_at(fn, make(), step)]
    for step in candidates[:: max(1, len(candidates) // TRIES)]:
        pending = [Stop(step, UserGraphBreak.of())]

        def traced(snapshot: FrameSnapshot, options: Options, stop: None, *numbers: Any) -> Trace:
            return trace(snapshot, options, pending.pop() if pending else stop, *numbers)

        monkeypatch.setattr(tracing, "trace", traced)
        wanted_args, args = make(), make()
        wanted = fn(*wanted_args)
        copied = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, None, fn.__closure__)
        got = jitmagic.jit(copied)(*args)
        assert not pending, "nothing was traced"
        assert plain(got) == plain(wanted), f"break at step {step}"
        assert plain(args) == plain(wanted_args), f"break at step {step}"
