"""Decides which memory ATen ops write to, and which of their operands need no values.

`out_overload` chooses the Extern steps that may put their result into the pool. Only ops whose
`out=` overload fills a tensor of the given strides exactly as the functional one would, without
resizing or copying: plain matrix products into contiguous memory.

`without_unread_values` handles draws such as dropout's, which take a tensor for its shape alone:
the values of that tensor (the zeros of `empty_like`) are not computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from ..compat.operators import OpOverload
from ..loops.ir import Alias, Buffer, BufferRef, Extern, LoopProgram, Nest, Step
from ..symbols.size import Dimension, is_same
from .dependencies import reads_of, writes_of

__all__ = ["out_overload", "without_unread_values"]

aten = torch.ops.aten
# Other overloads with `out=` may resize the tensor, or compute into a temporary and copy.
_OUT = {
    aten.mm.default: aten.mm.out,
    aten.addmm.default: aten.addmm.out,
    aten._addmm_activation.default: aten._addmm_activation.out,
    aten.bmm.default: aten.bmm.out,
    aten.baddbmm.default: aten.baddbmm.out,
}
_SHAPE_OF_FIRST = (
    aten.bernoulli.p,
    aten.rand_like.default,
    aten.randn_like.default,
    aten.randint_like.default,
    aten.randint_like.low_dtype,
)


def out_overload(step: Extern, buffers: Mapping[str, Buffer]) -> OpOverload | None:
    """Return the overload that writes the step's only result into contiguous memory, or None."""
    if len(step.results) != 1 or step.results[0] is None or step.writes:
        return None
    buffer = buffers[step.results[0]]
    expected: Dimension = 1
    for size, stride in zip(reversed(buffer.shape), reversed(buffer.stride), strict=True):
        if size != 1 and not is_same(stride, expected):
            return None
        expected = expected * size
    return _OUT.get(step.op)


def without_unread_values(program: LoopProgram) -> LoopProgram:
    """Remove nests whose results no step reads for their values."""
    # F.dropout draws bernoulli.p(empty_like(x), p), whose zeros were a kernel over the whole
    # tensor. Readers of the shape get memory that was never written (role "shape").
    read = {name for name in program.outputs if name is not None}
    read.update(name for step in program.steps for name in _values_read(step))
    taken = {name for step in program.steps for name in reads_of(step)}
    unread = {name for name in taken - read if program.buffers[name].role == "temp"}
    steps: list[Step] = []
    for step in program.steps:
        if not (isinstance(step, Nest) and unread.issuperset(writes_of(step))):
            steps.append(step)
    unread.difference_update(*(writes_of(step) for step in steps))
    buffers = {
        name: replace(buffer, role="shape") if name in unread else buffer
        for name, buffer in program.buffers.items()
    }
    return replace(program, steps=tuple(steps), buffers=buffers)


def _values_read(step: Step) -> tuple[str, ...]:
    match step:
        case Extern(op=op, args=(BufferRef(), *rest)) if op in _SHAPE_OF_FIRST:
            return reads_of(replace(step, args=tuple(rest)))
        case Alias(base=base, name=name):
            return base, name
    return reads_of(step)
