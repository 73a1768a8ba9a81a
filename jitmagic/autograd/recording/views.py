"""Defines view steps, which read a view from its base and write it back into the base.

A `ViewStep` is one ATen view operation with its arguments. `apply` records the view of a base
value; `write_back` records the whole new base for a new value of the view (slice_scatter and
friends for a part, the inverse reshape for all of it). Views without an inverse raise
CompileFailed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...errors import CompileFailed
from ...graph.operators.tensor_iterator import dense
from ...graph.symbolic.sym_node import as_dimension
from ...lazy_dataclass import dataclass
from ...symbols.size import Dimension, hint_of
from ...torch_types import OpOverload
from ..nodes import is_view
from .recorder import Sym

__all__ = [
    "CONJUGATE",
    "UNSAFE_SPLITS",
    "ViewStep",
    "are_disjoint",
    "is_conjugate",
    "may_overlap",
    "split_steps",
]

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view operation without its tensor argument."""

    op: OpOverload
    args: tuple[Any, ...]

    @property
    def is_part(self) -> bool:
        """Return whether the view may leave elements of its base out."""
        return self.op in _PARTS

    def apply(self, base: Sym) -> Sym:
        return base.one(self.op, *self.args)

    def write_back(self, base: Sym, value: Sym) -> Sym:
        """Return the base after `apply(base)` was overwritten by `value`."""
        rule = _WRITE_BACK.get(self.op)
        if rule is None:
            raise CompileFailed(f"an in-place write through {self.op} is not supported")
        return rule(base, value, *self.args)


# Eager conjugates lazily: memory keeps the numbers. Graph values are the numbers as read.
CONJUGATE = ViewStep(aten._conj_physical.default, ())


def is_conjugate(path: Sequence[ViewStep]) -> bool:
    """Return whether a view along these steps has the conjugate bit in eager."""
    return sum(step is CONJUGATE for step in path) % 2 == 1


def _reshaped(base: Sym, value: Sym, *args: object) -> Sym:
    return value.view(*base.shape)


def _permuted(base: Sym, value: Sym, dims: list[int]) -> Sym:
    order = [d % len(dims) for d in dims]
    return value.permute(*(order.index(d) for d in range(len(dims))))


def _transposed(base: Sym, value: Sym, dim0: int, dim1: int) -> Sym:
    return value.one(aten.transpose.int, dim0, dim1)


def _t(base: Sym, value: Sym) -> Sym:
    return value.one(aten.t.default)


def _redtyped(base: Sym, value: Sym, dtype: torch.dtype) -> Sym:
    # A bool in memory is any nonzero byte, as a value it is 0 or 1. Eager keeps the other bytes; a
    # write back would lose them, also in parts of the base that are not written.
    if dtype is not base.dtype and torch.bool in (dtype, base.dtype):
        raise CompileFailed(f"an in-place write to {base.dtype} as {dtype} is not supported")
    return value.one(aten.view.dtype, base.dtype)


def _as_complex(base: Sym, value: Sym) -> Sym:
    return value.one(aten.view_as_complex.default)


def _as_real(base: Sym, value: Sym) -> Sym:
    return value.one(aten.view_as_real.default)


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
        raise CompileFailed("an in-place write through overlapping as_strided is not supported")
    if base.meta.storage_offset() or is_view(base.node):
        base, offset = _copied_base(base, size, stride, offset)
    return base.one(aten.as_strided_scatter.default, value, size, stride, offset)


def _copied_base(
    base: Sym, size: list[int], stride: list[int], offset: int | None
) -> tuple[Sym, int | None]:
    """Return the base as a copy and the offset in it, since the scatter writes the whole storage of
    its argument. The region written must be inside the base.
    """
    start = 0 if offset is None else offset - as_dimension(base.meta.storage_offset())
    last = start + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if not dense(base.shape, base.strides) or start < 0 or last >= base.numel:
        raise CompileFailed("an in-place write through as_strided exceeds its base view")
    return base.one(aten.clone.default), None if offset is None else start


def may_overlap(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether two elements of the layout may share memory."""
    reach = 0
    for extent, step in sorted(
        (pair for pair in zip(size, stride, strict=True) if pair[0] > 1), key=lambda pair: pair[1]
    ):
        if step <= reach:
            return True
        reach += (extent - 1) * step
    return False


_WRITE_BACK: dict[OpOverload, Callable[..., Sym]] = {
    aten.view.default: _reshaped,
    aten.squeeze.default: _reshaped,
    aten.squeeze.dim: _reshaped,
    aten.squeeze.dims: _reshaped,
    aten.unsqueeze.default: _reshaped,
    aten.permute.default: _permuted,
    aten.transpose.int: _transposed,
    aten.t.default: _t,
    aten.view.dtype: _redtyped,
    aten.view_as_real.default: _as_complex,
    aten.view_as_complex.default: _as_real,
    aten.select.int: _selected,
    aten.slice.Tensor: _sliced,
    aten.diagonal.default: _diagonal,
    aten.as_strided.default: _strided,
}


_PARTS = frozenset(
    (aten.select.int, aten.slice.Tensor, aten.diagonal.default, aten.as_strided.default)
)


def split_steps(
    op: OpOverload, shape: tuple[int, ...], args: tuple[Any, ...]
) -> list[ViewStep] | None:
    """Return a view operation with several results as one slice or select each, else None."""
    if op is aten.unbind.int:
        dim = (args[0] if args else 0) % len(shape)
        return [ViewStep(aten.select.int, (dim, i)) for i in range(_known_count(shape[dim]))]
    if op is aten.split.Tensor:
        dim = (args[1] if len(args) > 1 else 0) % len(shape)
        size, extent = args[0], shape[dim]
        count = _known_count(-(-max(extent, 1) // max(size, 1)))
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


def _known_count(count: Dimension) -> int:
    """Return the number of parts in this call and guard it: the program unpacks that many."""
    number = hint_of(count)
    if count != number:
        raise CompileFailed("the number of parts is not known")
    return number


# Autograd does not know that their results share memory; these are the equivalent views.
UNSAFE_SPLITS: dict[OpOverload, OpOverload] = {
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
}


def are_disjoint(one: Sequence[ViewStep], other: Sequence[ViewStep]) -> bool:
    """Return whether two views of one tensor are known to be disjoint: parts of a split."""
    first, second = (_extent(path[0]) if path else None for path in (one, other))
    if first is None or second is None or first[0] != second[0]:
        return False
    return first[2] <= second[1] or second[2] <= first[1]


def _extent(step: ViewStep) -> tuple[int, int, int] | None:
    """Return (dimension, first, end) of the entries a step picks, or None for other steps."""
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
