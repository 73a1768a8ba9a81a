"""Opcodes of `with` blocks; `Value.enter` models the context managers."""

from __future__ import annotations

from ...bytecode.instruction import Instruction
from ..state import Frame
from ..values.base import Machine
from ..values.objects.exceptions import TracebackValue
from .registry import opcode

__all__: list[str] = []


@opcode("BEFORE_WITH")
def before_with(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    # CPython looks up both methods before it calls `__enter__`: an object without `__exit__` is
    # never entered.
    leave, entered = frame.pop(machine).enter(machine)
    frame.push(leave)
    frame.push(entered)


@opcode("WITH_EXCEPT_START")
def with_except_start(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Call `__exit__`; the stack holds it, lasti, the previous exception and the exception."""
    error = frame.peek(1, machine)
    leave = frame.peek(4, machine)
    # `__exit__` takes the type, the exception and the traceback separately.
    kind = machine.constant(error.python_type(machine))
    frame.push(leave.call(machine, [kind, error, TracebackValue(machine)], {}))
