"""streaks: what a short call takes in a loop, compiled and eager.

Comes in: the two entries, once the compiled one is kept. Goes out: `Measured`. A call of a few
microseconds takes 1.5 times as long where Python of ours ran just before it (what is asked and told
around each call of a comparison), so a few calls in a row run the same entry and are timed natively
with nothing between them. What the clock does not see is measured once in a process and added, as
a caller waits for it: the way through the stub to the dispatcher (0.1 us), and, for eager too, that
a result is freed (0.15 us).
Invariant: each call runs once, as the one or as the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from itertools import repeat
from statistics import median
from types import FunctionType

import torch

from ...bytecode import call_stub
from ...records import Measured
from ..native import Dispatcher, Entry, GuardProgram, Streak

__all__ = ["MOST_SECONDS", "Streaks", "entry_cost"]

MOST_SECONDS = 100e-6  # of an eager call: what runs before a longer one is less than 5 % of it
CALLS = 12  # in a row, of which the first still meet what ran before
TURNS = 3  # of each entry
_LOOPS, _ROUNDS = 7, 200  # that tell what an entry costs: 0.3 ms


class Streaks:
    """The calls after a comparison; `told` gets what they took."""

    def __init__(self, compiled: Entry, eager: Entry, told: Callable[[Measured], None]) -> None:
        self._compiled, self._eager, self._told = compiled, eager, told
        self._taken: list[list[int]] = []

    def start(self) -> None:
        """From the next call on."""
        entry = self._compiled if len(self._taken) % 2 else self._eager
        self._compiled.comparison = Streak(entry, CALLS, self._end)

    def _end(self, taken: list[int]) -> None:
        self._taken.append(taken)
        if len(self._taken) < 2 * TURNS:
            self.start()
            return
        self._compiled.comparison = None
        eager, compiled = _seconds(self._taken[0::2]), _seconds(self._taken[1::2])
        self._told(Measured(compiled + entry_cost(), eager, CALLS * TURNS))


def _seconds(streaks: list[list[int]]) -> float:
    """Of a call that gives one tensor."""
    return median([taken * 1e-9 for streak in streaks for taken in streak]) + freeing_cost()


@cache
def freeing_cost() -> float:
    """Seconds for a small tensor that nothing refers to any more."""
    return min(_freed() for _ in repeat(None, _LOOPS)) / _ROUNDS


def _freed() -> float:
    results = [torch.empty(8) for _ in repeat(None, _ROUNDS)]
    started = time.perf_counter()
    results.clear()
    return time.perf_counter() - started


@cache
def entry_cost() -> float:
    """Seconds from a caller to the dispatcher and back, of a function with two parameters."""
    dispatcher = Dispatcher("entry_cost", 2, _refused, _refused)
    dispatcher.add(Entry(GuardProgram(()), tuple, (), ("const", None)))
    stub = FunctionType(call_stub(_two_parameters.__code__, dispatcher), {})
    calling, empty = (min(map(loop, repeat(stub, _LOOPS))) for loop in (_calls, _nothing))
    return max(0.0, (calling - empty) / _ROUNDS)


def _two_parameters(first: object, second: object) -> None: ...


def _refused(*args: object) -> None:
    raise AssertionError("there are no guards that could refuse a call")


def _calls(stub: FunctionType) -> float:
    started = time.perf_counter()
    for _ in repeat(None, _ROUNDS):
        stub(None, None)
    return time.perf_counter() - started


def _nothing(stub: FunctionType) -> float:
    started = time.perf_counter()
    for _ in repeat(None, _ROUNDS):
        pass
    return time.perf_counter() - started
