"""Opcodes of jumps, loops, returns and yields."""

from __future__ import annotations

from ...bytecode.instruction import Instruction
from ...bytecode.versions import RUNNING
from ..python_loops.plain import go_back
from ..state import Frame, Returned, Yielded
from ..values.base import Machine, Value
from ..values.containers.generators import GeneratorValue
from ..values.objects.operators import is_none
from .registry import opcode

__all__: list[str] = []


@opcode("JUMP_FORWARD")
def jump(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.jump(instruction.target)


@opcode("JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
# Every iteration passes here: `go_back` counts them, and decides whether a loop is left to Python.
def jump_backward(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    go_back(machine, frame, instruction)


def _branch(machine: Machine, frame: Frame, instruction: Instruction, taken: bool) -> None:
    # 3.11 has conditional backward jumps; later versions jump back in JUMP_BACKWARD only.
    if taken and "BACKWARD" in instruction.op:
        go_back(machine, frame, instruction)
    elif taken:
        frame.jump(instruction.target)


@opcode("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE")
def pop_jump_if_true(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    _branch(machine, frame, instruction, frame.pop(machine).truth(machine))


@opcode("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE")
def pop_jump_if_false(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    _branch(machine, frame, instruction, not frame.pop(machine).truth(machine))


@opcode("POP_JUMP_IF_NONE", "POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE")
def pop_jump_if_none(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    _branch(machine, frame, instruction, is_none(frame.pop(machine)))


@opcode("POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE")
def pop_jump_if_not_none(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    _branch(machine, frame, instruction, not is_none(frame.pop(machine)))


@opcode("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP", until=(3, 11))
def jump_or_pop(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Jump and keep the top, or pop it; 3.12 replaced these by COPY, POP_JUMP and POP_TOP."""
    wanted = instruction.op == "JUMP_IF_TRUE_OR_POP"
    # The value itself is the result of `a or b`, not its truth.
    if frame.peek(1, machine).truth(machine) == wanted:
        frame.jump(instruction.target)
    else:
        frame.pop_raw()


@opcode("TO_BOOL", since=(3, 13))
def to_bool(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    # The jump that follows in 3.13 requires an exact bool.
    frame.push(machine.constant(frame.pop(machine).truth(machine)))


@opcode("GET_ITER")
def get_iter(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.pop(machine).iterate(machine))


@opcode("GET_YIELD_FROM_ITER")
def get_yield_from_iter(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    # A generator is its own iterator; coroutines, which CPython also accepts here, are never
    # traced.
    frame.push(frame.pop(machine).iterate(machine))


@opcode("FOR_ITER")
def for_iter(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    item = frame.peek(1, machine).next(machine)
    if item is not None:
        frame.push(item)
        return
    frame.pop_raw()
    frame.jump(instruction.target)
    # From 3.12 on the target is END_FOR (and POP_TOP in 3.13), which FOR_ITER has done already.
    frame.next += len(RUNNING.loop_landing)


@opcode("RETURN_VALUE")
def return_value(machine: Machine, frame: Frame, instruction: Instruction) -> Returned:
    # The caller may drop the result: it stays unread until somewhere a guard on it is needed.
    return Returned(frame.pop_lazy())


@opcode("RETURN_CONST", since=(3, 12))
def return_const(machine: Machine, frame: Frame, instruction: Instruction) -> Returned:
    return Returned(machine.constant(instruction.arg))


@opcode("RETURN_GENERATOR")
def return_generator(machine: Machine, frame: Frame, instruction: Instruction) -> Yielded:
    """Suspend the frame before its body; the first value sent in is dropped."""
    # CPython resumes a new generator with None, which POP_TOP then drops.
    return Yielded(machine.constant(None))


@opcode("YIELD_VALUE")
def yield_value(machine: Machine, frame: Frame, instruction: Instruction) -> Yielded:
    return Yielded(frame.pop_lazy())


@opcode("SEND", until=(3, 11))
def send(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Execute `yield from`; the sent value is on top of the inner iterator."""
    if not _sent(machine, frame):
        del frame.stack[-2]
        frame.jump(instruction.target)


@opcode("SEND", since=(3, 12))
def send_312(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Execute `yield from`; the inner iterator stays for END_SEND."""
    if not _sent(machine, frame):
        frame.jump(instruction.target)


def _sent(machine: Machine, frame: Frame) -> bool:
    """Advance the inner iterator; its item or final result replaces the sent value."""
    sent = frame.pop(machine)
    # The result is read after the advance: it is set by the generator's `return`.
    item, result = _advance(machine, frame.peek(1, machine), sent)
    frame.push(result if item is None else item)
    return item is not None


def _advance(machine: Machine, inner: Value, sent: Value) -> tuple[Value | None, Value]:
    """Return the next item, or the value of `yield from` once the iterator is exhausted."""
    # Only generators receive sent values and have a result; other iterators are advanced.
    if isinstance(inner, GeneratorValue):
        return inner.send(machine, sent), inner.result
    return inner.next(machine), machine.constant(None)


@opcode("END_SEND", since=(3, 12))
def end_send(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Drop the receiver below the result."""
    del frame.stack[-2]
