"""Opcodes of operators, comparisons and membership."""

from __future__ import annotations

from ...bytecode.instruction import Instruction
from ..state import Frame
from ..values.base import Machine
from ..values.containers.text_inputs import joined_text
from ..values.objects.operators import binary, compare, inplace, is_same
from .registry import opcode

__all__: list[str] = []


@opcode("BINARY_OP")
def binary_op(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    op = str(instruction.arg)
    upper, lower = frame.pop_lazy(), frame.pop_lazy()
    # Before the operands are realized, which would guard the text of this call.
    if op[0] == "+" and (text := joined_text(machine, (lower, upper))) is not None:
        frame.push(text)
        return
    left, right = lower.realize(machine), upper.realize(machine)
    # BINARY_OP has numbers for both forms; `arg` is the operator's sign: `+` or `+=`.
    if op.endswith("="):
        frame.push(inplace(machine, op[:-1], left, right))
    else:
        frame.push(binary(machine, op, left, right))


@opcode("COMPARE_OP")
def compare_op(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    left, right = frame.pop_pair(machine)
    result = compare(machine, str(instruction.arg), left, right)
    if instruction.flag:  # 3.13: converts the result to bool
        result = machine.constant(result.realize(machine).truth(machine))
    frame.push(result)


@opcode("IS_OP")
def is_op(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    left, right = frame.pop_pair(machine)
    frame.push(machine.constant(is_same(machine, left, right) != bool(instruction.arg)))


@opcode("CONTAINS_OP")
def contains_op(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    container = frame.pop(machine)
    result = container.contains_lazily(machine, frame.pop_lazy())
    if instruction.arg:
        result = machine.constant(not result.realize(machine).truth(machine))
    frame.push(result)


@opcode("UNARY_NEGATIVE")
def unary_negative(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.pop(machine).unary(machine, "-"))


# 3.12 made it an intrinsic (intrinsics.py).
@opcode("UNARY_POSITIVE", until=(3, 11))
def unary_positive(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.pop(machine).unary(machine, "+"))


@opcode("UNARY_INVERT")
def unary_invert(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.pop(machine).unary(machine, "~"))


@opcode("UNARY_NOT")
def unary_not(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.push(machine.constant(not frame.pop(machine).truth(machine)))
