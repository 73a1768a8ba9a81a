"""Separates the biases of GPU convolutions, which cuDNN adds in a pass of its own.

In: the unfused program. Out: the same values; a convolution whose result is read by nests loses its
bias, and a new nest adds it, which fuses with those readers. The result is rounded in between, as
in eager's two passes. Without such readers the bias stays: its nest would be one more pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from ...devices import row_of
from ...loops.ir import (
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
from ...loops.libraries import adds_bias_separately
from ...loops.values import cast, compute, opmath
from ..dependencies import reads_of

__all__ = ["with_separate_biases"]

_CONVOLUTION = torch.ops.aten.convolution.default
_BIAS = 2  # its position among the arguments


def with_separate_biases(program: LoopProgram) -> LoopProgram:
    """Separate the biases of convolutions that nests read; see the module docstring."""
    # ConvNeXt's 18 depthwise convolutions each added their bias in a pass: 357 of 4,467 us of
    # kernels on an H200, in bf16.
    if not row_of(program.device).has_tensor_cores:
        return program
    read = {name for step in program.steps if isinstance(step, Nest) for name in reads_of(step)}
    buffers = dict(program.buffers)
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Extern) and _has_bias(step, buffers) and step.results[0] in read:
            steps += _separated(step, buffers)
        else:
            steps.append(step)
    return replace(program, buffers=buffers, steps=tuple(steps))


def _has_bias(step: Extern, buffers: Mapping[str, Buffer]) -> bool:
    if step.op is not _CONVOLUTION or step.args[_BIAS] is None:
        return False
    return adds_bias_separately(step, buffers)


def _separated(step: Extern, buffers: dict[str, Buffer]) -> tuple[Extern, Nest]:
    """Return the convolution without bias, and the nest that adds it."""
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
    # The convolution keeps its own origin, whose line it reports.
    return replace(step, args=args, results=(name,)), Nest(result, axes, (store,), (result,))
