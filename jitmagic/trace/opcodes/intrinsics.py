"""Intrinsic calls (3.12 and later): small helpers of the interpreter called by number."""

from __future__ import annotations

from ...bytecode.instruction import Instruction, Intrinsic
from ..breaks import GraphBreak, UnsupportedOpcode
from ..state import Frame
from ..values.base import Machine
from ..values.containers.sequences import ListValue, TupleValue
from ..values.objects.exceptions import ExceptionValue
from .registry import opcode

__all__: list[str] = []


@opcode("CALL_INTRINSIC_1", since=(3, 12))
def call_intrinsic_1(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    operand = frame.pop(machine)
    # Each branch checks the operand's type: in a Python that numbers them otherwise it breaks.
    if instruction.arg == Intrinsic.UNARY_POSITIVE:
        frame.push(operand.unary(machine, "+"))
    elif instruction.arg == Intrinsic.LIST_TO_TUPLE and isinstance(operand, ListValue):
        frame.push(TupleValue(operand.items))
    elif instruction.arg == Intrinsic.STOPITERATION_ERROR and isinstance(operand, ExceptionValue):
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
