"""Says where a number comes from that is no size: a tensor, a draw or a counter.

Two symbols are the same if their origins are equal. Entries on disk have them, so this imports
little.
"""

from __future__ import annotations

from ...guards.source import Source
from ...lazy_dataclass import dataclass

__all__ = ["Count", "DrawnNumber", "InputNumber", "KnownCount"]


@dataclass(frozen=True, slots=True)
class InputNumber:
    """The origin of a number in an input tensor; SizesRelate cannot read it, InRange can."""

    source: Source


@dataclass(frozen=True, slots=True)
class DrawnNumber:
    """The origin of a number that Python computes before the graph, by the index of the draw."""

    index: int


@dataclass(frozen=True, slots=True)
class Count:
    """The origin of a counter in a tensor: its source, and the amount added since."""

    source: Source
    added: int


@dataclass(frozen=True, slots=True)
class KnownCount(Count):
    """A counter whose value in this call is known and guarded."""
