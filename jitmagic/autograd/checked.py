"""Composites of torch that are called otherwise while a graph is recorded.

In: a torch function as the graph names it. Out: the same function, or one that gives the same
result. Some look at their data before they compute: they are spelled out in operations which check
the data themselves. On tensors without data, C++ composites skip such checks, and the recorded
graph would answer where eager raises. A graph that raises is run again as eager, so the user reads
eager's own words. A recurrent layer that nobody differentiates stays one operation.
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
    return _one_hot if function is torch.nn.functional.one_hot else function


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
