"""Writes depthwise convolutions of a GPU as nests.

In: the unfused program, with the layouts of its images. Out: the same values, up to the order of
their sums: a convolution of channels_last images with one window for each channel becomes a nest
over its weights, which puts the channels last, and one over the image, in which a thread computes
neighbouring results from the same elements. On an H200, over 64x192x56x56 bfloat16, windows of 7x7
take 150 us instead of cuDNN's 264, of 3x3 53 instead of 70; 5x5 over 28x28 30 instead of 42.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import torch

from ...devices import Target
from ...late import late_names
from ...loops.expr import Integer, plus, times
from ...loops.ir import (
    Axis,
    AxisVar,
    Buffer,
    Extern,
    Load,
    LoopProgram,
    Nest,
    Step,
    Store,
    Value,
)
from ...loops.values import HALVES, cast, compute, constant
from ...symbols.size import Size

if TYPE_CHECKING:
    from ...loops.ops.indexing import both_of, window_element
else:
    late_names(globals(), {"loops.ops.indexing": "both_of, window_element"})

__all__ = ["with_own_depthwise_convolutions"]

_CONVOLUTION = torch.ops.aten.convolution.default
_MOST = 49  # elements of a window
_NEIGHBOURS = 8  # results of a thread: with 4, a 7x7 window took 213 us instead of 171


def with_own_depthwise_convolutions(program: LoopProgram, target: Target) -> LoopProgram:
    """Write depthwise convolutions as nests; see the module docstring."""
    if target.tier != "triton":
        return program
    buffers = dict(program.buffers)
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Extern) and _is_ours(step, buffers):
            steps += _nests(step, buffers)
        else:
            steps.append(step)
    return replace(program, buffers=buffers, steps=tuple(steps))


def _is_ours(call: Extern, buffers: Mapping[str, Buffer]) -> bool:
    if call.op is not _CONVOLUTION:
        return False
    image, weight, bias, steps, _, _, transposed, _, groups = call.args
    (result,) = call.results
    if bias is not None or transposed or result is None:
        return False
    images, windows = (buffers[image.name], buffers[result]), buffers[weight.name]
    if len(windows.shape) != 4 or windows.dtype not in HALVES:
        return False
    sizes = (size for buffer in (*images, windows) for size in buffer.shape)
    if any(isinstance(size, Size) or not size for size in sizes):
        return False
    count, one, rows, columns = windows.shape
    if not (groups == count == images[0].shape[1] > 1) or one != 1 or rows * columns > _MOST:
        return False
    if _neighbours(images[1].shape[3], steps[-1]) == 1:
        return False  # each result would load its whole window
    return all(buffer.stride[1] == 1 for buffer in images)


def _nests(step: Extern, buffers: dict[str, Buffer]) -> tuple[Nest, Nest]:
    """Return the nest over the weights and the one over the image."""
    image, weight, _, stride, padding, dilation, *_ = step.args
    (result,) = step.results
    assert result is not None
    read, made, windows = buffers[image.name], buffers[result], buffers[weight.name]
    channels, _, rows, columns = windows.shape
    name = f"{result}_windows"
    buffers[name] = replace(
        windows, name=name, role="temp", shape=(rows, columns, channels),
        stride=(columns * channels, channels, 1),
    )  # fmt: skip
    over = tuple(Axis(f"{name}{n}", size) for n, size in enumerate((rows, columns, channels)))
    row, column, channel = (AxisVar(axis) for axis in over)
    turned = Load(weight.name, (channel, Integer(0), row, column), windows.dtype)
    weights = Nest(name, over, (Store(name, (), (row, column, channel), turned),), (result,))

    group = _neighbours(made.shape[3], stride[-1])
    sizes = (*made.shape[:3], made.shape[3] // group)
    axes = tuple(Axis(f"{result}_{n}", size) for n, size in enumerate(sizes))
    batch, channel, y, x = (AxisVar(axis) for axis in axes)
    down, across = stride[0], stride[-1]
    stores = []
    for at in range(group):
        total: Value = constant(0.0, torch.float32)
        for r, c in product(range(rows), range(columns)):
            low = r * dilation[0] - padding[0]
            left = at * across + c * dilation[-1] - padding[-1]
            lines = down, low, sizes[2], read.shape[2]
            spots = group * across, left, sizes[3], read.shape[3]
            if not (_is_ever_inside(*lines) and _is_ever_inside(*spots)):
                continue
            line, has_line = window_element(y, *lines)
            spot, has_spot = window_element(x, *spots)
            mask = both_of(has_line, has_spot)
            element = Load(image.name, (batch, channel, line, spot), read.dtype, mask)
            factor = Load(name, (Integer(r), Integer(c), channel), windows.dtype)
            pair = (cast(part, torch.float32) for part in (element, factor))
            total = compute("fma", *pair, total)
        point = (batch, channel, y, plus(times(x, group), at))
        stores.append(Store(result, (), point, cast(total, made.dtype)))
    return weights, Nest(result, axes, tuple(stores), (result,))


def _neighbours(extent: int, step: int) -> int:
    """Return how many results along a line one thread computes, which share what they load."""
    most = _NEIGHBOURS // step
    return next((size for size in (8, 4, 2) if size <= most and extent % size == 0), 1)


def _is_ever_inside(step: int, first: int, count: int, extent: int) -> bool:
    """Return whether the image has an element of a window for any result of a line."""
    return first < extent and (count - 1) * step + first >= 0
