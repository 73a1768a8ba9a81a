"""Images that no one outside sees, in the order in which a GPU's convolutions take them.

In: the unfused program. Out: the same steps; convolutions of 16-bit images read and write them
channels_last, and so do the nests in between. Tensor cores work on nothing else: for a row-major
image cuDNN turns it round before each convolution and its result back afterwards.

Only strides of temporaries change, which the steps that touch them take from the Buffer; other ATen
ops see what they would have seen. A convolution that reads an image in another order gets a copy.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import prod

import torch

from ..loops.expr import Expr, Integer, axes_of
from ..loops.ir import (
    Alias,
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
from .deps import loads_of, reads_of, writes_of

__all__ = ["with_images_channels_last"]

_DEVICES = frozenset({"cuda"})
_HALVES = (torch.float16, torch.bfloat16)
_CONVOLUTION = torch.ops.aten.convolution.default


def with_images_channels_last(program: LoopProgram) -> LoopProgram:
    """See the head of this file."""
    if program.device.type not in _DEVICES:
        return program
    free = _free_to_choose(program)
    free -= _beside(_read_in_groups(program), program)
    found = [s for s in program.steps if _is_convolution(s, program) and _result(s) in free]
    if not found:
        return program
    chosen = _spread(
        {name for s in found for name in (_result(s), _image(s))} & free, free, program
    )
    buffers = dict(program.buffers)
    buffers.update((name, _channels_last(buffers[name])) for name in chosen)
    steps: list[Step] = []
    for step in program.steps:
        if any(step is one for one in found) and _image(step) not in chosen:
            steps += _with_copy(step, buffers)
        else:
            steps.append(step)
    return replace(program, buffers=buffers, steps=tuple(steps))


def _is_convolution(step: Step, program: LoopProgram) -> bool:
    """Over 16-bit images; not of several groups of several channels, for which cuDNN has no fast
    kernels in this order.
    """
    if not (isinstance(step, Extern) and step.op is _CONVOLUTION):
        return False
    image, weight = (program.buffers[part.name] for part in step.args[:2])
    groups = step.args[8]
    return (
        len(image.shape) == 4
        and image.dtype in _HALVES
        and 0 not in image.shape
        and (groups == 1 or weight.shape[1] == 1)
    )


def _read_in_groups(program: LoopProgram) -> set[str]:
    """Images of which a reduction takes some channels together with their rows, as group_norm
    does. Each channel's rows are in one piece only where the image is row-major.
    """
    found: set[str] = set()
    for step in program.steps:
        if isinstance(step, Nest):
            images = [load for load in loads_of(step.stores) if len(load.index) == 4]
            found.update(load.buffer for load in images if _has_groups(load.index[1], step))
    return found


def _beside(names: set[str], program: LoopProgram) -> set[str]:
    """Buffers of as many elements that nests read or write beside these, and beside those."""
    if not names:
        return names
    count = {name: prod(buffer.shape) for name, buffer in program.buffers.items()}
    nests = [step for step in program.steps if isinstance(step, Nest)]
    touched = [{*reads_of(nest), *writes_of(nest)} for nest in nests]
    found, before = set(names), -1
    while before != len(found):
        before = len(found)
        for group in touched:
            sizes = {count[name] for name in group & found}
            found.update(name for name in group if count[name] in sizes)
    return found


def _has_groups(channel: Expr, nest: Nest) -> bool:
    """Whether a reduction or an inner loop goes through channels and more."""
    plain = isinstance(channel, AxisVar | Integer)
    return not plain and not axes_of(channel).issubset(nest.outer)


def _image(step: Step) -> str:
    assert isinstance(step, Extern)
    return str(step.args[0].name)


def _result(step: Step) -> str:
    assert isinstance(step, Extern)
    return str(step.results[0])


def _free_to_choose(program: LoopProgram) -> set[str]:
    """Row-major temporaries of four dimensions that only nests and convolutions touch, these as
    image or result, and that one step writes.
    """
    free = {
        name
        for name, buffer in program.buffers.items()
        if buffer.role == "temp" and _is_row_major(buffer) and buffer.device == program.device
    }
    free.difference_update((*program.inputs, *program.outputs, *program.constants))
    writers: dict[str, int] = defaultdict(int)
    for step in program.steps:
        for name in writes_of(step):
            writers[name] += 1
        if isinstance(step, Alias):
            free.difference_update((step.name, step.base))
        elif isinstance(step, Extern):
            touched = {*reads_of(step), *writes_of(step)}
            if _is_convolution(step, program):
                others = [part.name for part in step.args[1:] if isinstance(part, BufferRef)]
                touched = set(others)
            free -= touched
    return {name for name in free if writers[name] == 1}


def _is_row_major(buffer: Buffer) -> bool:
    step = 1
    for size, stride in zip(reversed(buffer.shape), reversed(buffer.stride), strict=True):
        if stride != step:
            return False
        step *= size
    return len(buffer.shape) == 4 and step > 0


def _spread(chosen: set[str], free: set[str], program: LoopProgram) -> set[str]:
    """What nests read or write beside a chosen image of the same size lies as that does."""
    chosen = set(chosen)
    nests = [step for step in program.steps if isinstance(step, Nest)]
    touched = [free.intersection((*reads_of(nest), *writes_of(nest))) for nest in nests]
    before = -1
    while before != len(chosen):
        before = len(chosen)
        for names in touched:
            shapes = {program.buffers[name].shape for name in names & chosen}
            chosen.update(name for name in names if program.buffers[name].shape in shapes)
    return chosen


def _channels_last(buffer: Buffer) -> Buffer:
    _, channels, height, width = buffer.shape
    stride = (channels * height * width, 1, width * channels, channels)
    return replace(buffer, stride=stride)


def _with_copy(step: Step, buffers: dict[str, Buffer]) -> tuple[Nest, Extern]:
    """The convolution, of a copy of its image."""
    assert isinstance(step, Extern)
    copy, buffer = f"{step.name}_image", buffers[_image(step)]
    buffers[copy] = _channels_last(replace(buffer, name=copy, role="temp"))
    axes = tuple(Axis(f"{copy}{n}", extent) for n, extent in enumerate(buffer.shape))
    point = tuple(AxisVar(axis) for axis in axes)
    store = Store(copy, (), point, Load(buffer.name, point, buffer.dtype))
    nest = Nest(copy, axes, (store,), (copy,))
    return nest, replace(step, args=(BufferRef(copy), *step.args[1:]))
