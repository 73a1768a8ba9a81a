"""Biases of convolutions on a GPU, where cuDNN adds them in a pass of its own.

In: the unfused program. Out: the same values; a convolution whose result nests read has no bias,
and a nest adds it, which is fused with them. Rounded in between as eager's two passes round. Where
nothing else reads the result there is nothing to gain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from ..loops.ir import (
    Axis,
    AxisVar,
    Buffer,
    BufferRef,
    Extern,
    Load,
    LoopProgram,
    Nest,
    Step,
    Store,
)
from ..loops.libraries import adds_bias_separately
from ..loops.values import cast, compute, opmath
from .deps import reads_of

__all__ = ["with_biases_apart"]

_DEVICES = frozenset({"cuda"})
_CONVOLUTION = torch.ops.aten.convolution.default
_BIAS = 2  # where it takes it


def with_biases_apart(program: LoopProgram) -> LoopProgram:
    """See the head of this file."""
    if program.device.type not in _DEVICES:
        return program
    read = {name for step in program.steps if isinstance(step, Nest) for name in reads_of(step)}
    buffers = dict(program.buffers)
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Extern) and _has_bias(step, buffers) and step.results[0] in read:
            steps += _apart(step, buffers)
        else:
            steps.append(step)
    return replace(program, buffers=buffers, steps=tuple(steps))


def _has_bias(step: Extern, buffers: Mapping[str, Buffer]) -> bool:
    if step.op is not _CONVOLUTION or step.args[_BIAS] is None:
        return False
    return adds_bias_separately(step, buffers)


def _apart(step: Extern, buffers: dict[str, Buffer]) -> tuple[Extern, Nest]:
    """The convolution, and the sum that is what its result was."""
    (result,), bias = step.results, step.args[_BIAS]
    assert result is not None
    assert isinstance(bias, BufferRef)
    made, name = buffers[result], f"{result}_without_bias"
    buffers[name] = replace(made, name=name, role="temp")
    axes = tuple(Axis(f"{name}{n}", extent) for n, extent in enumerate(made.shape))
    point = tuple(AxisVar(axis) for axis in axes)
    wide = opmath(made.dtype)
    value = compute(
        "add",
        cast(Load(name, point, made.dtype), wide),
        cast(Load(bias.name, point[1:2], made.dtype), wide),
    )
    args = (*step.args[:_BIAS], None, *step.args[_BIAS + 1 :])
    store = Store(result, (), point, cast(value, made.dtype))
    # Its own origin stays with the convolution, whose line it is.
    return replace(step, args=args, results=(name,)), Nest(result, axes, (store,), (result,))
