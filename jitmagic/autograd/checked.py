"""Composites of torch that look at their data before they compute, spelled out.

In: a torch function as the graph names it. Out: the same function, or one that gives the same
result from operations which check the data themselves. On tensors without data, C++ composites
skip such checks, and the recorded graph would answer where eager raises. A graph that raises is
run again as eager, so the user reads eager's own words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["spelled_out"]


def spelled_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """What to call in place of `function` while a graph is recorded."""
    return _one_hot if function is torch.nn.functional.one_hot else function


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """scatter refuses classes outside of [0, num_classes), as one_hot does."""
    made = torch.zeros(*tensor.shape, num_classes, dtype=torch.long, device=tensor.device)
    return made.scatter(-1, tensor.unsqueeze(-1), 1)
