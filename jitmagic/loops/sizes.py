"""Sizes of a program filled in: what does not depend on them stays as it is.

Comes in: a LoopProgram whose buffers have Sizes, and the values of the symbols. Goes out: the same
program with numbers for the shapes, strides and offsets of its buffers and for the arguments of its
extern calls. The nests keep their Sizes: they are kernels that take the values as arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..symbols.expr import Expr
from ..symbols.size import Size, value_of
from .ir import Alias, Buffer, Extern, LoopProgram, Step

__all__ = ["has_sizes", "is_sized", "with_sizes"]


def is_sized(program: LoopProgram) -> bool:
    """Whether sizes of the program differ from call to call."""
    return any(map(has_sizes, program.buffers.values()))


def has_sizes(buffer: Buffer) -> bool:
    """Whether how it lies differs from call to call."""
    return any(isinstance(size, Size) for size in (*buffer.shape, *buffer.stride))


def with_sizes(program: LoopProgram, known: dict[Expr, int]) -> LoopProgram:
    """`known` has the values of the symbols; expressions are added to it."""
    buffers = {name: _buffer(buffer, known) for name, buffer in program.buffers.items()}
    steps = tuple(_step(step, known) for step in program.steps)
    return replace(program, buffers=buffers, steps=steps)


def _buffer(buffer: Buffer, known: dict[Expr, int]) -> Buffer:
    if not has_sizes(buffer):
        return buffer
    shape = tuple(value_of(size, known) for size in buffer.shape)
    stride = tuple(value_of(size, known) for size in buffer.stride)
    return Buffer(buffer.name, shape, stride, buffer.dtype, buffer.device, buffer.role)


def _step(step: Step, known: dict[Expr, int]) -> Step:
    match step:
        case Alias(name, base, Size() as offset):
            return Alias(name, base, value_of(offset, known))
        case Extern():
            return replace(
                step, args=_argument(step.args, known), kwargs=_argument(step.kwargs, known)
            )
    return step


def _argument(part: Any, known: dict[Expr, int]) -> Any:
    if isinstance(part, (tuple, list)):
        return type(part)(_argument(item, known) for item in part)
    if isinstance(part, Mapping):
        return {key: _argument(item, known) for key, item in part.items()}
    return value_of(part, known)
