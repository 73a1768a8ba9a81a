"""Lists the origins of numbers that are no sizes, by which their symbols are told apart."""

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
