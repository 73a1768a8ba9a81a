"""Indexes meta tensors by a symbolic int, `x[i]` and `x[i] = y`: torch's own indexing needs ints.

Input: the arguments of `operator.getitem` or `setitem`. Output: the call's result, in a tuple, by
`select` for each SymInt and torch's indexing for the rest; or None if there is no SymInt, or
tensors index too.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["INDEXING", "select_by_sizes"]

INDEXING = (operator.getitem, operator.setitem)


def select_by_sizes(args: Sequence[Any]) -> tuple[object] | None:
    """Return the indexed tensor in a tuple, or (None,) after an assignment."""
    x, index, *values = args
    parts = index if type(index) is tuple else (index,)
    if not isinstance(x, torch.Tensor) or not any(isinstance(one, torch.SymInt) for one in parts):
        return None
    if not all(one is None or one is ... or type(one) in _SIMPLE for one in parts):
        return None
    made = x[tuple(slice(None) if isinstance(one, torch.SymInt) else one for one in parts)]
    for place in reversed(range(len(parts))):
        if isinstance(parts[place], torch.SymInt):
            made = made.select(_dim(x, parts, place), parts[place])
    if not values:
        return (made,)
    made[...] = values[0]
    return (None,)


_SIMPLE = (int, slice, torch.SymInt)


def _dim(x: torch.Tensor, parts: Sequence[object], place: int) -> int:
    """Return the dimension of the result that a part is about, before symbolic ints are
    selected.
    """
    taken = sum(one is not None and one is not ... for one in parts)
    dim = 0
    for one in parts[:place]:
        dim += x.dim() - taken if one is ... else type(one) is not int
    return dim
