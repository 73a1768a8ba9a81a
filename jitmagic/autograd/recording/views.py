"""Views as steps: how a view is read off its base, and how a write goes back into it.

A `ViewStep` is one ATen view operation with its arguments. `apply` records the view of a base
value; `write_back` records the whole new base when the view got a new value (slice_scatter and
friends for a part, the inverse reshape for all of it). Views whose write cannot be expressed raise
CompileFailed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import CompileFailed
from ...graph.operators.tensor_iterator import dense
from ...graph.symbolic.sym_node import as_dimension
from ...symbols.size import Dimension, hint_of
from ..nodes import is_view
from .recorder import Sym

__all__ = [
    "CONJUGATE",
    "UNSAFE_SPLITS",
    "ViewStep",
    "are_apart",
    "is_conjugate",
    "may_overlap",
    "split_steps",
]

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view operation without its tensor argument."""

    op: Any
    args: tuple[Any, ...]

    @property
    def is_part(self) -> bool:
        """Whether the view may leave elements of its base out."""
        return self.op in _PARTS

    def apply(self, base: Sym) -> Sym:
        return base.one(self.op, *self.args)

    def write_back(self, base: Sym, value: Sym) -> Sym:
        """The base after `apply(base)` was overwritten by `value`."""
        rule = _WRITE_BACK.get(self.op)
        if rule is None:
            raise CompileFailed(f"an in-place write through {self.op} is not understood")
        return rule(base, value, *self.args)


# Lazy in eager: memory keeps the numbers as they are. Values of the graph are the numbers read.
CONJUGATE = ViewStep(aten._conj_physical.default, ())


def is_conjugate(path: Sequence[ViewStep]) -> bool:
    """Whether what the steps lead to has the conjugate bit in eager."""
    return sum(step is CONJUGATE for step in path) % 2 == 1


def _reshaped(base: Sym, value: Sym, *args: Any) -> Sym:
    return value.view(*base.shape)


def _permuted(base: Sym, value: Sym, dims: list[int]) -> Sym:
    order = [d % len(dims) for d in dims]
    return value.permute(*(order.index(d) for d in range(len(dims))))


def _transposed(base: Sym, value: Sym, dim0: int, dim1: int) -> Sym:
    return value.one(aten.transpose.int, dim0, dim1)


def _t(base: Sym, value: Sym) -> Sym:
    return value.one(aten.t.default)


def _redtyped(base: Sym, value: Sym, dtype: torch.dtype) -> Sym:
    # A bool is any byte but 0 in memory, and 0 or 1 once it is a value: the other bytes, which
    # eager keeps, would be lost in the parts of the base that the write leaves alone too.
    if dtype is not base.dtype and torch.bool in (dtype, base.dtype):
        raise CompileFailed(f"an in-place write to {base.dtype} as {dtype} is not understood")
    return value.one(aten.view.dtype, base.dtype)


def _selected(base: Sym, value: Sym, dim: int, index: int) -> Sym:
    return base.one(aten.select_scatter.default, value, dim, index)


def _sliced(
    base: Sym,
    value: Sym,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Sym:
    return base.one(aten.slice_scatter.default, value, dim, start, end, step)


def _diagonal(base: Sym, value: Sym, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Sym:
    return base.one(aten.diagonal_scatter.default, value, offset, dim1, dim2)


def _strided(
    base: Sym, value: Sym, size: list[int], stride: list[int], offset: int | None = None
) -> Sym:
    if may_overlap(size, stride):
        raise CompileFailed("an in-place write through overlapping as_strided is not understood")
    if base.meta.storage_offset() or is_view(base.node):
        base, offset = _alone(base, size, stride, offset)
    return base.one(aten.as_strided_scatter.default, value, size, stride, offset)


def _alone(
    base: Sym, size: list[int], stride: list[int], offset: int | None
) -> tuple[Sym, int | None]:
    """A part of a storage as a copy, and the offset in it: the scatter lays out the storage of
    its argument. What it writes has to lie in that part.
    """
    start = 0 if offset is None else offset - as_dimension(base.meta.storage_offset())
    last = start + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if not dense(base.shape, base.strides) or start < 0 or last >= base.numel:
        raise CompileFailed("an in-place write through as_strided leaves the view it is taken of")
    return base.one(aten.clone.default), None if offset is None else start


def may_overlap(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two elements of that layout may share one place in memory."""
    reach = 0
    for extent, step in sorted(
        (pair for pair in zip(size, stride, strict=True) if pair[0] > 1), key=lambda pair: pair[1]
    ):
        if step <= reach:
            return True
        reach += (extent - 1) * step
    return False


_WRITE_BACK: dict[Any, Callable[..., Sym]] = {
    aten.view.default: _reshaped,
    aten.squeeze.default: _reshaped,
    aten.squeeze.dim: _reshaped,
    aten.squeeze.dims: _reshaped,
    aten.unsqueeze.default: _reshaped,
    aten.permute.default: _permuted,
    aten.transpose.int: _transposed,
    aten.t.default: _t,
    aten.view.dtype: _redtyped,
    aten.select.int: _selected,
    aten.slice.Tensor: _sliced,
    aten.diagonal.default: _diagonal,
    aten.as_strided.default: _strided,
}


_PARTS = frozenset(
    (aten.select.int, aten.slice.Tensor, aten.diagonal.default, aten.as_strided.default)
)


def split_steps(op: Any, shape: tuple[int, ...], args: tuple[Any, ...]) -> list[ViewStep] | None:
    """A view operation with several results as one slice or select per result; None: it has one."""
    if op is aten.unbind.int:
        dim = (args[0] if args else 0) % len(shape)
        return [ViewStep(aten.select.int, (dim, i)) for i in range(_told(shape[dim]))]
    if op is aten.split.Tensor:
        dim = (args[1] if len(args) > 1 else 0) % len(shape)
        size, extent = args[0], shape[dim]
        count = _told(-(-max(extent, 1) // max(size, 1)))
        ends = [*(size * n for n in range(1, count)), extent]
        return [_slice(dim, size * n, end) for n, end in enumerate(ends)]
    if op is aten.split_with_sizes.default:
        dim = (args[1] if len(args) > 1 else 0) % len(shape)
        steps, start = [], 0
        for size in args[0]:
            steps.append(_slice(dim, start, start + size))
            start += size
        return steps
    return None


def _told(count: Dimension) -> int:
    """How many there are in this call: guarded, as the program has a name for each."""
    number = hint_of(count)
    if count != number:
        raise CompileFailed("the number of parts is not known")
    return number


# Their results share memory, of which autograd knows nothing: the views that they are.
UNSAFE_SPLITS: dict[Any, Any] = {
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
}


def are_apart(one: Sequence[ViewStep], other: Sequence[ViewStep]) -> bool:
    """Whether two views of one tensor are seen to have no element in common: parts of a split."""
    ours, theirs = (_extent(path[0]) if path else None for path in (one, other))
    if ours is None or theirs is None or ours[0] != theirs[0]:
        return False
    return ours[2] <= theirs[1] or theirs[2] <= ours[1]


def _extent(step: ViewStep) -> tuple[int, int, int] | None:
    """Which entries of which dimension a step picks, from and to; None: it is no such step."""
    if not all(type(number) is int and number >= 0 for number in step.args):
        return None
    if step.op is aten.select.int:
        dim, index = step.args
        return dim, index, index + 1
    if step.op is aten.slice.Tensor and len(step.args) == 3:
        dim, start, end = step.args
        return dim, start, end
    return None


def _slice(dim: int, start: int, end: int) -> ViewStep:
    return ViewStep(aten.slice.Tensor, (dim, start, end))
