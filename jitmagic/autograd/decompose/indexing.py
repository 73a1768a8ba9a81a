"""Joining, repeating and the backwards of views."""

from __future__ import annotations

import math

import torch

from ...graph.fresh_meta import joins_to_rows
from ..recording.recorder import Recorder, Sym
from .registry import rule

__all__: list[str] = []

aten = torch.ops.aten


@rule(aten.stack.default, complex_too=True)
def _stack(r: Recorder, tensors: list[Sym], dim: int = 0) -> Sym:
    shape = tensors[0].shape
    dim %= len(shape) + 1
    if dim < len(shape) and not joins_to_rows([part.meta for part in tensors]):
        # Eager does so too: if all parts are channels_last, the result is.
        joined = r.emit_one(aten.cat.default, tensors, dim)
        return joined.view(*shape[:dim], len(tensors), *shape[dim:])
    return r.emit_one(aten.cat.default, [part.unsqueeze(dim) for part in tensors], dim)


@rule(aten.repeat.default, complex_too=True)
def _repeat(r: Recorder, x: Sym, repeats: list[int]) -> Sym:
    # More repeats than dimensions add dimensions in front, as in numpy.tile.
    missing = len(repeats) - len(x.shape)
    shape = (*(1,) * missing, *x.shape)
    repeated = tuple(n * extent for n, extent in zip(repeats, shape, strict=True))
    # A size of 0 cannot be expanded: the expanded view below would have no elements to copy.
    if not math.prod(repeated):
        return r.full(repeated, 0, x.dtype, x.device)
    # (a, b) repeated (m, n) times is (1, a, 1, b) expanded to (m, a, n, b): a read with strides of
    # 0, which fuses into the reader's loop.
    apart = x.view(*(part for extent in shape for part in (1, extent)))
    spread = apart.expand(
        *(p for n, extent in zip(repeats, shape, strict=True) for p in (n, extent))
    )
    whole = spread.one(aten.clone.default, memory_format=torch.contiguous_format)
    return whole.view(*repeated)


# The zeros are never written: the lowering of a scatter into a constant is a condition on the
# index.
def _blank(r: Recorder, grad: Sym, sizes: list[int]) -> Sym:
    return r.full(tuple(sizes), 0, grad.dtype, grad.device)


@rule(aten.select_backward.default, complex_too=True)
def _select_backward(r: Recorder, grad: Sym, sizes: list[int], dim: int, index: int) -> Sym:
    return _blank(r, grad, sizes).one(aten.select_scatter.default, grad, dim, index)


@rule(aten.slice_backward.default, complex_too=True)
def _slice_backward(
    r: Recorder, grad: Sym, sizes: list[int], dim: int, start: int, end: int, step: int
) -> Sym:
    return _blank(r, grad, sizes).one(aten.slice_scatter.default, grad, dim, start, end, step)


@rule(aten.diagonal_backward.default, complex_too=True)
def _diagonal_backward(
    r: Recorder, grad: Sym, sizes: list[int], offset: int, dim1: int, dim2: int
) -> Sym:
    return _blank(r, grad, sizes).one(aten.diagonal_scatter.default, grad, offset, dim1, dim2)
