"""Opcodes of `with` blocks; `Value.enter` models the context managers."""

from __future__ import annotations

from ...bytecode.instruction import Instruction
from ..state import Frame
from ..values.base import Machine, Value
from ..values.objects.exceptions import TracebackValue
from .registry import opcode

__all__: list[str] = []


@opcode("BEFORE_WITH", until=(3, 13))
def before_with(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    # CPython looks up both methods before it calls `__enter__`: an object without `__exit__` is
    # never entered.
    leave, entered = frame.pop(machine).enter(machine)
    frame.push(leave)
    frame.push(entered)


@opcode("BEFORE_WITH", since=(3, 14))
def before_with_314(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Enter; `__exit__` is bound, so a NULL is next to it where CPython may have its `self`."""
    leave, entered = frame.pop(machine).enter(machine)
    frame.push(leave)
    frame.push(None)
    frame.push(entered)


@opcode("WITH_EXCEPT_START", until=(3, 13))
def with_except_start(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Call `__exit__`; the stack holds it, lasti, the previous exception and the exception."""
    _leave_by_error(machine, frame, frame.peek(4, machine))


@opcode("WITH_EXCEPT_START", since=(3, 14))
def with_except_start_314(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Call `__exit__`, which has its NULL above it."""
    _leave_by_error(machine, frame, frame.peek(5, machine))


def _leave_by_error(machine: Machine, frame: Frame, leave: Value) -> None:
    error = frame.peek(1, machine)
    # `__exit__` takes the type, the exception and the traceback separately.
    kind = machine.constant(error.python_type(machine))
    frame.push(leave.call(machine, [kind, error, TracebackValue(machine)], {}))
