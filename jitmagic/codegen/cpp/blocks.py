"""Chooses the blocks of long sums, and the trip counts that short dynamic rows specialise on.

In: the loops of a pass, outermost first. Out: the level at which a block begins. A plain sum of n
values in one accumulator loses about n / 2 roundings; blocks of at most BLOCK additions lose those
of BLOCK, and jm::Total, which adds the blocks with compensation, loses nothing. Invariant: at most
BLOCK additions per lane happen before a value enters a Total (fewer than 2 * BLOCK are not split).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...lazy_dataclass import dataclass
from ...loops.expr import Apply, Axis, Expr, Integer
from ...loops.ir import Constant, walk
from ...schedule.score import op_cost
from ...symbols.size import Dimension, Size, expr_of, hint_of, may_assume
from ..loop_structure import Structure, inside
from ..vector_lanes import Lanes

__all__ = [
    "BLOCK", "LONG_WIDE_BLOCK", "WIDE_BLOCKS", "BlockLevel", "Span",
    "block_level", "has_run_time_blocks", "is_long_step", "step_cost", "steps_to_test",
]  # fmt: skip

# Eager's CPU sums cascade in steps of 16 to 32 additions. At 32 the rms error equals eager's, and
# entering a Total (6 operations) adds a fifth to the arithmetic of a sum whose data are in L1.
BLOCK = 32
# (most elements of the sum, steps per block) where blocks are added in float64. Shorter blocks err
# less and take longer, which is noticeable while the data fit L2 (100,000 floats: eager 5.9 us;
# blocks of 8 steps 4.5, of 4 5.2, of 2 7.6, of 1 12.5), but not where the call (0.6 us) or memory
# takes most of the time. Of 200 sizes of whole-tensor sums, 4 or 5 err by more than twice eager's
# error; with blocks of 8 steps, 15 to 19.
WIDE_BLOCKS = ((32768, 1), (262144, 4))
LONG_WIDE_BLOCK = 2
FEW = 4  # steps of a row that are unrolled
MOST_TEXT = 14  # cost limit of all unrolled steps; a step of a plain sum costs 4
# The largest step, in values, that is written a second time, without masks, for rows that fill
# whole steps. One test around all rows selects it: rows of 16 of an LSTM cell take 1.03 of the
# static kernel's time, and g++ takes 0.14 s for four cells, not 0.23.
MOST_TWICE = 12
POSITION_TEXT = 6  # cost of a step of an argmax, in values
# Elements of a row that is one block. One limit for all widths adds one kernel variant only.
SHORT = 512


@dataclass(frozen=True, slots=True)
class Span:
    """Describes one loop of at most `extent` points, `width` of them per step, from `start` to
    `stop`. `is_one_step`: a test around it says that one step covers the whole axis.
    """

    axis: Axis
    start: Expr
    stop: Expr
    extent: Dimension
    width: int = 1
    is_one_step: bool = False

    @property
    def steps(self) -> Dimension:
        return 1 if self.is_one_step else -(-self.extent // self.width)

    @property
    def is_whole(self) -> bool:
        return self.start == Integer(0)


@dataclass(frozen=True, slots=True)
class BlockLevel:
    """Cuts a sum into blocks of `size` points of the span at `depth` (0: one step of the enclosing
    span is a block; an Expr: computed at run time). `even`: the blocks cover the span exactly.
    """

    depth: int
    size: int | Expr
    even: bool


def _fits_a_step(axis: Axis, width: int) -> bool:
    """Assume that a dynamic row which fits into one step continues to fit."""
    # A loop over its blocks would be a fifth of the time of a layer norm of 8 columns.
    return isinstance(axis.extent, Size) and may_assume("<=", axis.extent, width)


def steps_to_test(axis: Axis, width: int, cost: int) -> int:
    """Return the number of lane steps to specialise a dynamic axis for, next to the general loop:
    its current trip count, where 1 covers 0 to `width` elements. 0: no specialisation. `cost`: of
    one step's text.
    """
    # The trip count is tested once, around all rows, and values loaded by one pass stay in
    # registers for the next: maxima of 512 by 64 take 1.07 of the static kernel's time, not 1.22,
    # argmax of 1000 by 30 1.01, not 1.47. Compiling the second loop takes 0.03 s; for longer steps
    # (a softmax) that is over half of the static kernel's compile time.
    if not isinstance(axis.extent, Size):
        return 0
    if _fits_a_step(axis, width):
        return 1
    steps = -(-hint_of(axis.extent) // width)
    return steps if 1 < steps <= FEW and steps * cost <= MOST_TEXT else 0


def step_cost(kernel: Structure) -> int:
    """Estimate the text of one step of all passes; values computed once per row are free."""
    # Without a reduction it is MOST_TEXT, so no short rows are unrolled: there only a single step
    # gains.
    if not any(pass_.reductions for pass_ in kernel.passes):
        return MOST_TEXT
    nodes = [node for pass_ in kernel.passes for node in inside(pass_, kernel.free)]
    reduced = [node for pass_ in kernel.passes for node in pass_.reductions]
    # a double vector takes two registers
    doubles = sum(node.dtype is torch.float64 for node in nodes)
    costs = sum(max(op_cost(node), 1) for node in nodes)
    positions = sum(node.op in ("argmax", "argmin") for node in reduced)
    return costs + doubles + POSITION_TEXT * positions


def is_long_step(kernel: Structure, lanes: Lanes) -> bool:
    """Return whether a step is too long to be written a second time without masks."""
    # With reductions it is, unless all lanes are valid in this call: masks take time there (column
    # sums of 1000 by 32: 1.11).
    if any(pass_.reductions for pass_ in kernel.passes):
        return lanes.outer is not None and hint_of(lanes.outer.extent) < lanes.width
    nodes = [node for pass_ in kernel.passes for node in walk(pass_.roots)]
    return sum(not isinstance(node, Constant) for node in nodes) > MOST_TWICE


def block_level(spans: Sequence[Span], of_rows: bool, wide: int = 0) -> BlockLevel | None:
    """Return the innermost level at which at most BLOCK steps are a block; None for short sums.
    `of_rows`: the sum is one of many. `wide`: the elements of the sum if its blocks are added in
    float64, else 0.
    """
    longest = _wide_block(wide) if wide else BLOCK
    inner, row = 1, None
    for depth in reversed(range(len(spans))):
        span = spans[depth]
        if row is not None:
            return BlockLevel(depth, _rows_of_a_block(row, longest), False)
        if isinstance(span.steps, Size):
            most = max(longest // inner, 1)
            # Short rows are assumed to stay short: a loop over blocks takes a third of the time of
            # a row of 64 (1.41 of the static kernel's time, 1.10 without the loop). Columns are
            # batches, which often grow.
            if (
                of_rows
                and span.width > 1
                and may_assume("<=", span.extent, min(most * span.width, SHORT))
            ):
                row = span
                continue
            if wide and inner == 1:
                return BlockLevel(depth, _points_of_a_wide_block(span), False)
            return BlockLevel(depth, most * span.width, False)  # the longest block allowed
        if span.is_one_step:
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
        whole = span.is_whole and span.extent % size == 0
        return BlockLevel(depth, size, whole)
    return None


def _wide_block(elements: int) -> int:
    """Return how many steps of a sum whose blocks are added in float64 are one block."""
    return next((steps for most, steps in WIDE_BLOCKS if elements <= most), LONG_WIDE_BLOCK)


def _points_of_a_wide_block(span: Span) -> Expr:
    """Return the points of such a block, for a length that is known at run time."""
    return Apply("wide_block", (span.stop, Integer(span.width)))


def _rows_of_a_block(row: Span, longest: int) -> Expr:
    """Return the number of short rows per block, computed at run time."""
    # One block per row made sums of 64 over 4 by 64 take 2.5 of the static kernel's time.
    return Apply("rows_of_block", (Integer(longest), expr_of(row.steps)))


def has_run_time_blocks(level: BlockLevel, spans: Sequence[Span]) -> bool:
    """Return whether the number of blocks of the outermost span is known only at run time."""
    span = spans[0]
    return not level.depth and span.is_whole and isinstance(span.extent, Size)
