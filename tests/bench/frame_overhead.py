"""What the frame package costs per call. Run: python -m tests.bench.frame_overhead

Interleaved, medians of rounds, nanoseconds: an empty Python call; the same through stub and
dispatcher; with two tensor guards; with the thread's state on top; through a tagged module; and
call-heavy Python that nobody tagged, before and after functions were tagged, and while one runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from jitmagic import _frame
from jitmagic.bytecode import call_stub
from jitmagic.frame.family import Compiler
from jitmagic.frame.native import Dispatcher, Entry, GuardProgram, lower_guards
from jitmagic.frame.tag import tag
from jitmagic.guards.guard import GlobalState, Guard, TensorMatch
from jitmagic.guards.source import Argument
from jitmagic.guards.state import read_state
from jitmagic.options import make_options
from jitmagic.records import Eager
from jitmagic.spec import spec_of

ROUNDS, CALLS = 15, 20_000


def empty(x: Any, y: Any) -> None:
    return None


def fib(n: int) -> int:
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def match(index: int, tensor: torch.Tensor) -> TensorMatch:
    keys = torch._C._dispatch_keys(tensor).raw_repr()
    return TensorMatch(Argument(index, "xy"[index]), spec_of(tensor), keys)


def dispatched(guards: tuple[Guard, ...]) -> Callable[..., Any]:
    """`empty` behind a dispatcher with one graph entry that does nothing."""

    def fail(*args: Any) -> Any:
        raise AssertionError("the guards do not hold")

    sources = (Argument(0, "x"), Argument(1, "y"))
    steps, registers = lower_guards(guards, sources, {}, {})
    made = Dispatcher("empty", 2, fail, fail)
    made.add(Entry(GuardProgram(steps), lambda *tensors: (), registers, ("const", None)))
    return FunctionType(call_stub(empty.__code__, made), globals(), "empty")


def nanoseconds(call: Callable[[], object], calls: int) -> float:
    started = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - started) / calls


def interleaved(cases: dict[str, Callable[[], object]], calls: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, call in cases.items():
            times[name].append(nanoseconds(call, calls))
    return {name: statistics.median(values) for name, values in times.items()}


def calls() -> None:
    x, y = torch.randn(8, 64), torch.randn(8, 64)
    run = lambda *tensors: ()  # noqa: E731 - what every entry below runs
    bare, tensors = dispatched(()), dispatched((match(0, x), match(1, y)))
    state = dispatched((match(0, x), match(1, y), GlobalState(read_state())))
    cases = {
        "empty Python call": lambda: empty(x, y),
        "what the entries run": lambda: run(x, y),
        "stub + dispatcher": lambda: bare(x, y),
        "  + 2 tensor guards": lambda: tensors(x, y),
        "  + thread state": lambda: state(x, y),
    }
    found = interleaved(cases, CALLS)
    floor = found["what the entries run"]
    for name, value in found.items():
        print(f"{name:28} {value:8.1f} ns   {value - floor:+8.1f} over what it runs")


def untagged_code() -> None:
    def tagged_loop(n: int) -> int:
        return fib(n)

    compiler = Compiler(lambda handle, snapshot, record: Eager("a benchmark"))
    tagged = tag(tagged_loop, make_options(), compiler)
    before = interleaved({"fib": lambda: fib(15)}, 20)["fib"]
    tagged(15)
    cases = {"fib": lambda: fib(15), "inside": lambda: tagged(15)}
    after = interleaved(cases, 20)
    assert _frame.active() == 0
    print(f"\n{'untagged calls, before':28} {before / 1973:8.1f} ns per call")
    print(f"{'untagged calls, after':28} {after['fib'] / 1973:8.1f} ns per call")
    print(f"{'callees of an eager function':28} {after['inside'] / 1973:8.1f} ns per call (hooked)")


if __name__ == "__main__":
    calls()
    untagged_code()
