"""Generators in traced code: a suspended frame that is interpreted item by item.

Takes the frame of a generator function that was called, and returns the GeneratorValue, which
interprets the frame up to its next `yield` whenever an item is requested. `Machine.forget` releases
its closures, which refer to the generator itself.

CPython closes a dropped generator: it raises GeneratorExit at the `yield`. If no handler there does
anything visible, the trace may end without running them.
"""

from __future__ import annotations

from ..bytecode.instruction import Instruction, Intrinsic
from .state import Frame, Interpreter, Returned, Yielded
from .values.base import ObservedError, Value
from .values.containers.generators import GeneratorValue

__all__ = ["suspended"]

_AFTER_YIELD = 1  # RESUME's argument; it is 2 after `yield from`, which closes the inner one first
_PLACE = 3  # mask of these values: 3.13 puts a flag into the bit above them
_QUIET = frozenset(
    "PUSH_EXC_INFO LOAD_GLOBAL CHECK_EXC_MATCH POP_TOP POP_EXCEPT COPY RERAISE NOP NOT_TAKEN "
    "LOAD_CONST RETURN_VALUE RETURN_CONST".split()
)


def suspended(machine: Interpreter, frame: Frame) -> GeneratorValue:
    """Return the generator of a frame; the caller then runs it up to RETURN_GENERATOR."""

    def advance(sent: Value) -> Value | None:
        frame.push(sent)
        signal = machine.resume(frame)
        if isinstance(signal, Yielded):
            return signal.value
        assert isinstance(signal, Returned)
        generator.result = signal.value
        return None

    def must_close() -> bool:
        return frame.program.closes_at(frame.at) and not _closes_quietly(machine, frame)

    generator = GeneratorValue(machine, advance, must_close)
    return generator


def _closes_quietly(machine: Interpreter, frame: Frame) -> bool:
    """Return whether the handlers that catch GeneratorExit only test the type of the exception.

    The handlers are interpreted in `frame`, which cannot be used afterwards.
    """
    resume = frame.instruction
    if resume.op != "RESUME" or not isinstance(resume.arg, int):
        return False
    if resume.arg & _PLACE != _AFTER_YIELD:
        return False
    machine.frames.append(frame)
    try:
        machine.unwind(frame, machine.error(GeneratorExit))
        frame.at = frame.next
        while _is_quiet(frame.instruction):
            if isinstance(machine.execute(frame), Returned):
                return True
            frame.at = frame.next
        return False
    except ObservedError as observed:
        return bool(observed.error.python_type(machine) is GeneratorExit)
    finally:
        machine.frames.pop()


def _is_quiet(instruction: Instruction) -> bool:
    if instruction.op == "CALL_INTRINSIC_1":  # 3.12 on: the last handler of every generator
        return instruction.arg == Intrinsic.STOPITERATION_ERROR
    return instruction.op in _QUIET or instruction.op.startswith("POP_JUMP")
