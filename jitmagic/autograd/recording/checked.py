"""Replacements for torch composites that would skip a data check while a graph is recorded.

In: a torch function as the graph names it. Out: the same function, or one that gives the same
result. Some composites look at their data before they compute. On tensors without data the C++ code
skips those checks, and the recorded graph would answer where eager raises. The replacements
therefore check the data with graph operations. A graph that raises is run again as eager, so the
user reads eager's own error. A recurrent layer without a gradient stays one operation; a gradient
of data-dependent size is computed with masks.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ...compat.modes import BelowAutograd
from ...devices import row_of
from ...errors import ASSERTION
from ...graph.node_meta import tensors_in
from ...graph.operators.recurrent import RECURRENT
from ...torch_types import AnyFunction
from .products import prod

__all__ = ["data_checked"]

Number = torch.Tensor | int | float | bool
Indices = tuple[torch.Tensor | None, ...] | list[torch.Tensor | None]


def data_checked(function: AnyFunction) -> AnyFunction:
    """Return the function to call in place of `function` while a graph is recorded."""
    if function in RECURRENT:
        return partial(_recurrent, function)
    return _CHECKED.get(function, function)


def _recurrent(function: AnyFunction, *args: Any) -> object:
    """Keep the layer one operation by calling it below autograd, where composites are not
    decomposed. With dropout it is decomposed: only the parts show how its draws interleave with
    other draws.
    """
    _, _, _, _, layers, dropout, train, *_ = args
    draws = train and dropout and layers > 1
    if draws or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in(args))):
        return function(*args)
    with BelowAutograd():
        return function(*args)


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Return the one-hot encoding by scatter, which refuses classes outside [0, num_classes)
    too.
    """
    made = torch.zeros(*tensor.shape, num_classes, dtype=torch.long, device=tensor.device)
    return made.scatter(-1, tensor.unsqueeze(-1), 1)


def _index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: Number) -> torch.Tensor:
    chosen = _fill_mask(x, dim, index, value)
    return x.index_fill(dim, index, value) if chosen is None else torch.where(chosen, value, x)


def _index_fill_in_place(
    x: torch.Tensor, dim: int, index: torch.Tensor, value: Number
) -> torch.Tensor:
    chosen = _fill_mask(x, dim, index, value)
    if chosen is None:
        return x.index_fill_(dim, index, value)
    return x.copy_(torch.where(chosen, value, x))


def _fill_mask(
    x: torch.Tensor, dim: int, index: torch.Tensor, value: Number
) -> torch.Tensor | None:
    """Return a mask of the elements that are filled, or None to call index_fill itself.

    Torch's gradient of the value sums over the unique indices, whose number depends on data; the
    gradient of `where` does not. Negative indices, which index_fill accepts, are refused, as
    index_copy does: on a GPU that would be an assertion in the kernel, before eager's error.
    """
    if not (isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled()):
        return None
    if value.dim() or value.dtype != x.dtype or index.dtype != torch.long or index.dim() > 1:
        return None
    if any(row_of(part.device).kernels != "cpu" for part in (x, index, value)):
        return None
    # torch's gradient raises for a 0-dim tensor and an empty index, so index_fill has to raise it.
    if not x.dim() and not index.numel():
        return None
    extent = x.shape[dim] if x.dim() else 1
    flat = index.reshape(-1)
    chosen = torch.zeros(extent, dtype=torch.bool)
    chosen = chosen.index_copy(0, flat, torch.ones_like(flat, dtype=torch.bool))
    return chosen.view([extent if d == dim % x.dim() else 1 for d in range(x.dim())])


def _index_put(
    x: torch.Tensor, indices: Indices, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    mask = _filling_mask(x, indices, values)
    if mask is None:
        return x.index_put(indices, values, accumulate)
    stride = torch.empty_like(x).stride()
    order = sorted(range(x.dim()), key=lambda dim: -stride[dim])
    made = _filled(x, mask, values, accumulate, order)
    return made.permute([order.index(dim) for dim in range(x.dim())])  # laid out as x


def _index_put_in_place(
    x: torch.Tensor, indices: Indices, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    mask = _filling_mask(x, indices, values)
    if mask is None:
        return x.index_put_(indices, values, accumulate)
    return x.copy_(_filled(x, mask, values, accumulate, list(range(x.dim()))))


def _set_item(x: torch.Tensor, key: Any, values: Number) -> None:
    if isinstance(values, torch.Tensor):
        mask = _filling_mask(x, (key,), values)
        if mask is not None:
            x.copy_(_filled(x, mask, values, False, list(range(x.dim()))))
            return
    x[key] = values


def _filling_mask(
    x: torch.Tensor, indices: Sequence[object], values: torch.Tensor
) -> torch.Tensor | None:
    """Return the mask if it alone selects where a differentiable tensor is written, the same row
    each time.

    Torch's gradient of the values indexes with the mask and gets one row per true element.
    """
    if not (values.requires_grad and torch.is_grad_enabled()):
        return None
    mask = indices[0] if len(indices) == 1 else None
    if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool or not mask.dim():
        return None
    if tuple(mask.shape) != tuple(x.shape[: mask.dim()]) or values.dtype is not x.dtype:
        return None
    if not x.device == mask.device == values.device:
        return None
    rest, shape = x.shape[mask.dim() :], tuple(values.shape)
    split = max(len(shape) - len(rest), 0)
    same_rows = all(n == 1 for n in shape[:split]) and split <= 1
    pairs = zip(reversed(shape[split:]), reversed(rest), strict=False)
    return mask if same_rows and all(n in (1, m) for n, m in pairs) else None


def _filled(
    x: torch.Tensor,
    mask: torch.Tensor,
    values: torch.Tensor,
    accumulate: bool,
    order: list[int],
) -> torch.Tensor:
    """Return the new contents of x with dimensions permuted to `order`, which is memory order."""
    rest = x.dim() - mask.dim()
    where = mask.view((*mask.shape, *[1] * rest)).expand(x.shape)
    part = values.view(values.shape[max(values.dim() - rest, 0) :]).expand(x.shape)
    where, part, x = (t.permute(order) for t in (where, part, x))
    return torch.where(where.contiguous(), x + part if accumulate else part, x)


def _quantile(
    function: AnyFunction, input: torch.Tensor, q: object, *args: object, **options: object
) -> object:
    """Check that q is in [0, 1]: unchecked, a negative q would select the first elements."""
    if isinstance(q, torch.Tensor):
        outside = ((q >= 0) & (q <= 1)).all().logical_not().to(torch.int32)
        torch.ops.aten._linalg_check_errors(outside.detach(), ASSERTION, is_matrix=True)
    return function(input, q, *args, **options)


_QUANTILES: tuple[AnyFunction, ...] = (
    torch.quantile, torch.nanquantile, torch.Tensor.quantile, torch.Tensor.nanquantile
)  # fmt: skip
_CHECKED: dict[AnyFunction, AnyFunction] = {
    **{function: partial(_quantile, function) for function in _QUANTILES},
    torch.nn.functional.one_hot: _one_hot,
    torch.index_fill: _index_fill,
    torch.Tensor.index_fill: _index_fill,
    torch.Tensor.index_fill_: _index_fill_in_place,
    torch.index_put: _index_put,
    torch.Tensor.index_put: _index_put,
    torch.Tensor.index_put_: _index_put_in_place,
    torch.index_put_: _index_put_in_place,
    operator.setitem: _set_item,
    torch.prod: prod,
    torch.Tensor.prod: prod,
}
