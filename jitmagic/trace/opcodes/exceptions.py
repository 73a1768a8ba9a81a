"""Opcodes of raising and handling exceptions."""

from __future__ import annotations

from ...bytecode.instruction import Instruction
from ..breaks import GraphBreak, UnsupportedOperation
from ..state import Frame, Interpreter
from ..values.base import Machine, ObservedError, Value
from ..values.containers.sequences import TupleValue
from ..values.objects.class_facts import guard_bases
from ..values.objects.classes import ClassValue
from ..values.objects.exceptions import ExceptionValue
from .registry import opcode

__all__: list[str] = []


@opcode("RAISE_VARARGS")
def raise_varargs(machine: Interpreter, frame: Frame, instruction: Instruction) -> None:
    assert isinstance(instruction.arg, int)
    parts = frame.pop_many(instruction.arg)
    if not parts:
        # A bare `raise` looks through all frames for the exception that is being handled.
        handled = machine.handled()
        if handled is None:
            raise machine.error(RuntimeError, "No active exception to reraise")
        raise ObservedError(handled)
    raise ObservedError(_exception(machine, parts[0].realize(machine)))


def _exception(machine: Machine, value: Value) -> Value:
    """Return the exception to raise; a class is called."""
    # `raise Error` without parentheses calls the class, so its `__init__` is traced as well.
    if isinstance(value, ClassValue):
        value = value.call(machine, [], {}).realize(machine)
    if not isinstance(value, ExceptionValue):
        raise GraphBreak(UnsupportedOperation.of(what="raise", types=value.describe()))
    return value


@opcode("RERAISE")
def reraise(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    # The instruction's argument, the position to restore in `f_lasti`, has no meaning for a trace.
    raise ObservedError(frame.pop(machine))


@opcode("PUSH_EXC_INFO")
def push_exc_info(machine: Interpreter, frame: Frame, instruction: Instruction) -> None:
    error = frame.pop_lazy()
    # POP_EXCEPT restores this entry as the exception being handled.
    frame.push(machine.handled() or machine.constant(None))
    frame.push(error)
    frame.handling.append(error)


@opcode("POP_EXCEPT")
def pop_except(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.pop_raw()
    frame.handling.pop()


@opcode("CHECK_EXC_MATCH")
def check_exc_match(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    wanted = frame.pop(machine)
    error = frame.peek(1, machine)
    frame.push(machine.constant(_matches(machine, error, wanted)))


def _matches(machine: Machine, error: Value, wanted: Value) -> bool:
    if isinstance(wanted, TupleValue):
        return any(_matches(machine, error, one) for one in wanted.realized(machine))
    if not isinstance(wanted, ClassValue) or BaseException not in wanted.live.__mro__:
        message = "catching classes that do not inherit from BaseException is not allowed"
        raise machine.error(TypeError, message)
    # A class may get other bases (`__bases__` is writable), which changes what it catches.
    guard_bases(machine, wanted.live)
    assert isinstance(error, ExceptionValue)
    return error.matches(machine, wanted.live)
