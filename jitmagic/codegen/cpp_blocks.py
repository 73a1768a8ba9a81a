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
from ..symbols.size import Dimension, Size, hint_of, supposed
from .cpp_text import count_text

__all__ = [
    "BLOCK", "MOST_TEXT", "MOST_TWICE", "BlockLevel", "Span", "Told",
    "block_level", "is_one_at_times", "spans_of", "steps_to_tell", "whole_span",
]  # fmt: skip

# Eager's CPU sums cascade in steps of 16 to 32 additions. At 32 the rms error is theirs, and the
# entry into the Total (6 operations) adds a fifth to the arithmetic of a sum that lies in L1.
BLOCK = 32
# Where blocks are added in float64, by the elements of the sum: shorter ones err less and take
# longer, which shows where a sum lies in L2 (100,000 floats: eager 5.9 us, with blocks of 8 4.5, of
# 4 5.2, of 2 7.6, of 1 12.5), not where the call (0.6 us) or memory takes most of the time.
WIDE_BLOCKS = ((32768, 1), (262144, 4))
LONG_WIDE_BLOCK = 2
FEW = 4  # steps of a row that are written one by one
MOST_TEXT = 14  # what is written in all of them, of those of a sum 4
# Values of a step with room for all of a row that is written for a full one, too, without masks.
# Those are the same for all rows: rows of 16 of an LSTM's cell take 1.03 of the time, and g++ takes
# 0.14 s for four cells, not 0.23.
MOST_TWICE = 12
SHORT = 512  # elements of a row that is one block at any width: one limit, so one kernel more


@dataclass(frozen=True, slots=True)
class Told:
    """A variable of the kernel whose type says how many steps an axis is: 1, or `most` or any."""

    name: str
    most: int


@dataclass(frozen=True, slots=True)
class Span:
    """One loop from `start` to `stop`, at most `extent` points, `width` of them a step. `told`: of
    the whole axis, how many steps it is and how many lanes of the last one count.
    """

    axis: Axis
    start: str
    stop: str
    extent: Dimension
    width: int = 1
    told: Told | None = None

    @property
    def steps(self) -> Dimension:
        return 1 if self.is_one else -(-self.extent // self.width)

    @property
    def is_one(self) -> bool:
        """Whether one step has room for all of the axis."""
        return self.told is not None and self.told.most == 1


@dataclass(frozen=True, slots=True)
class BlockLevel:
    """Blocks of `size` points of the span at `depth` (0: one step of the span before is a block; a
    text: the call tells); `even`: the blocks cover the span exactly.
    """

    depth: int
    size: int | str
    even: bool


def whole_span(axis: Axis, width: int = 1) -> Span:
    """All of the axis."""
    return Span(axis, "0", count_text(axis.extent), axis.extent, width)


def spans_of(
    axes: Sequence[Axis], lane: Axis | None, width: int, told: Told | None = None
) -> tuple[Span, ...]:
    """The loops over all of the axes, the lanes innermost."""
    plain = tuple(whole_span(axis) for axis in axes if axis != lane)
    return plain if lane is None else (*plain, replace(whole_span(lane, width), told=told))


def _fits_a_step(axis: Axis, width: int) -> bool:
    """A row that varies and fits into one step is supposed to go on fitting: a loop over its blocks
    takes a fifth of the time of a layer norm of 8 columns.
    """
    return isinstance(axis.extent, Size) and supposed("<=", axis.extent, width)


def steps_to_tell(axis: Axis, width: int, cost: int) -> int:
    """As how many steps of lanes an axis that varies is written beside the loop for any length: as
    many as in this call, 1 for 0 to `width` elements; 0: it is not. `cost`: of the text of a step.

    Rows of few steps are told from others once, around all of them, and what a pass loads stays in
    registers for the next one: maxima of 512 by 64 take 1.07 of the static kernel's time, not 1.22,
    argmax of 1000 by 30 1.01, not 1.47. It is compiled beside the loop, 0.03 s: where there is more
    in a step (a softmax) that is more than a half of the static kernel's compile.
    """
    if not isinstance(axis.extent, Size):
        return 0
    if _fits_a_step(axis, width):
        return 1
    steps = -(-hint_of(axis.extent) // width)
    return steps if 1 < steps <= FEW and steps * cost <= MOST_TEXT else 0


def block_level(spans: Sequence[Span], of_rows: bool, wide: int = 0) -> BlockLevel | None:
    """The innermost level at which at most BLOCK steps are a block; None for sums that short.
    `of_rows`: it is one of many sums. `wide`: the elements of a sum whose blocks are added in float64.
    """
    longest = _wide_block(wide) if wide else BLOCK
    inner, row = 1, None
    for depth in reversed(range(len(spans))):
        span = spans[depth]
        if row is not None:
            return BlockLevel(depth, _rows_of_a_block(row, longest), False)
        if isinstance(span.steps, Size):
            most = max(longest // inner, 1)
            # Short rows are supposed to stay so: a third of a row of 64 is the loop over its blocks
            # (1.41 of the static kernel's time, 1.10 without). Columns often grow: batches.
            if (
                of_rows
                and span.width > 1
                and supposed("<=", span.extent, min(most * span.width, SHORT))
            ):
                row = span
                continue
            if wide and inner == 1:
                return BlockLevel(depth, _points_of_a_wide_block(span), False)
            return BlockLevel(depth, most * span.width, False)  # blocks as long as they may be
        if span.is_one:
            continue
        assert isinstance(span.extent, int)
        if inner * span.steps <= longest:
            inner *= span.steps
            continue
        most = max(longest // inner, 1)
        if most == 1 and depth + 1 < len(spans):
            return BlockLevel(depth + 1, 0, True)
        blocks = -(-span.steps // most)
        size = -(-span.steps // blocks) * span.width
        whole = span.start == "0" and span.extent % size == 0
        return BlockLevel(depth, size, whole)
    return None


def _wide_block(elements: int) -> int:
    """Return how many steps of a sum whose blocks are added in float64 are one block."""
    return next((steps for most, steps in WIDE_BLOCKS if elements <= most), LONG_WIDE_BLOCK)


def _points_of_a_wide_block(span: Span) -> str:
    """Return the same as text, for a length that the call tells."""
    steps = str(LONG_WIDE_BLOCK)
    for most, fewer in reversed(WIDE_BLOCKS):
        steps = f"{span.stop} <= {most} ? {fewer} : {steps}"
    return f"({span.width} * ({steps}))"


def _rows_of_a_block(row: Span, longest: int) -> str:
    """How many short rows are one block, of a length that the call tells. (Each its own: sums of
    64 over 4 by 64 took 2.5 of the static kernel's time.)
    """
    return f"jm::rows_of_block(int64_t({longest}), int64_t({count_text(row.steps)}))"


def is_one_at_times(level: BlockLevel, spans: Sequence[Span]) -> bool:
    """Return whether it depends on the call how many blocks the outermost span is."""
    span = spans[0]
    return not level.depth and span.start == "0" and isinstance(span.extent, Size)
