"""Clocks read in a frame: `start = time.time(); ...; seconds = time.time() - start`.

A reading before the first tensor operation is read before the graph runs; it is a symbol without a
hint, since no guard can depend on it. A reading after the last one is read by Python after the
graph has run, so it measures the whole graph. A reading between two tensor operations is a graph
break.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.fx import Graph, Node

from ....symbols.interval import Interval
from ...breaks import GraphBreak, StatefulCall
from ...result import Recipe
from ...values.base import Args, Builder, CannotRebuild, Kwargs, Machine, Value
from ...values.numbers.number import unknown_number
from ...values.numbers.residual_calls import ResidualCall
from ..registry import handles

__all__: list[str] = []

Clock = Callable[[], Any]
_CLOCKS: tuple[Clock, ...] = (
    time.time, time.perf_counter, time.monotonic, time.process_time, time.thread_time,
    time.time_ns, time.perf_counter_ns, time.monotonic_ns, time.process_time_ns,
    time.thread_time_ns,
)  # fmt: skip
_LIMITS = {float: Interval(0.0, 2.0**53), int: Interval(0, 2**63 - 1)}


@dataclass(frozen=True, slots=True)
class EarlyReading:
    """The origin of the symbol of a reading before the graph: the index among the frame's draws."""

    index: int


class _ClockValue(Value):
    """The clock that an early reading calls."""

    __slots__ = ("clock",)

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def recipe(self, builder: Builder) -> Recipe:
        return builder.constant(self.clock)


class LateReading(ResidualCall):
    """A reading after the graph and after the late readings before it."""

    __slots__ = ()

    def __init__(self, clock: Clock, kind: type, before: list[Value]) -> None:
        super().__init__(kind, lambda *_: clock(), before[-1:])

    def operand(self, machine: Machine) -> Value:
        return self

    def waits(self) -> bool:
        return True


def _reads(clock: Clock) -> None:
    broken = GraphBreak(StatefulCall.of(name=f"time.{clock.__name__}"))
    kind = type(clock())

    @handles(clock)
    def read(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        graph = machine.graph
        origin = EarlyReading(machine.effects.drawn)
        if args or kwargs or graph is not graph.root or origin in machine.symbols.constants:
            raise broken
        last = _last_operation(graph.graph)
        if last is None:
            source = machine.effects.draw(_ClockValue(clock), operator.call, clock.__name__)
            return unknown_number(machine, origin, source, kind, _LIMITS[kind])
        made = LateReading(clock, kind, machine.effects.readings)
        machine.effects.readings.append(made)
        machine.at_exit(partial(_check_last, made, last, graph.graph, machine.step, broken))
        return made


def _last_operation(graph: Graph) -> Node | None:
    """Return the last node that computes with tensors of the program."""
    operations = (node for node in reversed(graph.nodes) if node.op.startswith("call"))
    return next((node for node in operations if not node.meta.get("python")), None)


def _check_last(
    reading: Value, last: Node, graph: Graph, born: int, broken: GraphBreak, builder: Builder
) -> None:
    """Raise CannotRebuild if operations after the reading would be measured before it."""
    if builder.is_live(reading) and _last_operation(graph) is not last:
        raise CannotRebuild("a reading of a clock", born, broken.reason)


for _clock in _CLOCKS:
    _reads(_clock)
