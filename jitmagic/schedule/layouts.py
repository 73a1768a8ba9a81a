"""channels_last for convolutions on a GPU, where only this program sees the images.

In: the unfused program, and how many of its last outputs are kept for a backward of ours alone.
Out: the same steps; convolutions on tensor cores read and write images channels_last, in both
directions, and so do the nests and poolings in between. Tensor cores work on nothing else: for a
row-major image cuDNN turns it round before each convolution and its result back afterwards.

Only strides of temporaries and of what is kept change, which the steps that touch them take from
the Buffer; other ATen ops see what they would have seen. A convolution that reads an image in
another order gets a copy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

import torch

from ..loops.expr import Integer, axes_of
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
from .deps import buffer_refs, loads_of, reads_of, writes_of
from .precision import on_tensor_cores

__all__ = ["turned_outputs", "with_images_channels_last"]

_DEVICES = frozenset({"cuda"})
# Where cuDNN takes TF32 kernels in both orders, of 108 convolutions tried on an H200: from 32
# channels on, in multiples of 16 bytes, with windows up to 7x7. Of those with fewer channels 39 had
# a TF32 kernel for channels_last alone, of those with 30 or more two, both of 11x11.
_TF32_CHANNELS, _TF32_MULTIPLE, _TF32_WINDOW = 32, 4, 7
aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Images:
    """Which arguments and results of an ATen op are images, which of a convolution are weights."""

    args: tuple[int, ...]
    results: tuple[int, ...]
    weight: int | None = None  # None: the op follows the order of its images, whatever it is
    weight_result: int | None = None


_IMAGES: Mapping[object, _Images] = {
    aten.convolution.default: _Images((0,), (0,), 1),
    aten.convolution_backward.default: _Images((0, 1), (0,), 2, 1),
    aten.max_pool2d_with_indices.default: _Images((0,), (0, 1)),
    aten.max_pool2d_with_indices_backward.default: _Images((0, 1, 7), (0,)),
}


def with_images_channels_last(
    program: LoopProgram, kept: int = 0, fast: bool = False
) -> LoopProgram:
    """See the head of this file. `fast`: even where cuDNN then computes in TF32, unlike eager's."""
    if program.device.type not in _DEVICES:
        return program
    free = _free_to_choose(program, kept)
    free -= _beside(_read_in_groups(program), program)
    for step in program.steps:
        if _is_weighted(step) and not _is_convolution(step, program, fast):
            free -= {*_images(step), *_weights(step)}
    convolutions = [
        s for s in program.steps if _is_convolution(s, program, fast) and _is_free(s, free)
    ]
    if not convolutions:
        return program
    chosen = {name for step in convolutions for name in (*_images(step), *_weights(step))} & free
    last = {name for name, buffer in program.buffers.items() if _is_channels_last(buffer)}
    chosen = _spread(chosen, last, free, program)
    buffers = dict(program.buffers)
    buffers.update((name, _channels_last(buffers[name])) for name in chosen)
    steps: list[Step] = []
    for step in program.steps:
        if any(step is convolution for convolution in convolutions):
            steps += _with_copies(step, chosen | last, buffers)
        else:
            steps.append(step)
    return replace(program, buffers=buffers, steps=tuple(steps))


def turned_outputs(before: LoopProgram, after: LoopProgram) -> dict[int, tuple[int, ...]]:
    """Strides of the outputs that a schedule lays out otherwise than its program, by position."""
    strides = {}
    for index, name in enumerate(before.outputs):
        if name is not None and before.buffers[name].stride != after.buffers[name].stride:
            strides[index] = after.buffers[name].stride
    return strides


def _is_convolution(step: Step, program: LoopProgram, fast: bool) -> bool:
    """For tensor cores, where eager's kernel is as precise or the user asked for `fast`; not of
    several groups of several channels, for which cuDNN has no fast kernels in this order.
    """
    if not _is_weighted(step):
        return False
    assert isinstance(step, Extern)
    weight_at = _IMAGES[step.op].weight
    assert weight_at is not None
    image, weight = (program.buffers[step.args[n].name] for n in (weight_at - 1, weight_at))
    groups = step.args[8 if step.op is aten.convolution.default else 9]
    return (
        len(image.shape) == 4
        and on_tensor_cores(image.dtype, "convolutions")
        and 0 not in image.shape
        and (groups == 1 or weight.shape[1] == 1)
        and (fast or groups != 1 or _is_as_precise(weight))
    )


def _is_as_precise(weight: Buffer) -> bool:
    """Return whether cuDNN rounds factors alike in both orders. Of float32 images of 3 channels it
    takes TF32 kernels for channels_last alone: an 11x11 convolution erred by 0.030, row-major
    9.5e-5.
    """
    if weight.dtype != torch.float32:
        return True
    channels, window = weight.shape[:2], weight.shape[2:]
    return all(n >= _TF32_CHANNELS and n % _TF32_MULTIPLE == 0 for n in channels) and all(
        n <= _TF32_WINDOW for n in window
    )


def _is_free(step: Step, free: set[str]) -> bool:
    """A forward's result; of a backward any image, as the gradient of its image may not be."""
    assert isinstance(step, Extern)
    images = step.results[:1] if step.op is aten.convolution.default else _images(step)
    return not free.isdisjoint(images)


def _images(step: Step) -> list[str]:
    """Those that an ATen op of the table reads, then those that it writes; of others none."""
    if not (isinstance(step, Extern) and step.op in _IMAGES):
        return []
    positions = _IMAGES[step.op]
    read = [step.args[n].name for n in positions.args]
    written = [step.results[n] for n in positions.results if n < len(step.results)]
    return [*read, *(name for name in written if name is not None)]


def _is_weighted(step: Step) -> bool:
    return isinstance(step, Extern) and step.op in _IMAGES and _IMAGES[step.op].weight is not None


def _weights(step: Step) -> list[str]:
    """The weight of a convolution, and its gradient."""
    assert isinstance(step, Extern)
    positions = _IMAGES[step.op]
    weights = [] if positions.weight is None else [step.args[positions.weight].name]
    if positions.weight_result is not None and step.results[positions.weight_result] is not None:
        weights.append(step.results[positions.weight_result])
    return weights


def _read_in_groups(program: LoopProgram) -> set[str]:
    """Images of which a reduction takes some channels together with their rows, as group_norm
    does. Each channel's rows are in one piece only where the image is row-major.
    """
    nests = [step for step in program.steps if isinstance(step, Nest)]
    names: set[str] = set()
    along = {
        load.buffer
        for nest in nests
        for load in loads_of(nest.stores)
        if not all(axes_of(part).issubset(nest.outer) for part in load.index)
    }
    for nest in nests:
        is_reduced = any(store.buffer in along for store in nest.stores)
        images = [load for load in loads_of(nest.stores) if len(load.index) == 4]
        names.update(load.buffer for load in images if _has_groups(load, nest, is_reduced))
    return names


def _beside(names: set[str], program: LoopProgram) -> set[str]:
    """Buffers of as many elements that nests read or write beside these, and beside those."""
    if not names:
        return names
    count = {name: prod(buffer.shape) for name, buffer in program.buffers.items()}
    nests = [step for step in program.steps if isinstance(step, Nest)]
    touched = [{*reads_of(nest), *writes_of(nest)} for nest in nests]
    reached, before = set(names), -1
    while before != len(reached):
        before = len(reached)
        for group in touched:
            sizes = {count[name] for name in group & reached}
            reached.update(name for name in group if count[name] in sizes)
    return reached


def _has_groups(load: Load, nest: Nest, is_reduced: bool) -> bool:
    """Whether a reduction or an inner loop goes through channels and more, here or where it reads
    what the nest stores.
    """
    _, channel, *rest = load.index
    if isinstance(channel, AxisVar | Integer):
        return False
    axes = axes_of(channel)
    with_rows = any(axes & axes_of(part) for part in rest)
    return not axes.issubset(nest.outer) or (is_reduced and with_rows)


def _free_to_choose(program: LoopProgram, kept: int) -> set[str]:
    """Row-major buffers of four dimensions that only nests touch, and the ops of the table as their
    images or weights, that one step writes and that do not leave the program.
    """
    shown = program.outputs[: len(program.outputs) - kept]
    free = {
        name
        for name, buffer in program.buffers.items()
        if buffer.role in ("temp", "output")
        and _is_row_major(buffer)
        and buffer.device == program.device
    }
    free.difference_update((*program.inputs, *program.constants), filter(None, shown))
    writers: dict[str, int] = defaultdict(int)
    for step in program.steps:
        for name in writes_of(step):
            writers[name] += 1
        if isinstance(step, Alias):
            free.difference_update((step.name, step.base))
        elif isinstance(step, Extern):
            free -= _seen_otherwise(step)
    return {name for name in free if writers[name] == 1}


def _seen_otherwise(step: Extern) -> set[str]:
    """Buffers that an ATen op takes or gives as something other than an image or a weight."""
    positions = _IMAGES.get(step.op)
    if positions is None:
        return {*reads_of(step), *writes_of(step)}
    known = {*positions.args, positions.weight}
    args = [part for n, part in enumerate(step.args) if n not in known]
    images = {*positions.results, positions.weight_result}
    results = [name for n, name in enumerate(step.results) if n not in images and name is not None]
    return {*buffer_refs(args), *results}


def _is_row_major(buffer: Buffer) -> bool:
    step = 1
    for size, stride in zip(reversed(buffer.shape), reversed(buffer.stride), strict=True):
        if stride != step:
            return False
        step *= size
    return len(buffer.shape) == 4 and step > 0


def _is_channels_last(buffer: Buffer) -> bool:
    return (
        len(buffer.shape) == 4
        and 0 not in buffer.shape
        and buffer.stride == _channels_last(buffer).stride
        and not _is_row_major(buffer)
    )


def _spread(chosen: set[str], last: set[str], free: set[str], program: LoopProgram) -> set[str]:
    """What nests read or write beside a chosen image of the same size lies as that does, and so
    does what a pooling makes of it.
    """
    chosen = set(chosen)
    touched = list(_touched_together(program))
    before = -1
    while before != len(chosen):
        before = len(chosen)
        for names, alike in touched:
            turned = names & (chosen | last)
            shapes = {program.buffers[name].shape for name in turned}
            chosen.update(
                name
                for name in names & free
                if turned and (not alike or program.buffers[name].shape in shapes)
            )
    return chosen


def _touched_together(program: LoopProgram) -> Iterable[tuple[set[str], bool]]:
    """Buffers of each step that should lie alike: those of a nest only where their shapes agree."""
    for step in program.steps:
        if isinstance(step, Nest):
            yield {*reads_of(step), *writes_of(step)}, True
        elif isinstance(step, Extern) and step.op in _IMAGES and _IMAGES[step.op].weight is None:
            yield set(_images(step)), False


def _channels_last(buffer: Buffer) -> Buffer:
    _, channels, height, width = buffer.shape
    stride = (channels * height * width, 1, width * channels, channels)
    return replace(buffer, stride=stride)


def _with_copies(step: Step, turned: set[str], buffers: dict[str, Buffer]) -> list[Step]:
    """The convolution, of copies of the images that lie otherwise."""
    assert isinstance(step, Extern)
    steps: list[Step] = []
    args = list(step.args)
    for position in _IMAGES[step.op].args:
        name = args[position].name
        if name in turned:
            continue
        copy, buffer = f"{step.name}_image{position or ''}", buffers[name]
        buffers[copy] = _channels_last(replace(buffer, name=copy, role="temp"))
        axes = tuple(Axis(f"{copy}{n}", extent) for n, extent in enumerate(buffer.shape))
        point = tuple(AxisVar(axis) for axis in axes)
        store = Store(copy, (), point, Load(name, point, buffer.dtype))
        steps.append(Nest(copy, axes, (store,), (copy,)))
        args[position] = BufferRef(copy)
    return [*steps, replace(step, args=tuple(args))]
