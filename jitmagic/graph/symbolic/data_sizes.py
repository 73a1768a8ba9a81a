"""Infers results with data-dependent shapes: `nonzero`, `x[mask]`, `unique`.

Input: such an operator on meta tensors, and a function that creates an unbacked size within limits.
Output: its results with that size, or None if no rule is certain. Nothing in a graph is decided by
such a size (symbols/context.py); the calls that read it are compiled separately from the call that
creates it (graph/symbolic/data_split.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...symbols.size import Dimension, Size, lower_bound, upper_bound
from ...torch_types import AnyFunction, Kwargs, OpOverload
from ..fresh_meta import fresh_meta, same_shape
from ..operators.recurrent import differentiable
from ..operators.registered import infer_with_new_sizes
from .sym_node import as_dimension, as_torch

__all__ = ["NewSize", "infer_data_dependent", "infer_padded_sequence"]

aten = torch.ops.aten
Tensor = torch.Tensor
NewSize = Callable[[int, int], Size | None]
"""Creates an unbacked size within limits (least, most); None if that is not allowed here."""
_MOST = 2**31
_MASKS = (torch.bool, torch.uint8)


class _Refused(Exception):
    """Raised if no unbacked size can be created here."""


class _Sizes:
    """Creates the sizes of one call's results."""

    def __init__(self, fresh: NewSize) -> None:
        self._fresh = fresh

    def up_to(self, most: object, least: int = 0) -> Any:
        made = self._fresh(least, min(upper_bound(as_dimension(most)), _MOST))
        if made is None:
            raise _Refused
        return as_torch(made)

    def within(self, least: int, most: int | None) -> Any:
        return self.up_to(_MOST if most is None else most, least)


def infer_data_dependent(
    op: OpOverload,
    args: Sequence[Any],
    kwargs: Kwargs,
    fresh: NewSize,
    call: AnyFunction,
) -> object:
    """Return the operator's results on the meta device, or None. `call` runs an operator there."""
    sizes = _Sizes(fresh)
    try:
        if op is aten.index.Tensor:
            return _by_masks(sizes, call, *args)
        if (rule := _RULES.get(op)) is not None:
            return rule(sizes, *args, **kwargs)
        return infer_with_new_sizes(op, args, kwargs, sizes.within)
    except _Refused:
        return None


def _count(x: Tensor) -> Dimension:
    count: Dimension = 1
    for size in x.shape:
        count = as_dimension(size) * count
    return count


def _nonzero(sizes: _Sizes, x: Tensor) -> Tensor:
    """Infer nonzero, which is column-major."""
    count = sizes.up_to(_elements(x))
    return fresh_meta((count, x.dim()), torch.int64, (1, count))


def _elements(x: Tensor) -> Any:
    return as_torch(_count(x))


def _masked_select(sizes: _Sizes, x: Tensor, mask: Tensor) -> Tensor | None:
    if mask.dtype is not torch.bool:
        return None
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    count = sizes.up_to(_elements(fresh_meta(shape, torch.bool)))
    return fresh_meta((count,), x.dtype)


def _by_masks(
    sizes: _Sizes, call: AnyFunction, x: Tensor, indices: Sequence[Tensor | None]
) -> object:
    """Infer indexing by masks: a mask becomes one index of the true coordinates per dimension."""
    if not any(one is not None and one.dtype in _MASKS for one in indices):
        return None
    made: list[Tensor | None] = []
    for one in indices:
        if one is None or one.dtype not in _MASKS:
            made.append(one)
        elif not one.dim() or not same_shape(one.shape, x.shape[len(made) :][: one.dim()]):
            return None
        else:
            count = sizes.up_to(_elements(one))
            made += [fresh_meta((count,), torch.int64) for _ in range(one.dim())]
    return call(aten.index.Tensor, (x, made))


def _unique(
    sizes: _Sizes, x: Tensor, in_order: bool = True, inverse: bool = False, counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    count = sizes.up_to(_elements(x))
    return (
        fresh_meta((count,), x.dtype),
        fresh_meta(x.shape if inverse else (0,), torch.int64),
        fresh_meta((count,) if counts else (0,), torch.int64),
    )


def _unique_consecutive(
    sizes: _Sizes, x: Tensor, inverse: bool = False, counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor] | None:
    return _unique(sizes, x, True, inverse, counts) if dim is None and x.dim() else None


def _repeated(sizes: _Sizes, repeats: Tensor, *, output_size: int | None = None) -> Tensor | None:
    if repeats.dim() != 1 or output_size is not None:
        return None
    return fresh_meta((sizes.up_to(_MOST),), repeats.dtype)


def _counted(
    sizes: _Sizes, x: Tensor, weights: Tensor | None = None, minlength: int = 0
) -> Tensor | None:
    whole = x.dim() == 1 and not x.dtype.is_floating_point and x.dtype is not torch.bool
    least = as_dimension(minlength)
    if not whole or not isinstance(least, int | Size) or least < 0:
        return None
    dtype = torch.int64
    if weights is not None:
        if not same_shape(weights.shape, x.shape):
            return None
        dtype = torch.float32 if weights.dtype is torch.float32 else torch.float64
    return fresh_meta((sizes.up_to(_MOST, lower_bound(least)),), dtype)


def _ctc_loss(
    sizes: _Sizes, log_probs: Tensor, targets: Tensor, *args: object
) -> tuple[Tensor, Tensor] | None:
    """Infer the loss, and the saved table whose length is that of the longest target."""
    if log_probs.dim() not in (2, 3) or not log_probs.dtype.is_floating_point:
        return None
    batch = log_probs.shape[1:-1]
    path = fresh_meta((*(batch or (1,)), log_probs.shape[0], sizes.up_to(_MOST)), log_probs.dtype)
    return fresh_meta(batch, log_probs.dtype), path


def _packed(
    sizes: _Sizes, x: Tensor, lengths: Tensor, batch_first: bool
) -> tuple[Tensor, Tensor] | None:
    """Infer the rows of all steps, and the number of rows in each step."""
    if x.dim() < 2 or lengths.dim() != 1 or lengths.dtype is not torch.int64:
        return None
    count, steps = x.shape[0] * x.shape[1], x.shape[1 if batch_first else 0]
    rows = fresh_meta((sizes.up_to(count, 1), *x.shape[2:]), x.dtype)
    return rows, fresh_meta((sizes.up_to(steps, 1),), torch.int64)


def infer_padded_sequence(
    fresh: NewSize, rows: Tensor, counts: Tensor, batch_first: bool, padding: object, steps: Any
) -> tuple[Tensor, Tensor] | None:
    """Infer `_pad_packed_sequence`, which torch decomposes before a dispatch mode sees it: there
    are as many sequences as the first step has rows.
    """
    if not rows.dim() or counts.dim() != 1:
        return None
    try:
        batch = _Sizes(fresh).up_to(rows.shape[0], 1)
    except _Refused:
        return None
    made = differentiable(fresh_meta((steps, batch, *rows.shape[1:]), rows.dtype), [rows])
    return made.transpose(0, 1) if batch_first else made, fresh_meta((batch,), torch.int64)


_RULES: Mapping[OpOverload, AnyFunction] = {
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten._unique2.default: _unique,
    aten.unique_consecutive.default: _unique_consecutive,
    aten.repeat_interleave.Tensor: _repeated,
    aten.bincount.default: _counted,
    aten._ctc_loss.Tensor: _ctc_loss,
    aten._pack_padded_sequence.default: _packed,
}
