"""Opcodes that only move stack entries, push constants, or do nothing for the machine."""

from __future__ import annotations

from ...bytecode.instruction import Instruction
from ..state import Frame
from ..values.base import Machine
from .registry import opcode

__all__: list[str] = []


@opcode("NOP", "NOT_TAKEN", "RESUME", "CACHE", "EXTENDED_ARG", "PRECALL", "COPY_FREE_VARS")
def nothing(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Do nothing: these do not change the model (free variables are in their slots already)."""


@opcode("POP_TOP", "POP_ITER")
def pop_top(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.pop_raw()


@opcode("END_FOR", since=(3, 12), until=(3, 12))
def end_for(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Pop the iterator and the last item; only reached without a jump, since FOR_ITER skips it."""
    del frame.stack[-2:]


# 3.13 pops once here and once in the POP_TOP that follows.
@opcode("END_FOR", since=(3, 13))
def end_for_313(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.pop_raw()


@opcode("PUSH_NULL")
def push_null(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.push(None)


@opcode("COPY")
def copy(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    # The same Value, not a copy: both entries are one object of the program.
    frame.push(frame.stack[-_int(instruction)])


@opcode("SWAP")
def swap(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    depth = _int(instruction)
    frame.stack[-1], frame.stack[-depth] = frame.stack[-depth], frame.stack[-1]


@opcode("LOAD_CONST")
def load_const(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    constant = instruction.arg
    if type(constant) is not tuple:
        frame.push(machine.constant(constant))
        return
    if id(constant) not in machine.literals:  # `t is t`: each load pushes the same tuple object
        machine.literals[id(constant)] = machine.constant(constant)
    frame.push(machine.literals[id(constant)])


def _int(instruction: Instruction) -> int:
    assert isinstance(instruction.arg, int)
    return instruction.arg
