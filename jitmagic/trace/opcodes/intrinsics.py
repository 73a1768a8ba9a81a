"""Intrinsic calls (3.12 and later): small helpers of the interpreter called by number."""

from __future__ import annotations

from ...bytecode.instruction import Instruction
from ..breaks import GraphBreak, UnsupportedOpcode
from ..state import Frame
from ..values.base import Machine
from ..values.containers.sequences import ListValue, TupleValue
from ..values.objects.exceptions import ExceptionValue
from .registry import opcode

__all__ = ["STOPITERATION_ERROR"]

# Numbers are stable from 3.12 to 3.14; a changed one is a break or a failed test, not another
# operation: each branch checks the operand's type.
STOPITERATION_ERROR, _LIST_TO_TUPLE = 3, 6  # pycore_intrinsics.h


@opcode("CALL_INTRINSIC_1", since=(3, 12))
def call_intrinsic_1(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    operand = frame.pop(machine)
    if instruction.arg == _LIST_TO_TUPLE and isinstance(operand, ListValue):
        frame.push(TupleValue(operand.items))
    elif instruction.arg == STOPITERATION_ERROR and isinstance(operand, ExceptionValue):
        # PEP 479: a StopIteration that leaves a generator body becomes a RuntimeError.
        if operand.matches(machine, StopIteration):
            raise machine.error(RuntimeError, "generator raised StopIteration")
        frame.push(operand)
    else:
        why = f"intrinsic {instruction.arg} is not modelled"
        raise GraphBreak(UnsupportedOpcode.of(opcode=instruction.op, why=why))


@opcode("CALL_INTRINSIC_2", since=(3, 12))
def call_intrinsic_2(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Break: these helpers are for exception groups and type parameters."""
    why = f"intrinsic {instruction.arg} is not modelled"
    raise GraphBreak(UnsupportedOpcode.of(opcode=instruction.op, why=why))
