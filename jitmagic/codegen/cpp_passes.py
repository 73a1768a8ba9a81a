"""The passes of a C++ kernel: loops along their own axes, accumulators, scratch rows, the
statements of a point.

In: Passes of a Structure (the maximum of a softmax's row is one, the sum the next) and a Body whose
open scopes bind the outer axes. Out: lines in that body. A pass runs
  - along lanes, or as plain loops inside lanes that are already open (column sums);
  - in parts of fixed size, in parallel, where there are too few rows for the threads: the parts are
    combined in order, so that the result does not depend on the number of threads.
Sums of floats longer than BLOCK steps are made of blocks (cpp_blocks.py), so that their error stays
that of a short sum, whatever the loops around them are and whatever shares the pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import torch

from ..loops.expr import Axis, AxisVar, Expr, Integer, add, mul, times
from ..loops.ir import Constant, Reduction, Value, walk
from ..schedule.score import extent_product, op_cost, points
from ..symbols.size import Size, hint_of
from .cpp_blocks import (
    MOST_TEXT,
    MOST_TWICE,
    BlockLevel,
    Span,
    Told,
    block_level,
    is_one_at_times,
    spans_of,
    steps_to_tell,
    whole_span,
)
from .cpp_reduce import POSITIONAL, Accumulator, lanes_of_product
from .cpp_text import CTYPES, blocks_text, count_text
from .cpp_values import Body
from .lanes import Lanes
from .structure import Pass, Structure, inside, passes_in

__all__ = ["PARTIAL_SUMS", "PassWriter", "told_text"]

ROW_BYTES = 128 << 10  # scratch rows live on the stack of the thread
# Parts do not depend on the number of threads, and so neither does how a sum is rounded.
PART = 1 << 14  # elements of one part of a split pass
MOST_PARTS = 1024
PARTIAL_SUMS = 1 << 18  # kept by a thread for the parts of tall columns
POSITION_TEXT = 6  # values that a step of an argmax is
TALL_PART = 512  # rows of one part of tall columns, at least

Rows = Mapping[Value, tuple[str, tuple[Axis, ...]]]


@dataclass(slots=True)
class PassWriter:
    """Writes passes into `body`."""

    kernel: Structure
    lanes: Lanes
    body: Body
    told: dict[tuple[Axis, int], Told] = field(default_factory=dict)  # of how many steps rows are

    def write(self, passes: Sequence[Pass], split: bool = False) -> None:
        """All passes, in order."""
        rows = self._scratch_rows(passes)
        for number, pass_ in enumerate(passes):
            if not pass_.axes:
                self._point(pass_, {})
                continue
            # Within lanes of an outer axis a pass is a plain loop over vectors.
            axis, width = self.lanes.passes[number] if self.body.lane is None else (None, 1)
            if split and axis is not None and extent_product(pass_.axes) > 2 * PART:
                self._split_pass(pass_, axis, width, rows)
            else:
                self._pass(pass_, axis, width, rows)

    def open_told(self, lanes: Sequence[tuple[Axis | None, int]]) -> int:
        """Open, around rows of a length that varies and is few steps of lanes, what tells whether
        they are so many, so that no row has to; how many scopes. Of one length: each has the rows
        once more.
        """
        cost = _text_of(self.kernel)
        for lane, width in lanes:
            if lane is not None and (steps := steps_to_tell(lane, width, cost)):
                told = self.told[lane, width] = Told(self.body.name("n"), steps)
                if steps == 1 and _is_long(self.kernel, self.lanes):
                    self.body.line(f"const int64_t {told.name} = {count_text(lane.extent)};")
                    return 0
                kind = f"one_step<{width}>" if steps == 1 else f"few_steps<{width}, {steps}>"
                header = f"jm::{kind}({count_text(lane.extent)}, [&](auto {told.name}) JM_BODY {{"
                self.body.open(header, footer="});")
                return 1
        return 0

    def _scratch_rows(self, passes: Sequence[Pass]) -> dict[Value, tuple[str, tuple[Axis, ...]]]:
        """Memory for values that later passes use again, with the axes in the order it is laid out:
        lanes are neighbours there. Passes with lanes along different axes compute values again.
        """
        rows: dict[Value, tuple[str, tuple[Axis, ...]]] = {}
        for pass_ in passes:
            along = self._lane_axes(pass_, passes)
            if len(along) > 1:  # one order cannot have neighbours along both: computed again
                continue
            order = (*(axis for axis in pass_.axes if axis not in along), *along)
            for value in pass_.keep:
                lanes = self.body.width if self.body.is_vector(value) else 1
                size = points(pass_.axes) * lanes
                if size * value.dtype.itemsize <= ROW_BYTES:
                    if isinstance(
                        size, Size
                    ):  # C++ arrays have constant sizes: the most there may be
                        size = ROW_BYTES // value.dtype.itemsize
                    name = self.body.name("row")
                    self.body.line(f"alignas(64) {CTYPES[value.dtype]} {name}[{size}];")
                    rows[value] = (name, order)
        return rows

    def _lane_axes(self, pass_: Pass, passes: Sequence[Pass]) -> set[Axis]:
        """The pass's own axes along which the lanes of it and of its like run."""
        if self.body.lane is not None:
            return set()
        chosen = zip(passes, self.lanes.passes, strict=False)
        return {
            axis
            for sibling, (axis, _) in chosen
            if axis is not None and {*sibling.axes} == {*pass_.axes}
        }

    def _pass(self, pass_: Pass, lane: Axis | None, width: int, rows: Rows) -> None:
        """One loop nest over the pass's axes, the lane axis innermost."""
        told = None if lane is None else self.told.get((lane, width))
        spans = spans_of(pass_.axes, lane, width, told)
        totals = [self._accumulator(node, lane, width, spans, pass_) for node in pass_.reductions]
        for total in totals:
            self.body.line(total.declare())
        self._accumulate(pass_, spans, rows, totals)
        self._results(totals, lane is not None)

    def _accumulate(
        self, pass_: Pass, spans: Sequence[Span], rows: Rows, totals: Sequence[Accumulator]
    ) -> None:
        """Loops over the spans; a Total takes in one block of them after the other."""
        body, level = self.body, self._level(spans, pass_)
        # Blocks are summed apart and then added, as eager sums in cascade: the error of one long
        # sum grows with its length (2.2e-6 where blocks gave 1.5e-7).
        if level is None or not any(a.total for a in totals):
            self._loops(pass_, spans, rows, totals)
            return
        outside, inside = spans[: level.depth], spans[level.depth :]
        if is_one_at_times(level, spans):
            self._varying_blocks(pass_, level, spans, rows, totals)
            return
        self.serial([span.axis for span in outside])
        if level.size:
            inside = (self._blocks(level, inside[0]), *inside[1:])
        blocks = [replace(a, name=body.name("acc"), total=False) if a.total else a for a in totals]
        pairs = [(a, b) for a, b in zip(totals, blocks, strict=True) if a.total]
        for _, block in pairs:
            body.line(block.declare())
        self._loops(pass_, inside, rows, blocks)
        for total, block in pairs:
            body.line(total.join_part(block.name))
        self.close(len(outside) + bool(level.size))

    def _blocks(self, level: BlockLevel, span: Span) -> Span:
        """Open a loop over the blocks of the span; the span of one of them."""
        start, size = self.body.name("block"), level.size
        declared, stop = _until(start, span)
        self.body.open(f"for (int64_t {declared}; {start} < {stop}; {start} += {size}) {{")
        end = f"{start} + {size}" if level.even else f"jm::least_of({stop}, {start} + {size})"
        return replace(span, start=start, stop=end)

    def _varying_blocks(
        self,
        pass_: Pass,
        level: BlockLevel,
        spans: Sequence[Span],
        rows: Rows,
        totals: Sequence[Accumulator],
    ) -> None:
        """The blocks of a length that varies, which is most often one: its sum is the result, as a
        short sum's is (row sums of 64 columns took twice as long through the compensated total).
        """
        body, span = self.body, spans[0]
        start, sums = body.name("block"), [a.name for a in totals if a.total]
        header = f"jm::in_parts({level.size}, {span.stop}, "
        following = " ".join(f"{name}.next();" for name in sums)
        body.open(
            f"{header}[&](int64_t {start}, int64_t {start}_end) JM_BODY {{",
            footer=f"}}, [&]() JM_BODY {{ {following} }});",
        )
        inside = (replace(span, start=start, stop=f"{start}_end"), *spans[1:])
        blocks = [replace(a, name=f"{a.name}.block", total=False) if a.total else a for a in totals]
        self._loops(pass_, inside, rows, blocks)
        body.close()

    def _loops(
        self, pass_: Pass, spans: Sequence[Span], rows: Rows, accumulators: Sequence[Accumulator]
    ) -> None:
        """Plain loops, around lanes where the innermost span has them."""
        plain = [span for span in spans if span.width == 1]
        for span in plain:
            self._from_to(span)
        if len(plain) < len(spans):
            last = spans[-1]
            self._open_lanes(last.axis, last.width, _blocks_of(last))
            self._point(pass_, rows, accumulators)
            self._close_lanes()
        else:
            self._point(pass_, rows, accumulators)
        self.close(len(plain))

    def _from_to(self, span: Span) -> None:
        name = span.axis.name
        declared, stop = _until(name, span)
        self.body.open(f"for (int64_t {declared}; {name} < {stop}; ++{name}) {{", (span.axis,))

    def serial(self, axes: Sequence[Axis]) -> None:
        """Open one plain loop per axis."""
        for axis in axes:
            self._from_to(whole_span(axis))

    def close(self, count: int) -> None:
        """Close that many scopes."""
        for _ in range(count):
            self.body.close()

    def tall(self, passes: Sequence[Pass], lane: Axis, width: int) -> None:
        """Column sums over many rows and few columns: parts of the rows run in parallel. Lanes are
        columns, so each part keeps a row of partial sums; they are added in the order of the parts.
        """
        body, pass_ = self.body, passes[0]
        rows = pass_.axes[0]
        size = max(TALL_PART, -(-rows.extent // min(MOST_PARTS, PARTIAL_SUMS // lane.extent)))
        parts = -(-rows.extent // size)
        start = f"part * {size}"
        end = f"jm::least_of({rows.extent}, {start} + {size})"
        spans = (Span(rows, start, end, size), *spans_of(pass_.axes[1:], None, 1))
        totals = [self._named(node, width, spans, pass_) for node in pass_.reductions]
        memory = {a.name: body.name("part") for a in totals}
        for a in totals:
            count = parts * lane.extent
            # Not on the stack, where PARTIAL_SUMS of them need not fit. The lambda captures the
            # pointer: a thread_local named in it would be that of the thread that runs the part.
            body.line(f"static thread_local {a.scalar_type} {memory[a.name]}_memory[{count}];")
            body.line(f"auto* const {memory[a.name]} = {memory[a.name]}_memory;")
        header = f"jm::parallel_for({parts}, 1, [&](int64_t begin, int64_t end) {{"
        body.open(header, footer="});")
        body.open("for (int64_t part = begin; part < end; ++part) {")
        self._open_lanes(lane, width, blocks_text(width, lane.extent))
        for a in totals:
            body.line(a.declare())
        self._accumulate(pass_, spans, {}, totals)
        offset = f"part * {lane.extent} + {lane.name}"
        for a in totals:
            body.line(f"jm::store({memory[a.name]} + {offset}, {a.combined}, n);")
        self._close_lanes()
        self.close(2)
        self._open_lanes(lane, width, blocks_text(width, lane.extent))
        sums = [self._total(node, width) for node in pass_.reductions]
        for a in sums:
            body.line(a.declare())
        body.open(f"for (int64_t part = 0; part < {parts}; ++part) {{")
        for a, total in zip(sums, totals, strict=True):
            body.line(a.join_part(f"jm::load<{width}>({memory[total.name]} + {offset}, n)"))
        body.close()
        self._results(sums, across=False)
        self.write(passes[1:])
        self._close_lanes()

    def _named(
        self, node: Reduction, width: int, spans: Sequence[Span], pass_: Pass
    ) -> Accumulator:
        """An accumulator for all points of the spans."""
        total, level = self._total(node, width), self._level(spans, pass_)
        if level is None or not total.total:
            return replace(total, total=False)
        if not is_one_at_times(level, spans):
            return total
        return replace(total, single=f"{spans[0].stop} <= {level.size}")

    def _total(self, node: Reduction, width: int) -> Accumulator:
        total = Accumulator(node, self.body.name("acc"), width)
        return replace(total, total=total.adds_floats, wide=self._is_wide(node))

    def _is_wide(self, node: Reduction) -> bool:
        """Return whether it sums a whole float32 tensor: nothing else waits for its vectors."""
        return node.op == "sum" and node.dtype == torch.float32 and not self.kernel.outer

    def _level(self, spans: Sequence[Span], pass_: Pass) -> BlockLevel | None:
        is_wide = any(map(self._is_wide, pass_.reductions))
        elements = prod(hint_of(axis.extent) for axis in pass_.axes) if is_wide else 0
        return block_level(spans, bool(self.kernel.outer), elements)

    def _open_lanes(self, lane: Axis, width: int, loop: str) -> None:
        self.body.set_lanes(lane, width)
        header = f"{loop}[&](int64_t {lane.name}, auto n) JM_BODY {{"
        self.body.open(header, (lane,), footer="});")

    def _close_lanes(self) -> None:
        self.body.close()
        self.body.set_lanes(None, 1)

    def _accumulator(
        self, node: Reduction, lane: Axis | None, width: int, spans: Sequence[Span], pass_: Pass
    ) -> Accumulator:
        if lane is None:
            width = self.body.width if self.body.is_vector(node) else 1
        named = self._named(node, width, spans, pass_)
        is_ordered = lane is not None and len(spans) == 1
        return replace(named, ordered=lanes_of_product(node)) if is_ordered else named

    def _results(self, accumulators: Sequence[Accumulator], across: bool) -> None:
        """Make the reductions known in the current scope."""
        body = self.body
        for accumulator in accumulators:
            if across:
                name = body.name()
                combined = accumulator.result(accumulator.across_lanes())
                body.line(f"const {CTYPES[accumulator.node.dtype]} {name} = {combined};")
                body.define(accumulator.node, name, vector=False)
            else:
                text = accumulator.result(accumulator.combined)
                body.define(accumulator.node, text, vector=accumulator.width > 1)

    def _split_pass(
        self,
        pass_: Pass,
        lane: Axis,
        width: int,
        rows: Rows,
    ) -> None:
        """The pass in parts of fixed size, in parallel; their results are combined in order."""
        body = self.body
        loops = tuple(axis for axis in pass_.axes if axis != lane)
        size = max(PART, -(-lane.extent // MOST_PARTS // width) * width) if not loops else 0
        parts = -(-lane.extent // size) if not loops else loops[0].extent
        span = Span(lane, "0", str(lane.extent), lane.extent, width)
        if not loops:
            stop = f"jm::least_of({lane.extent}, part * {size} + {size})"
            span = Span(lane, f"part * {size}", stop, size, width)
        spans = (*spans_of(loops[1:], None, 1), span)
        accumulators = [self._accumulator(r, lane, width, spans, pass_) for r in pass_.reductions]
        stored = {a.name: body.name("part") for a in accumulators}
        for a in accumulators:
            body.line(f"static thread_local {a.scalar_type} {stored[a.name]}_memory[{parts}];")
            body.line(f"auto* const {stored[a.name]} = {stored[a.name]}_memory;")
        header = f"jm::parallel_for({parts}, 1, [&](int64_t begin, int64_t end) {{"
        body.open(header, footer="});")
        part = loops[0].name if loops else "part"
        body.open(f"for (int64_t {part} = begin; {part} < end; ++{part}) {{", loops[:1])
        for a in accumulators:
            body.line(a.declare())
        self._accumulate(pass_, spans, rows, accumulators)
        for a in accumulators:
            body.line(f"{stored[a.name]}[{part}] = {a.across_lanes()};")
        self.close(2)
        self._combine(accumulators, stored, parts)

    def _combine(
        self, accumulators: Sequence[Accumulator], stored: Mapping[str, str], parts: int
    ) -> None:
        body = self.body
        for a in accumulators:
            total = self._total(a.node, 1)
            body.line(total.declare())
            join = total.join_part(f"{stored[a.name]}[part]")
            body.line(f"for (int64_t part = 0; part < {parts}; ++part) {join}")
            body.define(a.node, total.result(total.combined), vector=False)

    # -- one point -------------------------------------------------------------------------------

    def _point(
        self,
        pass_: Pass,
        rows: Rows,
        accumulators: Sequence[Accumulator] = (),
    ) -> None:
        """The statements of one point: nested reductions, accumulations, then all stores."""
        body = self.body
        self._recall(pass_, rows)
        scope = body.scopes[-1].bound
        for nested in passes_in(scope, (), pass_.roots, self.kernel.free, ready=body.ready()):
            self._nested(nested)
        for value in pass_.keep:
            if value in rows:
                self._keep(value, *rows[value])
        for accumulator in accumulators:
            vector = accumulator.width > 1
            text = body.use(accumulator.node.value, as_vector=vector)
            if accumulator.dtype != accumulator.node.value.dtype:
                text = f"jm::convert<{CTYPES[accumulator.dtype]}>({text})"
            across = body.lane in accumulator.node.axes
            body.line(accumulator.update(text, self._position(accumulator), across))
        for text in body.stores(pass_.stores):  # last: a store may go over what the point has read
            body.line(text)

    def _nested(self, pass_: Pass) -> None:
        """A reduction inside the point: plain loops, vectors stay vectors."""
        spans = spans_of(pass_.axes, None, 1)
        accumulators = [self._accumulator(node, None, 1, spans, pass_) for node in pass_.reductions]
        for accumulator in accumulators:
            self.body.line(accumulator.declare())
        self._accumulate(pass_, spans, {}, accumulators)
        self._results(accumulators, across=False)

    def _position(self, accumulator: Accumulator) -> str:
        """Row-major position of the point among the reduction's axes."""
        if not accumulator.positional:
            return ""
        position: Expr = Integer(0)
        for axis in accumulator.node.axes:
            position = add(times(position, axis.extent), AxisVar(axis))
        body = self.body
        if body.lane in accumulator.node.axes:
            return body.lane_position(position)
        text = body.scalar_position(position)
        return f"V{body.count}<int64_t>({text})" if accumulator.width > 1 else text

    def _row_address(self, name: str, axes: tuple[Axis, ...], vector: bool) -> str:
        """Where the current point (or block) of a scratch row is."""
        offset: Expr = Integer(0)
        for axis in axes:
            offset = add(times(offset, axis.extent), AxisVar(axis))
        if vector and self.body.lane not in axes:
            offset = mul(offset, self.body.width)
        return f"{name} + {self.body.scalar_position(offset)}"

    def _keep(self, value: Value, name: str, axes: tuple[Axis, ...]) -> None:
        body = self.body
        # A scalar along the lanes is stored as a vector too: other passes read it block by block.
        vector = body.is_vector(value) or body.lane in axes
        address = self._row_address(name, axes, vector)
        text = body.use(value, as_vector=vector)
        if not vector:
            body.line(f"*({address}) = {text};")
        else:
            count = "n" if body.lane in axes else "jm::Full{}"
            body.line(f"jm::store({address}, {text}, {count});")

    def _recall(self, pass_: Pass, rows: Rows) -> None:
        """Kept values of earlier passes are loaded, not computed again."""
        body = self.body
        for value, (name, axes) in rows.items():
            if {*axes} != {*pass_.axes} or value in pass_.keep:
                continue
            vector = body.is_vector(value)
            address = self._row_address(name, axes, vector)
            if not vector:
                body.define(value, f"{name}[{address.removeprefix(f'{name} + ')}]", vector=False)
            else:
                count = "n" if body.lane in axes else "jm::Full{}"
                body.define(value, f"jm::load<{body.count}>({address}, {count})", vector=True)


def _blocks_of(span: Span) -> str:
    """The beginning of a loop over the span in blocks of lanes. It may be a part of its axis, which
    begins at such a block and is as long as parts are, or ends where the axis does.
    """
    extent = span.axis.extent
    if span.start == "0" and span.stop == count_text(extent):
        return blocks_text(span.width, extent) if span.told is None else told_text(span)
    whole = isinstance(extent, int) and extent % span.width == 0
    loop = "whole_blocks" if whole else "blocks"
    return f"jm::{loop}<{span.width}>({span.start}, {span.stop}, "


def told_text(span: Span) -> str:
    """The same, of steps that were told before."""
    assert span.told is not None
    return f"jm::told_steps<{span.width}>({span.told.name}, "


def _text_of(kernel: Structure) -> int:
    """How much is written for one step of all passes; more than rows of few steps may be, where
    none is reduced: those gain by one step alone. What is there once a row counts for nothing.
    """
    if not any(pass_.reductions for pass_ in kernel.passes):
        return MOST_TEXT
    nodes = [node for pass_ in kernel.passes for node in inside(pass_, kernel.free)]
    reduced = [node for pass_ in kernel.passes for node in pass_.reductions]
    doubles = sum(node.dtype is torch.float64 for node in nodes)  # of two registers each
    costs = sum(max(op_cost(node), 1) for node in nodes)
    return costs + doubles + POSITION_TEXT * sum(node.op in POSITIONAL for node in reduced)


def _is_long(kernel: Structure, lanes: Lanes) -> bool:
    """Whether a step is too long to be written twice, where no lane has to be left out of a sum.
    With loops inside it is; but masks take time where all lanes count (column sums of 1000 by 32:
    1.11), and so a step that is full in this call has none.
    """
    if any(pass_.reductions for pass_ in kernel.passes):
        return lanes.outer is not None and hint_of(lanes.outer.extent) < lanes.width
    nodes = [node for pass_ in kernel.passes for node in walk(pass_.roots)]
    return sum(not isinstance(node, Constant) for node in nodes) > MOST_TWICE


def _until(name: str, span: Span) -> tuple[str, str]:
    """Declarations of a loop's variable and, unless a constant says it, of its end; the end."""
    if span.stop.isdigit():
        return f"{name} = {span.start}", span.stop
    return f"{name} = {span.start}, {name}_end = {span.stop}", f"{name}_end"
