"""Dimensions that vary and are of size one in some calls.

Comes in: which dimensions may vary, and what they were in the variants there are. Goes out: whether
one of them is or was of size one, and ranges from one on, by which nothing is decided, of those
that were seen to vary. A constant one would need a variant for each such dimension, and for each
two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ...guards.source import Source
from ...symbols.interval import GrowingRange, Interval
from ...symbols.size import Dimension, hint_of, lower_bound, upper_bound
from .symbolic import Earlier

__all__ = ["FromOne"]

Dims = Callable[[Source, torch.Tensor], Mapping[int, Interval]]


class FromOne:
    """`is_found`: whether a dimension that a trace asked for is or was of size one."""

    def __init__(self, dims: Dims, earlier: Earlier) -> None:
        self._dims, self._earlier = dims, earlier
        self.is_found = False

    def noted(self, source: Source, tensor: torch.Tensor) -> Mapping[int, Interval]:
        """What varies, as it is."""
        made = self._dims(source, tensor)
        known = self._known(source, tensor, made).values()
        self.is_found = self.is_found or any(lower_bound(n) == 1 for sizes in known for n in sizes)
        return made

    def ranges(self, source: Source, tensor: torch.Tensor) -> Mapping[int, Interval]:
        """What varies, sizes from one on."""
        made = dict(self._dims(source, tensor))
        for dim, sizes in self._known(source, tensor, made).items():
            if _varies(sizes):
                made[dim] = GrowingRange(max(1, made[dim].low), made[dim].high)
        return made

    def _known(
        self, source: Source, tensor: torch.Tensor, made: Mapping[int, Interval]
    ) -> dict[int, list[Dimension]]:
        """Of dimensions by which something may be decided: now, and before."""
        dims = (dim for dim, limits in made.items() if dim >= 0 and type(limits) is Interval)
        return {dim: [tensor.shape[dim], *self._earlier.sizes(source, dim)] for dim in dims}


def _varies(sizes: list[Dimension]) -> bool:
    """Whether a dimension was of other sizes, or from one on at the break before, or is one and was
    never asked for: dynamic=True makes symbols of those, too, that turn out to be constants.
    """
    if sizes == [1] or len({*map(hint_of, sizes)}) > 1:
        return True
    return any(lower_bound(size) == 1 < upper_bound(size) for size in sizes)
