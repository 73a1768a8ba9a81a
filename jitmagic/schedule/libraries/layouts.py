"""Chooses channels_last for convolutions whose images only this program reads.

In: the unfused program, and the number of its last outputs that are saved for jitmagic's own
backward. Out: the same steps; convolutions on tensor cores and on the CPU read and write
channels_last images, and so do the nests and poolings in between. Tensor cores need that order: for
a row-major image cuDNN transposes the image before each convolution and the result after it, as
oneDNN does on a CPU. Training steps of 9 small models of timm took 0.51 to 0.88 of the row-major
time there.

Only the strides of temporaries and of saved outputs change, which nests and convolutions read from
the Buffer; the operands of other ATen ops keep their layouts. A convolution that reads an image in
another order gets a copy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import prod

import torch

from ...devices import row_of
from ...lazy_dataclass import dataclass, replace
from ...loops.expr import Integer, axes_of
from ...loops.ir import (
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
from ...loops.libraries import on_tensor_cores
from ...symbols.size import hint_of
from ..dependencies import loads_of, reads_of, writes_of

__all__ = ["turned_outputs", "with_images_channels_last"]

# cuDNN has TF32 kernels for both memory orders from 32 channels on, in multiples of 16 bytes, with
# windows up to 7x7. Of 108 convolutions tried on an H200, 39 with fewer channels had a TF32 kernel
# for channels_last alone; of those with 30 channels or more, only two had, both with 11x11 windows.
_TF32_CHANNELS, _TF32_MULTIPLE, _TF32_WINDOW = 32, 4, 7
aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Images:
    """Lists the positions of an ATen op's images, and of a convolution's weights."""

    args: tuple[int, ...]
    results: tuple[int, ...]
    weight: int | None = None  # None: the op accepts and keeps any order
    weight_result: int | None = None


# On an H200 channels_last took bf16 inference from 1.67 to 2.42 times eager's speed (ResNet), from
# 1.45 to 2.43 (EfficientNet) and from 1.60 to 2.52 (MobileNet); with saved images AMP training of
# MobileNetV3 went from 2.12 to 3.41.
_IMAGES: Mapping[object, _Images] = {
    aten.convolution.default: _Images((0,), (0,), 1),
    aten.convolution_backward.default: _Images((0, 1), (0,), 2, 1),
    aten.max_pool2d_with_indices.default: _Images((0,), (0, 1)),
    aten.max_pool2d_with_indices_backward.default: _Images((0, 1, 7), (0,)),
    aten.avg_pool2d.default: _Images((0,), (0,)),
    aten.avg_pool2d_backward.default: _Images((0, 1), (0,)),
}


def with_images_channels_last(
    program: LoopProgram, saved: int = 0, fast: bool = False
) -> LoopProgram:
    """Lay out images as channels_last; see the module docstring. `fast`: even if cuDNN then
    computes in TF32, unlike eager's call.
    """
    row = row_of(program.device)
    if not row.turns_images:
        return program
    free = _free_to_choose(program, saved)
    # A nest that reads images in both orders would read one of them across memory.
    free -= _accessed_together(_read_in_groups(program), program)
    for step in program.steps:
        if _is_weighted(step) and not _is_convolution(step, program, fast):
            free -= {*_images(step), *_weights(step)}
    convolutions = [
        s for s in program.steps if _is_convolution(s, program, fast) and _is_free(s, free)
    ]
    # Without a convolution on tensor cores nothing gains from another order.
    if not convolutions:
        return program
    chosen = {name for step in convolutions for name in (*_images(step), *_weights(step))} & free
    last = {name for name, buffer in program.buffers.items() if _is_channels_last(buffer)}
    chosen = _propagated(chosen, last, free, program)
    copied = [s for s in convolutions if not chosen.union(last).issuperset(_images_read(s))]
    # oneDNN copies a row-major image too, but not more slowly than a nest.
    few = 2 * len(copied) > len(convolutions) or _mostly_weights(convolutions, program)
    if not row.has_tensor_cores and few:
        return program
    buffers = dict(program.buffers)
    buffers.update((name, _channels_last(buffers[name])) for name in chosen)
    steps: list[Step] = []
    for step in program.steps:
        if any(step is convolution for convolution in convolutions):
            steps += _with_copies(step, chosen | last, buffers)
        else:
            steps.append(step)
    return replace(program, buffers=buffers, steps=tuple(steps))


def _mostly_weights(convolutions: Sequence[Step], program: LoopProgram) -> bool:
    """Return whether what is saved on the images is less than what copies of weights cost."""

    # ATen brings the weights into the images' order in each call; with windows larger than 1x1 an
    # element costs half of what an image's element gains. Time of tiny models with turned images,
    # by the ratio of elements: ResNet 1.76 (7.2), HRNet 1.05 (2.3), Inception 0.96 (2.4), ResNeSt
    # 0.78 (0.8), GERNet 0.44 (0.4).
    def elements(names: Iterable[str]) -> int:
        return sum(prod(map(hint_of, program.buffers[name].shape)) for name in names)

    weights = [program.buffers[name] for step in convolutions for name in _weights(step)[:1]]
    copied = [
        buffer.name
        for buffer in weights
        if prod(map(hint_of, buffer.shape[2:])) > 1 and not _is_channels_last(buffer)
    ]
    return elements(copied) > 2 * elements(n for step in convolutions for n in _images(step))


def turned_outputs(before: LoopProgram, after: LoopProgram) -> dict[int, tuple[int, ...]]:
    """Return, by position, the strides of the outputs whose layout the schedule changed."""
    strides = {}
    for index, name in enumerate(before.outputs):
        if name is not None and before.buffers[name].stride != after.buffers[name].stride:
            strides[index] = after.buffers[name].stride
    return strides


def _is_convolution(step: Step, program: LoopProgram, fast: bool) -> bool:
    """Return whether a step is a convolution that gains from channels_last."""
    # Eager's kernel must be as precise, unless the user asked for `fast`. With several groups of
    # several channels cuDNN has no fast kernels in this order.
    if not _is_weighted(step):
        return False
    assert isinstance(step, Extern)
    weight_at = _IMAGES[step.op].weight
    assert weight_at is not None
    image, weight = (program.buffers[step.args[n].name] for n in (weight_at - 1, weight_at))
    groups = step.args[8 if step.op is aten.convolution.default else 9]
    if len(image.shape) != 4 or 0 in image.shape:
        return False
    if not row_of(program.device).has_tensor_cores:
        return image.dtype == torch.float32 and torch.backends.mkldnn.is_available()
    return (
        on_tensor_cores(image.dtype, "convolutions")
        and (groups == 1 or weight.shape[1] == 1)
        and (fast or groups != 1 or _is_as_precise(weight))
    )


def _is_as_precise(weight: Buffer) -> bool:
    """Return whether cuDNN rounds factors equally in both orders."""
    # For float32 images of 3 channels it takes TF32 kernels only for channels_last: an 11x11
    # convolution erred by 0.030, row-major 9.5e-5.
    if weight.dtype != torch.float32:
        return True
    channels, window = weight.shape[:2], weight.shape[2:]
    return all(n >= _TF32_CHANNELS and n % _TF32_MULTIPLE == 0 for n in channels) and all(
        n <= _TF32_WINDOW for n in window
    )


def _is_free(step: Step, free: set[str]) -> bool:
    """Return whether a layout of the step may change: a forward's result, or any image of a
    backward, as the gradient of its image may be fixed.
    """
    assert isinstance(step, Extern)
    images = step.results[:1] if step.op is aten.convolution.default else _images(step)
    return not free.isdisjoint(images)


def _images(step: Step) -> list[str]:
    """Return the images that an op of the table reads, then those it writes; [] for other steps."""
    if not (isinstance(step, Extern) and step.op in _IMAGES):
        return []
    positions = _IMAGES[step.op]
    read = [step.args[n].name for n in positions.args]
    written = [step.results[n] for n in positions.results if n < len(step.results)]
    return [*read, *(name for name in written if name is not None)]


def _images_read(step: Step) -> list[str]:
    assert isinstance(step, Extern)
    return _images(step)[: len(_IMAGES[step.op].args)]


def _is_weighted(step: Step) -> bool:
    return isinstance(step, Extern) and step.op in _IMAGES and _IMAGES[step.op].weight is not None


def _weights(step: Step) -> list[str]:
    """Return the weight of a convolution, and its gradient."""
    assert isinstance(step, Extern)
    positions = _IMAGES[step.op]
    weights = [] if positions.weight is None else [step.args[positions.weight].name]
    if positions.weight_result is not None and step.results[positions.weight_result] is not None:
        weights.append(step.results[positions.weight_result])
    return weights


def _read_in_groups(program: LoopProgram) -> set[str]:
    """Return images that a reduction reads in groups of channels with their rows, as in
    group_norm.
    """
    # Each channel's rows are contiguous only in a row-major image: in channels_last bf16 inference
    # of a diffusion UNet ran at 0.40 of eager's speed on an H200, row-major and fused at 1.15.
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


def _accessed_together(names: set[str], program: LoopProgram) -> set[str]:
    """Return these buffers and all of equal size that nests access together with them,
    transitively.
    """
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
    """Return whether a reduction or an inner loop spans channels and rows, here or in a reader."""
    _, channel, *rest = load.index
    if isinstance(channel, AxisVar | Integer):
        return False
    axes = axes_of(channel)
    with_rows = any(axes & axes_of(part) for part in rest)
    return not axes.issubset(nest.outer) or (is_reduced and with_rows)


def _free_to_choose(program: LoopProgram, saved: int) -> set[str]:
    """Return the row-major images whose layout may change."""
    # One step writes them, only nests and the ops of the table access them, as images or weights,
    # and they do not leave the program.
    shown = program.outputs[: len(program.outputs) - saved]
    device = program.device  # computed from all buffers
    free = {
        name
        for name, buffer in program.buffers.items()
        if buffer.role in ("temp", "output") and _is_row_major(buffer) and buffer.device == device
    }
    free.difference_update((*program.inputs, *program.constants), filter(None, shown))
    writers: dict[str, int] = defaultdict(int)
    for step in program.steps:
        for name in writes_of(step):
            writers[name] += 1
        if isinstance(step, Alias):
            free.difference_update((step.name, step.base))
        elif isinstance(step, Extern):
            free -= _used_otherwise(step)
    return {name for name in free if writers[name] == 1}


def _used_otherwise(step: Extern) -> set[str]:
    """Return the buffers that an ATen op uses as anything but an image or a weight."""
    positions = _IMAGES.get(step.op)
    if positions is None:
        return {*reads_of(step), *writes_of(step)}
    known = {*positions.args, positions.weight}
    args = [part for n, part in enumerate(step.args) if n not in known]
    images = {*positions.results, positions.weight_result}
    results = [name for n, name in enumerate(step.results) if n not in images and name is not None]
    return {*replace(step, args=tuple(args), kwargs={}).references, *results}


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


def _propagated(chosen: set[str], last: set[str], free: set[str], program: LoopProgram) -> set[str]:
    """Extend the choice to images that nests or poolings access together with chosen ones."""
    chosen = set(chosen)
    touched = list(_touched_together(program))
    before = -1
    while before != len(chosen):
        before = len(chosen)
        for names, alike in touched:
            changed = names & (chosen | last)
            shapes = {program.buffers[name].shape for name in changed}
            chosen.update(
                name
                for name in names & free
                if changed and (not alike or program.buffers[name].shape in shapes)
            )
    return chosen


def _touched_together(program: LoopProgram) -> Iterable[tuple[set[str], bool]]:
    """Return the buffers of each step that should have equal layouts; of nests only equal
    shapes.
    """
    for step in program.steps:
        if isinstance(step, Nest):
            yield {*reads_of(step), *writes_of(step)}, True
        elif isinstance(step, Extern) and step.op in _IMAGES and _IMAGES[step.op].weight is None:
            yield set(_images(step)), False


def _channels_last(buffer: Buffer) -> Buffer:
    _, channels, height, width = buffer.shape
    stride = (channels * height * width, 1, width * channels, channels)
    return replace(buffer, stride=stride)


def _with_copies(step: Step, changed: set[str], buffers: dict[str, Buffer]) -> list[Step]:
    """Return the convolution, reading channels_last copies of images in another order."""
    assert isinstance(step, Extern)
    steps: list[Step] = []
    args = list(step.args)
    for position in _IMAGES[step.op].args:
        name = args[position].name
        if name in changed:
            continue
        # cuDNN would make the same copy inside of each call; a nest can be fused with its producer.
        copy, buffer = f"{step.name}_image{position or ''}", buffers[name]
        buffers[copy] = _channels_last(replace(buffer, name=copy, role="temp"))
        axes = tuple(Axis(f"{copy}{n}", extent) for n, extent in enumerate(buffer.shape))
        point = tuple(AxisVar(axis) for axis in axes)
        store = Store(copy, (), point, Load(name, point, buffer.dtype))
        steps.append(Nest(copy, axes, (store,), (copy,)))
        args[position] = BufferRef(copy)
    return [*steps, replace(step, args=tuple(args))]
