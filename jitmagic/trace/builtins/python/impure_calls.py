"""Calls that read or change something outside of the program: clocks, logs, output.

A clock that is read before the first tensor operation is read before the graph runs; the reading
is a symbol without a hint, since no guard can depend on it. A clock that is read after the last
one is read by Python after the graph has run; a reading between two operations is a graph break.

Messages of an enabled logger, and warnings, are effects: Python consults handlers, filters and
registries after the graph has run. That the logger is enabled is guarded. Other calls break, with a
more specific reason than UnknownCFunction.
"""

from __future__ import annotations

import builtins
import logging
import operator
import random
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial

from torch.fx import Graph, Node

from ....call_warnings import raises_warnings
from ....compat.flags import log_api_usage_once
from ....symbols.interval import Interval
from ...breaks import GraphBreak, PrintCall, Reason, StatefulCall, UnsupportedArguments
from ...residual_calls import warn_at
from ...values.base import Args, Builder, CannotRebuild, Kwargs, Machine, Value
from ...values.numbers.number import drawn_number, is_next_draw_constant
from ...values.numbers.residual_calls import ResidualCall
from ...values.objects.callables import name_of
from ...values.objects.classes import ClassValue
from ...values.objects.opaque import HiddenValue
from ...values.objects.operators import is_none
from ..registry import AS_GIVEN, calls, handles

__all__: list[str] = []


# -- clocks ----------------------------------------------------------------------------------------


Clock = Callable[[], object]
_CLOCKS: tuple[Clock, ...] = (
    time.time, time.perf_counter, time.monotonic, time.process_time, time.thread_time,
    time.time_ns, time.perf_counter_ns, time.monotonic_ns, time.process_time_ns,
    time.thread_time_ns,
)  # fmt: skip
# time_ns() reaches 2**63 in the year 2262.
_LIMITS = {float: Interval(0.0, 2.0**53), int: Interval(0, 2**63 - 1)}


class LateReading(ResidualCall):
    """A reading after the graph and after the late readings before it."""

    __slots__ = ()

    def __init__(self, clock: Clock, kind: type, before: list[Value]) -> None:
        # Depends on the reading before it: swapped readings would give a negative duration.
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
        # A reading that an earlier attempt needed as a constant (it was compared, say) is a break:
        # a guard on it would fail in each call.
        if args or kwargs or graph is not graph.root or is_next_draw_constant(machine):
            raise broken
        last = _last_operation(graph.graph)
        if last is None:
            called = HiddenValue(lambda builder: builder.constant(clock))
            source = machine.effects.draw(called, operator.call, clock.__name__)
            return drawn_number(machine, source, kind, _LIMITS[kind])
        made = LateReading(clock, kind, machine.effects.readings)
        machine.effects.readings.append(made)
        machine.at_exit(partial(_check_last, made, last, graph.graph, machine.step, broken))
        return made


def _last_operation(graph: Graph) -> Node | None:
    """Return the last node that computes with tensors of the program."""
    operations = (node for node in reversed(graph.nodes) if node.op.startswith("call"))
    return next((node for node in operations if not node.meta.get("python")), None)


def _check_last(
    reading: Value,
    last: Node,
    graph: Graph,
    created_at_step: int,
    broken: GraphBreak,
    builder: Builder,
) -> None:
    """Raise CannotRebuild if operations after the reading would be measured before it."""
    if builder.is_live(reading) and _last_operation(graph) is not last:
        raise CannotRebuild("a reading of a clock", created_at_step, broken.reason)


for _clock in _CLOCKS:
    _reads(_clock)


# -- logs and warnings -----------------------------------------------------------------------------


@handles(logging.Logger.isEnabledFor)
def _is_enabled_for(machine: Machine, logger: Value, level: Value) -> object:
    """Model the method, without its cache of the result."""
    # CPython fills the cache under the lock of the logging module. A trace that did so would have
    # an effect and a lock to replay; the guards on the levels suffice.
    if logger.get_attr(machine, "disabled").realize(machine).truth(machine):
        return False
    known = logger.get_attr(machine, "_cache").realize(machine)
    if known.contains(machine, level).truth(machine):
        return known.get_item(machine, level)
    manager = logger.get_attr(machine, "manager").realize(machine)
    least = manager.get_attr(machine, "disable").realize(machine).as_constant(machine)
    wanted = level.as_constant(machine)
    if least >= wanted:
        return False
    effective = logger.call_method(machine, "getEffectiveLevel", [], {}).realize(machine)
    return wanted >= effective.as_constant(machine)


def _perform(function: object, machine: Machine, *args: Value, **kwargs: Value) -> None:
    """Call the function after the graph has run."""
    machine.effects.perform(machine.constant(function), args, kwargs)


# Every message of a logger passes through `_log`; torch logs each use of its API only once.
calls({one: partial(_perform, one) for one in (logging.Logger._log, log_api_usage_once)})


@handles(warnings.warn, like=AS_GIVEN)  # since Python 3.12 `inspect` finds no signature of it
def _warn(
    machine: Machine, message: Value, category: Value | None = None, stacklevel: Value | None = None
) -> None:
    """Warn at the line that `stacklevel` names, which must be a traced one."""
    level = 1 if stacklevel is None else stacklevel.as_constant(machine)
    if category is None or is_none(category):
        category = machine.constant(UserWarning)
    # stacklevel counts Python frames. One above the root belongs to the caller, which may be
    # another one in the next call.
    if (
        not message.is_constant(machine)
        or not 0 < level <= len(machine.frames)
        or not _is_only_said(category)
    ):
        what = "not a plain warning at a traced line"
        raise GraphBreak(UnsupportedArguments.of(name="warnings.warn", what=what))
    frame = machine.frames[-level]
    line = frame.line()
    position = (machine.constant(line.filename), machine.constant(line.lineno), frame.globals)
    machine.effects.perform(machine.constant(warn_at), (message, category, *position))


def _is_only_said(category: Value) -> bool:
    return isinstance(category, ClassValue) and not raises_warnings(category.live)


# -- calls that break ------------------------------------------------------------------------------


_OUTPUT: tuple[object, ...] = (builtins.print, builtins.input, builtins.open)
_CHANGING: tuple[object, ...] = (
    builtins.locals, builtins.dir, builtins.eval,
    builtins.exec, builtins.compile, builtins.__import__, sys._getframe, sys.exc_info,
    time.sleep, random.random, random.getrandbits,
)  # fmt: skip


def _register_break(function: object, reason: type[Reason]) -> None:
    @handles(function, lazy=True)
    def leave(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        raise GraphBreak(reason.of(name=name_of(function)))


for _function in _OUTPUT:
    _register_break(_function, PrintCall)
for _function in _CHANGING:
    _register_break(_function, StatefulCall)
