"""Composites of torch that are called otherwise while a graph is recorded.

In: a torch function as the graph names it. Out: the same function, or one that gives the same
result. Some look at their data before they compute: they are spelled out in operations which check
the data themselves. On tensors without data, C++ composites skip such checks, and the recorded
graph would answer where eager raises. A graph that raises is run again as eager, so the user reads
eager's own words. A recurrent layer that nobody differentiates stays one operation; a gradient of
data-dependent size is spelled out in masks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..graph.node_meta import tensors_in
from ..graph.recurrent import RECURRENT

__all__ = ["spelled_out"]


def spelled_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """What to call in place of `function` while a graph is recorded."""
    if function in RECURRENT:
        return partial(_recurrent, function)
    return _SPELLED.get(function, function)


def _recurrent(function: Callable[..., Any], *args: Any) -> Any:
    """Below autograd a composite is not taken apart. One that drops out draws between its layers,
    in an order with the program's other draws that only its parts have."""
    _, _, _, _, layers, dropout, train, *_ = args
    draws = train and dropout and layers > 1
    if draws or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in(args))):
        return function(*args)
    with torch._C._AutoDispatchBelowAutograd():
        return function(*args)


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """scatter refuses classes outside of [0, num_classes), as one_hot does."""
    made = torch.zeros(*tensor.shape, num_classes, dtype=torch.long, device=tensor.device)
    return made.scatter(-1, tensor.unsqueeze(-1), 1)


def _index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> torch.Tensor:
    chosen = _chosen(x, dim, index, value)
    return x.index_fill(dim, index, value) if chosen is None else torch.where(chosen, value, x)


def _index_fill_in_place(
    x: torch.Tensor, dim: int, index: torch.Tensor, value: Any
) -> torch.Tensor:
    chosen = _chosen(x, dim, index, value)
    if chosen is None:
        return x.index_fill_(dim, index, value)
    return x.copy_(torch.where(chosen, value, x))


def _chosen(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> torch.Tensor | None:
    """Which elements are filled with a value that has a gradient; None: it is filled as it is.

    Torch's gradient of the value sums over the unique indices, whose number is data; that of
    `where` needs none. It refuses the negative indices that filling takes, as index_copy does here:
    on a GPU that would be an assertion in the kernel, before eager's.
    """
    if not (isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled()):
        return None
    if value.dim() or value.dtype != x.dtype or index.dtype != torch.long or index.dim() > 1:
        return None
    if {x.device.type, index.device.type, value.device.type} != {"cpu"}:
        return None
    if not x.dim() and not index.numel():  # torch's gradient raises
        return None
    extent = x.shape[dim] if x.dim() else 1
    flat = index.reshape(-1)
    chosen = torch.zeros(extent, dtype=torch.bool)
    chosen = chosen.index_copy(0, flat, torch.ones_like(flat, dtype=torch.bool))
    return chosen.view([extent if d == dim % x.dim() else 1 for d in range(x.dim())])


_SPELLED: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.one_hot: _one_hot,
    torch.index_fill: _index_fill,
    torch.Tensor.index_fill: _index_fill,
    torch.Tensor.index_fill_: _index_fill_in_place,
}
