"""A tensor that the program makes a leaf of its own (`t.requires_grad = True`).

Comes in: a tensor that does not require grad. Goes out: the same data, as the leaf that later
operations record. The program's tensor becomes this one where nobody outside can tell, hence a
function of its result: what was computed before from the tensor knows nothing of the leaf.
"""

from __future__ import annotations

import torch

__all__ = ["leaf_of"]


def leaf_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's data as a leaf that requires grad."""
    return tensor.detach().requires_grad_()
