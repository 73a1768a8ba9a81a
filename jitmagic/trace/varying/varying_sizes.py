"""The sizes and strides of tensor inputs that may be symbols, with the ranges that they may have.

Input: the dimensions that differed between calls or are declared dynamic, their sizes in earlier
variants and at the graph break before the frame. Output: a range per dimension, and which two
dimensions of equal size must not share a symbol.

torch specialises size one (broadcasting, contiguity). A varying dimension that is of size one in
some calls gets a symbol without a hint, in a range from one on, so that no branch is decided by the
value in this call. As constants such dimensions would need a variant for each that is one, and for
each combination of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch

from ...guards.source import Source
from ...lazy_dataclass import dataclass, field
from ...symbols.interval import INT64, GrowingRange, Interval
from ...symbols.size import Dimension, hint_of, lower_bound, upper_bound
from ..residual.resume_facts import ResumeFacts
from .growing_sizes import Resized

__all__ = ["VaryingSizes"]


@dataclass(frozen=True, slots=True)
class VaryingSizes:
    """The sizes and strides of tensors that may be symbols; indices as in symbols/size.py."""

    requested: Callable[[Source, torch.Tensor], Mapping[int, Interval]]
    """The ranges of dimensions that varied or are declared dynamic."""
    in_variants: Callable[[Source, int], tuple[int | None, ...]]
    """The size or stride in each existing variant; sizes that once differed share no symbol."""
    facts: ResumeFacts = field(default_factory=ResumeFacts)
    """The sizes at the graph break before this frame: symbols there are symbols here."""
    static: Callable[[Source], Collection[int]] = lambda source: ()
    """The dimensions of an input that are marked static."""
    are_chosen: bool = False
    """jitmagic chose the symbols and may replace them by constants; the user declared none."""
    maybe_one: bool | None = None
    """Varying dimensions are unbacked from one on if any is or was of size one; None: undecided."""
    growing: Resized | None = None
    """Dimensions that the frame itself changes vary too."""
    growing_ones: bool = False
    """Dimensions of `growing` that are of size one vary too."""

    def of(self, source: Source, tensor: torch.Tensor) -> dict[int, Interval]:
        """Return the ranges of the sizes and strides of an input that vary, by index."""
        found = self._asked_for(source, tensor)
        if self.maybe_one:
            for dim, sizes in self._known(source, tensor, found).items():
                if _varies(sizes):
                    found[dim] = GrowingRange(max(1, found[dim].low), found[dim].high)
        if self.growing is not None:
            for dim, limits in self.growing.ranges(source, tensor, self.growing_ones).items():
                # A range that is narrower already, such as one of mark_dynamic with bounds, stays.
                if dim not in self.static(source) and found.get(dim, INT64) == INT64:
                    found[dim] = limits
        # Symbols are numbered in the order of dimensions, whichever fact found them.
        return dict(sorted(found.items()))

    def has_ones(self, source: Source, tensor: torch.Tensor) -> bool:
        """Return whether a varying dimension of an input is or was of size one."""
        known = self._known(source, tensor, self._asked_for(source, tensor)).values()
        return any(lower_bound(size) == 1 for sizes in known for size in sizes)

    def _asked_for(self, source: Source, tensor: torch.Tensor) -> dict[int, Interval]:
        """Return the ranges of dimensions that varied, at the break too, or were declared."""
        found = dict(self.requested(source, tensor))
        for place, limits in self.facts.ranges(source, tensor).items():
            if place not in self.static(source):
                found.setdefault(place, limits)
        return found

    def _known(
        self, source: Source, tensor: torch.Tensor, found: Mapping[int, Interval]
    ) -> dict[int, list[Dimension]]:
        """Return present and earlier sizes of dimensions whose symbol would have a hint."""
        # The subclasses of Interval, UnbackedRange and GrowingRange, are those without a hint.
        dims = [dim for dim, limits in found.items() if dim >= 0 and type(limits) is Interval]
        earlier = {
            dim: (*self.in_variants(source, dim), self.facts.size_at(source, dim)) for dim in dims
        }
        return {
            dim: [tensor.shape[dim], *(size for size in earlier[dim] if size is not None)]
            for dim in dims
        }


def _varies(sizes: list[Dimension]) -> bool:
    """Return whether sizes differ, one was a symbol from one on, or the only known size is one.

    The last case is for dynamic=True, under which a dimension needs no earlier size to be a symbol.
    """
    if sizes == [1] or len({*map(hint_of, sizes)}) > 1:
        return True
    return any(lower_bound(size) == 1 < upper_bound(size) for size in sizes)
