"""Where the loops of a long sum are cut into blocks, each added up by itself.

In: the loops of a pass, outermost first. Out: the level at which a block begins. A plain sum of n
values loses about n / 2 roundings to one accumulator; blocks of at most BLOCK additions lose those
of BLOCK, and jm::Total, which takes in the blocks, loses nothing. Invariant: between two entries
into a Total lie at most BLOCK additions per lane (fewer than 2 * BLOCK never are worth two blocks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..loops.expr import Axis
from ..symbols.size import Dimension, Size, supposed
from .cpp_text import count_text

__all__ = ["BLOCK", "BlockLevel", "Span", "block_level", "fits_a_step", "spans_of", "whole_span"]

# Eager's CPU sums cascade in steps of 16 to 32 additions. At 32 the rms error is theirs, and the
# entry into the Total (6 operations) adds a fifth to the arithmetic of a sum that lies in L1.
BLOCK = 32
SHORT = 512  # elements of a row that is one block at any width: one limit, so one kernel more


@dataclass(frozen=True, slots=True)
class Span:
    """One loop from `start` to `stop`, at most `extent` points, `width` of them a step. `lanes`:
    what tells how many of them count, where one step has room for all.
    """

    axis: Axis
    start: str
    stop: str
    extent: Dimension
    width: int = 1
    lanes: str = ""

    @property
    def steps(self) -> Dimension:
        return 1 if self.lanes else -(-self.extent // self.width)


@dataclass(frozen=True, slots=True)
class BlockLevel:
    """Blocks of `size` points of the span at `depth` (0: one step of the span before is a block);
    `even`: the blocks cover the span exactly.
    """

    depth: int
    size: int
    even: bool


def whole_span(axis: Axis, width: int = 1) -> Span:
    """All of the axis."""
    return Span(axis, "0", count_text(axis.extent), axis.extent, width)


def spans_of(
    axes: Sequence[Axis], lane: Axis | None, width: int, lanes: str = ""
) -> tuple[Span, ...]:
    """The loops over all of the axes, the lanes innermost."""
    plain = tuple(whole_span(axis) for axis in axes if axis != lane)
    return plain if lane is None else (*plain, replace(whole_span(lane, width), lanes=lanes))


def fits_a_step(axis: Axis, width: int) -> bool:
    """A row that varies and fits into one step is supposed to go on fitting: a loop over its blocks
    takes a fifth of the time of a layer norm of 8 columns.
    """
    return isinstance(axis.extent, Size) and supposed("<=", axis.extent, width)


def block_level(spans: Sequence[Span], of_rows: bool) -> BlockLevel | None:
    """The innermost level at which at most BLOCK steps are a block; None for sums that short.
    `of_rows`: it is one of many sums.
    """
    inner = 1
    for depth in reversed(range(len(spans))):
        span = spans[depth]
        if isinstance(span.steps, Size):
            most = max(BLOCK // inner, 1)
            # Short rows are supposed to stay so: a third of a row of 64 is the loop over its blocks
            # (1.41 of the static kernel's time, 1.10 without). Columns often grow: batches.
            if (
                of_rows
                and span.width > 1
                and supposed("<=", span.extent, min(most * span.width, SHORT))
            ):
                inner *= most
                continue
            return BlockLevel(depth, most * span.width, False)  # blocks as long as they may be
        if span.lanes:
            continue
        assert isinstance(span.extent, int)
        if inner * span.steps <= BLOCK:
            inner *= span.steps
            continue
        most = max(BLOCK // inner, 1)
        if most == 1:
            return BlockLevel(depth + 1, 0, True)
        blocks = -(-span.steps // most)
        size = -(-span.steps // blocks) * span.width
        whole = span.start == "0" and span.extent % size == 0
        return BlockLevel(depth, size, whole)
    return None
