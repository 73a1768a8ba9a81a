"""Forced breaks (forcing.py) in compiled programs, called as users call them."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from jitmagic.bytecode.snapshot import FrameSnapshot
from jitmagic.options import Options
from jitmagic.trace.assumptions import Assumptions
from jitmagic.trace.machine import trace
from jitmagic.trace.restarts import Stop
from jitmagic.trace.result import Trace

from .agreement import plain
from .forcing import break_anywhere
from .library_programs import PROGRAMS

pytest.importorskip("jitmagic._frame")
jitmagic = pytest.importorskip("jitmagic")
tracing = pytest.importorskip("jitmagic.compile.tracing")

TRIES = 7  # steps tried per program


@pytest.mark.filterwarnings("ignore::jitmagic.errors.RecompileWarning")  # loops with a break inside
@pytest.mark.parametrize(("fn", "make"), PROGRAMS, ids=[fn.__name__ for fn, _ in PROGRAMS])
def test_break_anywhere(
    fn: Callable[..., Any], make: Callable[[], tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    if fn.__defaults__:
        pytest.skip("keeps state between calls")

    def compiled(fn: FunctionType, args: tuple, first: Stop) -> Any:
        pending = [first]

        def traced(
            snapshot: FrameSnapshot, options: Options, stop: None, assumed: Assumptions
        ) -> Trace:
            return trace(snapshot, options, pending.pop() if pending else stop, assumed)

        monkeypatch.setattr(tracing, "trace", traced)
        got = jitmagic.jit(fn)(*args)
        assert not pending, "nothing was traced"
        return got

    break_anywhere(fn, make, TRIES, compiled)


def while_of_numbers(n):
    i = total = 0
    while i < n:
        total = total + i
        i = i + 1
    return total, i


def while_around_the_items_of_a_list(xs):
    a, b = 1, 2
    out = []
    while xs:
        a, b = b, a + xs.pop()
        out.append(a)
    return out, xs


def while_on_top_of_an_iterator(groups, n):
    total = 0
    for group in groups:
        i = group
        while i < n:
            total = total + i
            i += 1
    return total


def for_over_pairs(pairs):
    out = []
    for first, second in pairs:
        out.append(first - second)
    return out


LOOPS: list[tuple[Callable[..., Any], Callable[[], tuple]]] = [
    (while_of_numbers, lambda: (100,)),
    (while_around_the_items_of_a_list, lambda: (list(range(100)),)),
    (while_on_top_of_an_iterator, lambda: ([0, 60], 100)),
    (for_over_pairs, lambda: ([(i, i * i) for i in range(100)],)),
]


@pytest.mark.filterwarnings("ignore::jitmagic.errors.RecompileWarning")  # each round is another one
@pytest.mark.parametrize(("fn", "make"), LOOPS, ids=[fn.__name__ for fn, _ in LOOPS])
def test_loops_too_long_to_unroll_break_in_their_second_iteration(
    fn: Callable[..., Any], make: Callable[[], tuple]
) -> None:
    args, wanted_args = make(), make()
    got = jitmagic.jit(fn, options={"unroll_limit": 200, "on_error": "raise"})(*args)
    assert plain(got) == plain(fn(*wanted_args))
    assert plain(args) == plain(wanted_args)
