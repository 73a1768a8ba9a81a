"""Traces view operations of the program as tensors that share memory.

In: a call of an ATen view operation on traced tensors, or of one whose results share memory without
autograd knowing (unsafe_split). Out: traced tensors of the same cell with their view steps. Raises
CompileFailed for what cannot be modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from ...compat.modes import DispatchModesOff
from ...compat.operators import has_kernel
from ...errors import CompileFailed
from ...graph.operators.tensor_iterator import dense
from ...graph.symbolic.sym_node import as_dimensions
from ...protocols import Protocol
from ...torch_types import OpOverload
from .aten_call import AtenCall
from .recorder import Sym
from .traced import AliasCall, Traced
from .views import UNSAFE_SPLITS, ViewStep, split_steps

__all__ = ["VIEW_CALLS", "is_like_another", "refuse", "view"]

aten = torch.ops.aten


class Tracing(Protocol):
    """The interface of the recording mode that the handlers need."""

    def traced(self, tensor: torch.Tensor) -> Traced: ...
    def value(self, tensor: torch.Tensor) -> Sym: ...
    def fresh(self, sym: Sym) -> Traced: ...


Handler = Callable[[Tracing, AtenCall], object]


def view(mode: Tracing, call: AtenCall) -> object:
    source = mode.traced(call.args[0])
    rest = call.after_tensor
    # A conjugate view is lazy: its memory holds the values before conjugation, and both read
    # memory.
    if source.is_conj() and call.op in (aten.view_as_real.default, aten.view.dtype):
        raise CompileFailed(f"{call.op} of a conjugate view")
    steps = split_steps(call.op, as_dimensions(source.shape), rest)
    if steps is not None:
        return _split(AliasCall(call.op, source, rest, len(steps)), steps)
    return _viewed(AliasCall(call.op, source, rest), ViewStep(call.op, rest))


def _split(call: AliasCall, steps: Sequence[ViewStep]) -> list[Traced]:
    return [_viewed(call, step, index) for index, step in enumerate(steps)]


def _viewed(call: AliasCall, step: ViewStep, index: int = 0) -> Traced:
    source = call.source
    layout = source.memory_layout()
    if layout is not None:
        layout = step.op(layout, *step.args)
    sym = step.apply(source.sym)
    path = (*source.path, step)
    counter = None if call.op in UNSAFE_SPLITS else source.counter
    return Traced.make(sym, source.cell, path, False, layout, (call, index), counter)


def _same(mode: Tracing, call: AtenCall) -> object:
    """Handle detach and alias: another tensor for the same memory."""
    source = mode.traced(call.args[0])
    origin = AliasCall(call.op, source), 0
    layout = source.memory_layout()
    return Traced.make(source.sym, source.cell, source.path, False, layout, origin, source.counter)


def _unsafe_split(mode: Tracing, call: AtenCall) -> list[Traced]:
    """Return parts of a tensor's memory that autograd treats as separate tensors: it does not see a
    write to one in the others.
    """
    source = mode.traced(call.args[0])
    rest = call.after_tensor
    steps = split_steps(UNSAFE_SPLITS[call.op], as_dimensions(source.shape), rest)
    assert steps is not None
    return _split(AliasCall(call.op, source, rest, len(steps)), steps)


def _reshape_alias(mode: Tracing, call: AtenCall) -> object:
    source = mode.traced(call.args[0])
    step = ViewStep(aten.view.default, (call.args[1],))
    return _viewed(AliasCall(call.op, source, call.args[1:]), step)


def _unsafe_view(mode: Tracing, call: AtenCall) -> object:
    """Handle a view of a temporary without other readers: a tensor with memory of its own."""
    made = mode.value(call.args[0]).one(aten.view.default, call.args[1])
    # A tensor with memory of its own starts at offset 0.
    if made.meta.storage_offset():
        made = made.one(aten.clone.default)
    return mode.fresh(made)


def _as_strided(mode: Tracing, call: AtenCall) -> object:
    source = mode.traced(call.args[0])
    if source.cell.frozen:
        # Its memory outlives the call and may be written through the alias: the graph holds a copy.
        raise CompileFailed("as_strided of a tensor constant")
    if source.cell.input is None:
        return view(mode, call)
    size, stride, *offset = call.after_tensor
    # Without an offset as_strided keeps the tensor's own.
    start = source.storage_offset() if offset in ([], [None]) else offset[0]
    sym = source.cell.value
    if source.dtype is not sym.dtype or source.is_conj():
        raise CompileFailed("as_strided of a graph input viewed as another dtype")
    if sym.strides != source.cell.first.strides:
        raise CompileFailed("as_strided of a graph input whose strides changed with a write")
    steps = _within(sym, size, stride, int(start))
    for step in steps:
        sym = step.apply(sym)
    origin = AliasCall(call.op, source, (size, stride, *offset)), 0
    return Traced.make(sym, source.cell, steps, False, None, origin, source.counter)


def _within(input: Sym, size: list[int], stride: list[int], start: int) -> tuple[ViewStep, ...]:
    """Express as_strided of a graph input as views relative to its first element. The storage
    offset of that element differs from call to call.
    """
    if not dense(input.shape, input.strides):
        raise CompileFailed("as_strided of a graph input with gaps or overlaps")
    count = input.numel
    last = start + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if start < 0 or (0 not in size and last >= count):
        raise CompileFailed("as_strided reaches beyond a graph input")
    laid = ViewStep(aten.as_strided.default, (size, stride))
    if not start:
        return (laid,)
    flat = ViewStep(aten.as_strided.default, ([count], [1]))
    return flat, ViewStep(aten.slice.Tensor, (0, start, count)), laid


def _as_strided_in_place(mode: Tracing, call: AtenCall) -> object:
    """Relabel the strides of size-1 dimensions, as pooling does on its fresh result, and refuse
    more.
    """
    target, size, stride = mode.traced(call.args[0]), call.args[1], call.args[2]
    kept = tuple(size) == tuple(target.shape) and (len(call.args) < 4 or call.args[3] in (None, 0))
    moved = any(
        extent > 1 and old != new
        for extent, old, new in zip(target.shape, target.stride(), stride, strict=True)
    )
    owned = target.cell.input is None and not target.cell.frozen and not target.path
    if moved or not kept or not owned:
        refuse(mode, call)
    target._sym = target.cell.value = target.sym.recorder.restride(target.sym, tuple(stride))
    with DispatchModesOff():
        call.run()  # update the strides that C++ sees
    return target


def _relabel(mode: Tracing, call: AtenCall) -> object:
    """Handle squeeze_, t_ and the like: the tensor becomes a view of its former self."""
    target = mode.traced(call.args[0])
    if target.cell.input is not None or target.cell.frozen:
        raise CompileFailed(f"{call.op} changes the shape of a tensor that is not the graph's own")
    step = ViewStep(_RELABELLED[call.op], call.after_tensor)
    target._sym = step.apply(target.sym)
    target.path = (*target.path, step)
    target._version_read = target.cell.version
    target.label += 1
    with DispatchModesOff():
        call.run()  # update the sizes that C++ sees
    return target


def refuse(mode: Tracing, call: AtenCall) -> object:
    raise CompileFailed(f"{call.op} changes a tensor's metadata, or reads its data")


_RELABELLED: Mapping[OpOverload, OpOverload] = {
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.unsqueeze_.default: aten.unsqueeze.default,
    aten.transpose_.default: aten.transpose.int,
    aten.t_.default: aten.t.default,
}

VIEW_CALLS: Mapping[OpOverload, Handler] = {
    **dict.fromkeys(_RELABELLED, _relabel),
    **dict.fromkeys(UNSAFE_SPLITS, _unsafe_split),
    aten.detach.default: _same,
    aten.alias.default: _same,
    aten._reshape_alias.default: _reshape_alias,
    aten._unsafe_view.default: _unsafe_view,
    aten.as_strided.default: _as_strided,
    aten.as_strided_.default: _as_strided_in_place,
}


def is_like_another(func: OpOverload) -> bool:
    """Return whether it is a composite view that has the sizes of another tensor. The dispatcher
    runs composites itself, but not below the level of a tensor subclass.
    """
    tensors = sum(isinstance(a.type, torch.TensorType) for a in func._schema.arguments)
    return tensors > 1 and bool(has_kernel(func.name(), "CompositeImplicitAutograd"))
