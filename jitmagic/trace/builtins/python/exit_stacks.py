"""contextlib.ExitStack: contexts entered one by one, left together in reverse order.

Its own code calls contexts through their classes and reads the exception being handled. Here the
contexts are entered and left as `with` does.
"""

from __future__ import annotations

import contextlib

from ...breaks import GraphBreak, UnsupportedArguments
from ...values.base import Args, Machine, ObservedError, Value
from ...values.containers.sequences import TupleValue
from ...values.objects.operators import is_none
from ..registry import handles

__all__: list[str] = []

_WAITING = "_exit_callbacks"


@handles(contextlib.ExitStack.enter_context.__code__)
def _enter_context(machine: Machine, _: Value, stack: Value, context: Value) -> Value:
    leave, entered = context.enter(machine)
    waiting = stack.get_attr(machine, _WAITING).realize(machine)
    # The deque holds CPython's pairs (is_sync, exit), because code that is inlined reads it too:
    # pop_all() moves it to a new stack.
    waiting.call_method(machine, "append", [TupleValue([machine.constant(True), leave])], {})
    return entered


@handles(contextlib.ExitStack.__exit__.__code__)
def _leave_all(machine: Machine, _: Value, stack: Value, *raised: Value) -> bool:
    details: Args = raised
    waiting = stack.get_attr(machine, _WAITING).realize(machine)
    nothing = machine.constant(None)
    is_handled = is_none(details[0])
    while waiting.length(machine):
        entry = waiting.call_method(machine, "pop", [], {}).realize(machine)
        leave = entry.get_item(machine, machine.constant(1)).realize(machine)
        try:
            ended = leave.call(machine, details, {}).realize(machine)
        except ObservedError:
            # CPython rewrites the `__context__` of such an exception, so that it looks as if it
            # came from nested `with` statements.
            what = "a context that raises when it is left"
            raise GraphBreak(UnsupportedArguments.of(name="ExitStack", what=what)) from None
        if ended.truth(machine):
            # The exception is suppressed: the contexts around this one are left without it.
            details = [nothing, nothing, nothing]
    return not is_handled and is_none(details[0])
