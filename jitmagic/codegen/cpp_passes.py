"""Writes the passes of a C++ kernel: their loops, accumulators, scratch rows and statements.

In: Passes of a Structure (a softmax has one for the maximum, one for the sum) and a CppBody whose
open scopes bind the outer axes. Out: lines in that body. A pass runs
  - along lanes, or as plain loops inside lanes that are already open (column sums);
  - in parts of fixed size, in parallel, where there are too few rows for the threads: the parts are
    combined in order, so that the result does not depend on the number of threads.
Sums of floats longer than BLOCK steps are made of blocks (cpp_blocks.py), so that their error stays
that of a short sum, whatever loops enclose them and whatever else is in the pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch

from ..lazy_dataclass import dataclass, field, replace
from ..loops.expr import Axis, AxisVar, Expr, Integer, add, mul, times
from ..loops.ir import Reduction, Value
from ..schedule.score import extent_product, points
from ..symbols.size import Size, hint_of
from .cpp_blocks import (
    BlockLevel,
    Span,
    TripCountTest,
    block_level,
    has_run_time_blocks,
    is_long_step,
    spans_of,
    step_cost,
    steps_to_test,
    whole_span,
)
from .cpp_reduce import Accumulator, lanes_of_product
from .cpp_text import CTYPES, blocks_text, count_text
from .cpp_values import CppBody
from .loop_structure import Pass, Structure, passes_in
from .vector_lanes import Lanes

__all__ = ["PARTIAL_SUMS", "PassWriter", "tested_blocks_text"]

ROW_BYTES = 128 << 10  # scratch rows live on the stack of the thread
# The size of a part is independent of the thread count, so the rounding of a sum is too.
PART = 1 << 14  # elements of one part of a split pass
MOST_PARTS = 1024
PARTIAL_SUMS = 1 << 18  # per thread, for the parts of tall columns
TALL_PART = 512  # least rows of one part of tall columns

Rows = Mapping[Value, tuple[str, tuple[Axis, ...]]]


@dataclass(slots=True)
class PassWriter:
    """Writes passes into `body`."""

    kernel: Structure
    lanes: Lanes
    body: CppBody
    # trip-count tests around the rows
    trip_tests: dict[tuple[Axis, int], TripCountTest] = field(default_factory=dict)

    def write(self, passes: Sequence[Pass], split: bool = False) -> None:
        """Write all passes, in order."""
        rows = self._scratch_rows(passes)
        for number, pass_ in enumerate(passes):
            if not pass_.axes:
                self._point(pass_, {})
                continue
            # Inside lanes of an outer axis a pass is a plain loop over vectors.
            axis, width = self.lanes.passes[number] if self.body.lane is None else (None, 1)
            if split and axis is not None and extent_product(pass_.axes) > 2 * PART:
                self._split_pass(pass_, axis, width, rows)
            else:
                self._pass(pass_, axis, width, rows)

    def open_trip_test(self, lanes: Sequence[tuple[Axis | None, int]]) -> int:
        """Open a trip-count test around rows of a short dynamic length; return the scopes
        opened.
        """
        # Testing once around all rows saves the test in every row, but compiles the rows twice: a
        # long step is written once instead, with masks.
        cost = step_cost(self.kernel)
        for lane, width in lanes:
            if lane is not None and (steps := steps_to_test(lane, width, cost)):
                test = self.trip_tests[lane, width] = TripCountTest(self.body.name("n"), steps)
                if steps == 1 and is_long_step(self.kernel, self.lanes):
                    self.body.line(f"const int64_t {test.name} = {count_text(lane.extent)};")
                    return 0
                kind = f"one_step<{width}>" if steps == 1 else f"few_steps<{width}, {steps}>"
                header = f"jm::{kind}({count_text(lane.extent)}, [&](auto {test.name}) JM_BODY {{"
                self.body.open(header, footer="});")
                return 1
        return 0

    def _scratch_rows(self, passes: Sequence[Pass]) -> dict[Value, tuple[str, tuple[Axis, ...]]]:
        """Declare memory for values that later passes use again; return its name and axis order."""
        # Lanes are contiguous there. Passes with lanes along different axes recompute values: no
        # order is contiguous along both.
        rows: dict[Value, tuple[str, tuple[Axis, ...]]] = {}
        for pass_ in passes:
            along = self._lane_axes(pass_, passes)
            if len(along) > 1:  # see above: recomputed
                continue
            order = (*(axis for axis in pass_.axes if axis not in along), *along)
            for value in pass_.saved:
                lanes = self.body.width if self.body.is_vector(value) else 1
                size = points(pass_.axes) * lanes
                if size * value.dtype.itemsize <= ROW_BYTES:
                    if isinstance(size, Size):  # C++ arrays have constant sizes: take the maximum
                        size = ROW_BYTES // value.dtype.itemsize
                    name = self.body.name("row")
                    self.body.line(f"alignas(64) {CTYPES[value.dtype]} {name}[{size}];")
                    rows[value] = (name, order)
        return rows

    def _lane_axes(self, pass_: Pass, passes: Sequence[Pass]) -> set[Axis]:
        """Return the axes along which the lanes of this pass and passes over equal axes run."""
        if self.body.lane is not None:
            return set()
        chosen = zip(passes, self.lanes.passes, strict=False)
        return {
            axis
            for sibling, (axis, _) in chosen
            if axis is not None and {*sibling.axes} == {*pass_.axes}
        }

    def _pass(self, pass_: Pass, lane: Axis | None, width: int, rows: Rows) -> None:
        """Write one loop nest over the pass's axes, the lane axis innermost."""
        test = None if lane is None else self.trip_tests.get((lane, width))
        spans = spans_of(pass_.axes, lane, width, test)
        totals = [self._accumulator(node, lane, width, spans, pass_) for node in pass_.reductions]
        for total in totals:
            self.body.line(total.declare())
        self._accumulate(pass_, spans, rows, totals)
        self._results(totals, lane is not None)

    def _accumulate(
        self, pass_: Pass, spans: Sequence[Span], rows: Rows, totals: Sequence[Accumulator]
    ) -> None:
        """Write loops over the spans, which add to the accumulators; a Total gets one sum per
        block.
        """
        body, level = self.body, self._level(spans, pass_)
        # Blocks are summed separately and then added, as eager sums in cascade: the error of one
        # long sum grows with its length (2.2e-6 where blocks gave 1.5e-7).
        if level is None or not any(a.total for a in totals):
            self._loops(pass_, spans, rows, totals)
            return
        outside, inside = spans[: level.depth], spans[level.depth :]
        if has_run_time_blocks(level, spans):
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
        """Open a loop over the blocks of the span; return the span of one block."""
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
        """Write loops over the blocks of a span whose length is known at run time."""
        # Most often there is one block, whose sum is then the result, without a compensated total,
        # through which row sums of 64 columns took twice as long.
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
        """Write plain loops, around lanes if the innermost span has them."""
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
        """Sum columns over many rows and few columns, with parts of the rows in parallel. Lanes are
        columns, so each part has a row of partial sums; they are added in the order of the parts.
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
            # Static memory, because PARTIAL_SUMS of them need not fit on the stack. The lambda
            # captures the pointer: a thread_local named in it would be that of the thread that runs
            # the part.
            body.line(f"static thread_local {a.scalar_type} {memory[a.name]}_memory[{count}];")
            body.line(f"auto* const {memory[a.name]} = {memory[a.name]}_memory;")
        header = f"jm::parallel_for({parts}, 1, [&](int64_t begin, int64_t end) {{"
        body.open(header, footer="});")
        body.open("for (int64_t part = begin; part < end; ++part) {")
        self._open_lanes(lane, width, blocks_text(width, lane.extent))
        for a in totals:
            # A fresh accumulator per part: its sum does not depend on the parts that its thread ran
            # before.
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
        """Return an accumulator for all points of the spans."""
        total, level = self._total(node, width), self._level(spans, pass_)
        if level is None or not total.total:
            return replace(total, total=False)
        if not has_run_time_blocks(level, spans):
            return total
        return replace(total, single=f"{spans[0].stop} <= {level.size}")

    def _total(self, node: Reduction, width: int) -> Accumulator:
        total = Accumulator(node, self.body.name("acc"), width)
        return replace(total, total=total.adds_floats, wide=self._is_wide(node))

    def _is_wide(self, node: Reduction) -> bool:
        """Return whether it sums a whole float32 tensor."""
        # No other pass then reads the same vectors, so float64 blocks cost little.
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
        """Define the results of the reductions in the current scope."""
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
        """Run the pass in parts of fixed size, in parallel, and combine their results in order."""
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
        """Write the statements of one point: nested reductions, accumulations, then all stores."""
        body = self.body
        self._reload(pass_, rows)
        scope = body.scopes[-1].bound
        for nested in passes_in(scope, (), pass_.roots, self.kernel.free, ready=body.ready()):
            self._nested(nested)
        for value in pass_.saved:
            if value in rows:
                self._save(value, *rows[value])
        for accumulator in accumulators:
            vector = accumulator.width > 1
            text = body.use(accumulator.node.value, as_vector=vector)
            if accumulator.dtype != accumulator.node.value.dtype:
                text = f"jm::convert<{CTYPES[accumulator.dtype]}>({text})"
            across = body.lane in accumulator.node.axes
            body.line(accumulator.update(text, self._position(accumulator), across))
        # stores last: one may overwrite an element that the point reads
        for text in body.stores(pass_.stores):
            body.line(text)

    def _nested(self, pass_: Pass) -> None:
        """Write a reduction inside the point with plain loops; vectors stay vectors."""
        spans = spans_of(pass_.axes, None, 1)
        accumulators = [self._accumulator(node, None, 1, spans, pass_) for node in pass_.reductions]
        for accumulator in accumulators:
            self.body.line(accumulator.declare())
        self._accumulate(pass_, spans, {}, accumulators)
        self._results(accumulators, across=False)

    def _position(self, accumulator: Accumulator) -> str:
        """Return the row-major position of the point among the reduction's axes."""
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
        """Return the address of the current point (or block) in a scratch row."""
        offset: Expr = Integer(0)
        for axis in axes:
            offset = add(times(offset, axis.extent), AxisVar(axis))
        if vector and self.body.lane not in axes:
            offset = mul(offset, self.body.width)
        return f"{name} + {self.body.scalar_position(offset)}"

    def _save(self, value: Value, name: str, axes: tuple[Axis, ...]) -> None:
        body = self.body
        # A value that is uniform over the lanes is stored as a vector: other passes read it in
        # blocks.
        vector = body.is_vector(value) or body.lane in axes
        address = self._row_address(name, axes, vector)
        text = body.use(value, as_vector=vector)
        if not vector:
            body.line(f"*({address}) = {text};")
        else:
            count = "n" if body.lane in axes else "jm::Full{}"
            body.line(f"jm::store({address}, {text}, {count});")

    def _reload(self, pass_: Pass, rows: Rows) -> None:
        """Load values that earlier passes saved instead of recomputing them."""
        body = self.body
        for value, (name, axes) in rows.items():
            if {*axes} != {*pass_.axes} or value in pass_.saved:
                continue
            vector = body.is_vector(value)
            address = self._row_address(name, axes, vector)
            if not vector:
                body.define(value, f"{name}[{address.removeprefix(f'{name} + ')}]", vector=False)
            else:
                count = "n" if body.lane in axes else "jm::Full{}"
                body.define(value, f"jm::load<{body.count}>({address}, {count})", vector=True)


def _blocks_of(span: Span) -> str:
    """Return the beginning of a loop over the span in blocks of lanes."""
    # The span may be a part of its axis: it then begins at a block, and has the part's length or
    # ends with the axis.
    extent = span.axis.extent
    # Only a loop over the whole axis may use the trip-count test, which knows the axis alone.
    if span.start == "0" and span.stop == count_text(extent):
        return (
            blocks_text(span.width, extent) if span.trip_test is None else tested_blocks_text(span)
        )
    whole = isinstance(extent, int) and extent % span.width == 0
    loop = "whole_blocks" if whole else "blocks"
    return f"jm::{loop}<{span.width}>({span.start}, {span.stop}, "


def tested_blocks_text(span: Span) -> str:
    """Return the beginning of a loop whose trip count comes from a TripCountTest."""
    assert span.trip_test is not None
    return f"jm::told_steps<{span.width}>({span.trip_test.name}, "


def _until(name: str, span: Span) -> tuple[str, str]:
    """Return declarations of a loop's variable and, unless constant, of its end; and the end."""
    if span.stop.isdigit():
        return f"{name} = {span.start}", span.stop
    return f"{name} = {span.start}, {name}_end = {span.stop}", f"{name}_end"
