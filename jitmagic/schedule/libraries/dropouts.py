"""Draws the masks of dropouts on a GPU in the kernels that use them.

In: the unfused program. Out: the same values, bit by bit. ATen's dropout reads and writes whole
tensors in a kernel of its own; here the generator's state is drawn in its place and order, and a
nest computes the numbers from it, which fuses with its neighbours. Dropouts stay ATen's where their
layout decides otherwise which thread draws for an element, where CUDA graphs are recorded (a replay
must take the state from the GPU), and in files for other machines: ATen's threads are as many as
the GPU holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import prod

import torch

from ...devices import Target
from ...loops.expr import position
from ...loops.ir import (
    Alias,
    Axis,
    AxisVar,
    Buffer,
    BufferRef,
    Extern,
    IndexValue,
    Load,
    LoopProgram,
    Nest,
    Step,
    Store,
)
from ...loops.philox_state import PHILOX_STATE
from ...loops.values import FLOATS, cast, compute, constant, opmath, round_to
from ...symbols.size import Size

__all__ = ["with_own_dropouts"]

_DROPOUT = torch.ops.aten.native_dropout.default
_BLOCK, _UNROLL = 256, 4  # threads of a block; numbers of a draw


def with_own_dropouts(program: LoopProgram, target: Target, records_graphs: bool) -> LoopProgram:
    """Replace dropouts by the state of the generator and a nest; see the module docstring."""
    if target.tier != "triton" or not target.resident_threads or records_graphs:
        return program
    most = target.multiprocessors * (target.resident_threads // _BLOCK)
    buffers = dict(program.buffers)
    given = {*program.inputs, *(step.name for step in program.steps if isinstance(step, Alias))}
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Extern) and (vector := _vector(step, buffers)):
            aligned = step.args[0] if step.args[0].name in given else None
            steps += _drawn_here(step, buffers, vector, most, aligned)
        else:
            steps.append(step)
    return replace(program, buffers=buffers, steps=tuple(steps))


def _vector(step: Extern, buffers: Mapping[str, Buffer]) -> int:
    """Return how many neighbouring elements a thread of ATen's kernel takes; 0 if the step is no
    dropout, or one that ATen computes otherwise.
    """
    if step.op is not _DROPOUT:
        return 0
    x, p, train = step.args
    buffer = buffers[x.name]
    if train is not True or not isinstance(p, float) or not 0 < p < 1:
        return 0
    if buffer.device.type != "cuda" or buffer.dtype not in FLOATS - {torch.float64}:
        return 0
    sizes = (*buffer.shape, *buffer.stride)
    if any(isinstance(size, Size) for size in sizes) or not _is_dense(buffer):
        return 0
    count, vector = prod(buffer.shape), 16 // buffer.dtype.itemsize
    if not 0 < count < 2**31:
        return 0
    while count % vector:
        vector //= 2
    return vector if vector >= _UNROLL else 0


def _is_dense(buffer: Buffer) -> bool:
    step = 1
    for stride, extent in sorted(zip(buffer.stride, buffer.shape, strict=True)):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def _drawn_here(
    step: Extern,
    buffers: dict[str, Buffer],
    vector: int,
    most: int,
    aligned: BufferRef | None,
) -> tuple[Extern, Nest]:
    """Return the draw and the nest of a dropout. `most`: the blocks that ATen launches at most;
    `aligned`: its operand, if it may be elsewhere in memory than at a multiple of 16 bytes.
    """
    x, p, _ = step.args
    made = buffers[x.name]
    count = prod(made.shape)
    blocks = min(most, -(-count // _BLOCK))
    threads = blocks * _BLOCK
    increment = -(-count // (threads * _UNROLL)) * _UNROLL
    state = tuple(f"{step.name}_{part}" for part in ("seed", "offset"))
    for name in state:
        buffers[name] = Buffer(name, (), (), torch.int64, torch.device("cpu"), "temp")
    draw = replace(
        step,
        op=PHILOX_STATE,
        args=(aligned, made.device.index or 0, increment),
        results=state,
        reason="random numbers come from eager's generator",
    )
    axes = tuple(Axis(f"{step.name}{n}", extent) for n, extent in enumerate(made.shape))
    point = tuple(AxisVar(axis) for axis in axes)
    place = IndexValue(position(point, made.stride))
    seed, offset = (Load(name, (), torch.int64) for name in state)
    drawn = compute("philox", seed, offset, place, vector, threads)
    # An element is kept if bits * 2**-32 + 2**-33 < 1 - p in float32; both sides grow.
    kept = compute("lt", drawn, _kept_below(1.0 - p))
    wide = opmath(made.dtype)
    scale = round_to(1.0 / round_to(1.0 - p, torch.float32), torch.float32)
    masked = compute("mul", cast(Load(x.name, point, made.dtype), wide), cast(kept, wide))
    y, mask = step.results
    stores = [
        Store(name, (), point, cast(value, buffers[name].dtype))
        for name, value in ((y, compute("mul", masked, constant(scale, wide))), (mask, kept))
        if name is not None
    ]
    return draw, Nest(step.name, axes, tuple(stores), (step.name,))


@cache
def _kept_below(probability: float) -> int:
    """Return the least bits whose element is dropped."""
    bound = round_to(probability, torch.float32)
    low, high = 0, 2**32
    while low < high:
        middle = (low + high) // 2
        number = round_to(middle, torch.float32) * 2.0**-32 + 2.0**-33
        if round_to(number, torch.float32) < bound:
            low = middle + 1
        else:
            high = middle
    return low
