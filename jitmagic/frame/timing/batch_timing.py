"""Times short calls in batches, compiled and eager.

Input: the two entries, after the comparison chose the compiled one. Output: `Measured`. A call of a
few microseconds takes 1.5 times as long if jitmagic's Python ran just before it (the bookkeeping
around each call of a comparison). So a few consecutive calls run the same entry and are timed
natively with nothing between them. Two costs outside this clock are measured once per process and
added: from the stub to the dispatcher (0.1 us) and, for eager too, freeing the result (0.15 us).
Invariant: each call runs exactly once, on one side.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from itertools import repeat
from types import FunctionType

import torch

from ...bytecode import call_stub
from ...figures import median
from ...records import Measured
from ..native import CallBatch, Dispatcher, Entry, GuardProgram

__all__ = ["MOST_SECONDS", "BatchTiming", "entry_cost"]

MOST_SECONDS = 100e-6  # of an eager call: for longer ones the bookkeeping costs less than 5 %
CALLS = 12  # per batch; the first still run with cold caches
TURNS = 3  # batches of each entry
_LOOPS, _ROUNDS = 7, 200  # to measure the cost of an entry: 0.3 ms


class BatchTiming:
    """Times the calls after a comparison in batches; passes the result to `done`."""

    def __init__(self, compiled: Entry, eager: Entry, done: Callable[[Measured], None]) -> None:
        self._compiled, self._eager, self._done = compiled, eager, done
        self._taken: list[list[int]] = []
        self._outside: list[float] = []  # seconds outside of compiled graphs, of compiled calls

    def start(self) -> None:
        """Begin a batch with the next call."""
        entry = self._compiled if len(self._taken) % 2 else self._eager
        self._compiled.comparison = CallBatch(entry, CALLS, self._end)

    def _end(self, taken: list[int], in_graphs: list[int]) -> None:
        if len(self._taken) % 2:
            pairs = zip(taken, in_graphs, strict=True)
            self._outside += [(whole - within) * 1e-9 for whole, within in pairs]
        self._taken.append(taken)
        if len(self._taken) < 2 * TURNS:
            self.start()
            return
        self._compiled.comparison = None
        eager, compiled = _seconds(self._taken[0::2]), _seconds(self._taken[1::2])
        outside = median(self._outside)
        self._done(Measured(compiled + entry_cost(), eager, CALLS * TURNS, outside))


def _seconds(batches: list[list[int]]) -> float:
    """Return the median time per call, including freeing one result tensor."""
    return median([taken * 1e-9 for batch in batches for taken in batch]) + freeing_cost()


@cache
def freeing_cost() -> float:
    """Return the seconds that it takes to free a small tensor."""
    return min(_freed() for _ in repeat(None, _LOOPS)) / _ROUNDS


def _freed() -> float:
    results = [torch.empty(8) for _ in repeat(None, _ROUNDS)]
    started = time.perf_counter()
    results.clear()
    return time.perf_counter() - started


@cache
def entry_cost() -> float:
    """Return the seconds from a caller to the dispatcher and back, for two parameters."""
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
