"""Substitutes values for the symbolic sizes of a program.

In: a LoopProgram whose buffers have Sizes, and the values of the symbols. Out: the same program
with numbers for the shapes, strides and offsets of its buffers and for the arguments of its extern
calls. The nests keep their Sizes: their kernels take the values as arguments.
"""

from __future__ import annotations

from dataclasses import replace

from ..symbols.expr import Expr
from ..symbols.size import Size, value_of
from .ir import Alias, Buffer, Extern, LoopProgram, Step

__all__ = ["has_dynamic_sizes", "is_dynamic", "with_sizes"]


def is_dynamic(program: LoopProgram) -> bool:
    """Return whether the program has dynamic sizes."""
    return any(map(has_dynamic_sizes, program.buffers.values()))


def has_dynamic_sizes(buffer: Buffer) -> bool:
    """Return whether the buffer's shape or strides are dynamic."""
    return any(isinstance(size, Size) for size in (*buffer.shape, *buffer.stride))


def with_sizes(program: LoopProgram, known: dict[Expr, int]) -> LoopProgram:
    """Substitute the symbols' values in `known`, to which computed expressions are added."""
    buffers = {name: _buffer(buffer, known) for name, buffer in program.buffers.items()}
    steps = tuple(_step(step, known) for step in program.steps)
    return replace(program, buffers=buffers, steps=steps)


def _buffer(buffer: Buffer, known: dict[Expr, int]) -> Buffer:
    if not has_dynamic_sizes(buffer):
        return buffer
    shape = tuple(value_of(size, known) for size in buffer.shape)
    stride = tuple(value_of(size, known) for size in buffer.stride)
    return Buffer(buffer.name, shape, stride, buffer.dtype, buffer.device, buffer.role)


def _step(step: Step, known: dict[Expr, int]) -> Step:
    match step:
        case Alias(name, base, Size() as offset):
            return Alias(name, base, value_of(offset, known))
        case Extern():
            args, kwargs = step.mapped(lambda item: value_of(item, known))
            functions = tuple(one and with_sizes(one, known) for one in step.functions)
            return replace(step, args=args, kwargs=kwargs, functions=functions)
    return step
