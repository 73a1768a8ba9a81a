"""Varying dimensions that are of size one in some calls.

torch specialises size one (broadcasting, contiguity). Such dimensions get symbols without a hint,
in a range from one on, so that no branch is decided by the value in this call. As constants they
would need a variant for each dimension that is one, and for each combination of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ...guards.source import Source
from ...symbols.interval import GrowingRange, Interval
from ...symbols.size import Dimension, hint_of, lower_bound, upper_bound
from .symbolic import SizeHistory

__all__ = ["MaybeOneDims"]

Dims = Callable[[Source, torch.Tensor], Mapping[int, Interval]]


class MaybeOneDims:
    """Gives such dimensions ranges from one on; `is_found`: a trace asked for one of them."""

    def __init__(self, dims: Dims, earlier: SizeHistory) -> None:
        self._dims, self._earlier = dims, earlier
        self.is_found = False

    def observed(self, source: Source, tensor: torch.Tensor) -> Mapping[int, Interval]:
        """Return the varying dimensions unchanged, and note sizes of one."""
        made = self._dims(source, tensor)
        known = self._known(source, tensor, made).values()
        self.is_found = self.is_found or any(lower_bound(n) == 1 for sizes in known for n in sizes)
        return made

    def ranges(self, source: Source, tensor: torch.Tensor) -> Mapping[int, Interval]:
        """Return the varying dimensions, with ranges that begin at one."""
        made = dict(self._dims(source, tensor))
        for dim, sizes in self._known(source, tensor, made).items():
            if _varies(sizes):
                made[dim] = GrowingRange(max(1, made[dim].low), made[dim].high)
        return made

    def _known(
        self, source: Source, tensor: torch.Tensor, made: Mapping[int, Interval]
    ) -> dict[int, list[Dimension]]:
        """Return present and earlier sizes of dimensions whose symbol would have a hint."""
        dims = (dim for dim, limits in made.items() if dim >= 0 and type(limits) is Interval)
        return {dim: [tensor.shape[dim], *self._earlier.sizes(source, dim)] for dim in dims}


def _varies(sizes: list[Dimension]) -> bool:
    """Return whether sizes differ, one was a symbol from one on, or the only known size is one.

    The last case is for dynamic=True, under which a dimension needs no earlier size to be a symbol.
    """
    if sizes == [1] or len({*map(hint_of, sizes)}) > 1:
        return True
    return any(lower_bound(size) == 1 < upper_bound(size) for size in sizes)
