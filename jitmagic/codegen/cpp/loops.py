"""Builds the loops inside a point of the outer loops of a CPU kernel: passes along vector lanes.

In: a Structure and its lanes. Out: statements in the loop form. A pass runs
  - along lanes of its own, which are innermost, or as plain loops inside lanes that are open
    already (column sums);
  - in parts of fixed size, in parallel, where there are too few rows for the threads: the parts are
    combined in order, so that the result does not depend on the number of threads.
Expensive values that a later pass over the same axes uses again are saved in scratch rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from ...lazy_dataclass import dataclass, replace
from ...loops.expr import Apply, Axis, AxisVar, Expr, Integer, add, mul
from ...loops.ir import Load, Reduction, Scan, Value
from ...schedule.score import extent_product, points
from ...symbols.size import Size
from ..kernel import For, Join, Let, Partial, Result, Scratch, Start, Statement, Store, Total, Var
from ..loop_form import Accumulated, Body, LoopBuilder, on_threads, plain_loops, position_in
from ..loop_structure import Pass, Structure
from ..vector_lanes import Lanes, lanes_of_product

__all__ = ["PARTIAL_SUMS", "ROW_BYTES", "VectorLoops", "adds_floats", "least_of"]

ROW_BYTES = 128 << 10  # scratch rows live on the stack of the thread
# The size of a part is independent of the thread count, so the rounding of a sum is too.
PART = 1 << 14  # elements of one part of a split pass
MOST_PARTS = 1024
PARTIAL_SUMS = 1 << 18  # per thread, for the parts of tall columns
TALL_PART = 512  # least rows of one part of tall columns


def adds_floats(total: Total) -> bool:
    """Return whether the order and number of additions affect the rounding."""
    is_sum = total.op == "sum" and total.method != "scan"
    return is_sum and total.var.dtype in (torch.float32, torch.float64)


def least_of(a: Expr | int, b: Expr | int) -> Expr:
    """Return the lesser of two bounds of a loop."""
    sides = (Integer(n) if isinstance(n, int) else n for n in (a, b))
    return Apply("least_of", tuple(sides))


@dataclass(frozen=True, slots=True)
class _Row:
    """Describes a scratch row: the order of its axes, and how many lanes each element has."""

    name: str
    axes: tuple[Axis, ...]
    lanes: int


class VectorLoops(LoopBuilder):
    """Writes passes along lanes. `lane` and `width`: those of the vector loop that is open."""

    def __init__(self, kernel: Structure, lanes: Lanes) -> None:
        super().__init__(kernel)
        self.bound = frozenset(kernel.outer)
        self.lane: Axis | None = None
        self.width = 1
        self._lanes = list(zip(kernel.passes, lanes.passes, strict=True))
        self._rows: dict[Value, _Row] = {}
        self._saved: set[Value] = set()  # by the passes so far

    @contextmanager
    def along(self, lane: Axis, width: int) -> Iterator[None]:
        """Write what is inside a vector loop."""
        outside = self.lane, self.width
        self.lane, self.width = lane, width
        yield
        self.lane, self.width = outside

    def all_passes(self, passes: Sequence[Pass], split: bool = False) -> Body:
        """Return the statements of passes of the nest, with their scratch rows. `split`: long ones
        run in parallel parts.
        """
        made: list[Statement] = self._declare_rows(passes)
        ready: frozenset[Value] = frozenset()
        for pass_ in passes:
            lane, width = self._lanes_of(pass_)
            if split and lane is not None and extent_product(pass_.axes) > 2 * PART:
                made += self._split_pass(pass_, lane, width, ready)
            else:
                made += self.pass_(pass_, self.bound, ready)
            ready |= frozenset(pass_.reductions)
            self._saved.update(pass_.saved)
        return tuple(made)

    def _lanes_of(self, pass_: Pass) -> tuple[Axis | None, int]:
        """Return the lanes along which a pass of the nest runs by itself."""
        if self.lane is not None or not pass_.axes:
            return None, 1
        return next((lanes for each, lanes in self._lanes if each is pass_), (None, 1))

    def pass_(self, pass_: Pass, bound: frozenset[Axis], ready: frozenset[Value]) -> Body:
        lane, width = self._lanes_of(pass_)
        if lane is None:
            return super().pass_(pass_, bound, ready)
        totals: dict[Accumulated, Total] = {
            node: self._across(node, width, pass_) for node in pass_.reductions
        }
        vector = self._vector(pass_, lane, width, ready, totals)
        others = [axis for axis in pass_.axes if axis != lane]
        results = [Let(node, Result(t, node.dtype, across=True)) for node, t in totals.items()]
        return (*map(Start, totals.values()), *plain_loops(others, (vector,)), *results)

    def _vector(
        self,
        pass_: Pass,
        lane: Axis,
        width: int,
        ready: frozenset[Value],
        totals: Mapping[Accumulated, Total],
    ) -> For:
        with self.along(lane, width):
            inside = self.point(pass_, self.bound | frozenset(pass_.axes), ready, totals)
        return For((lane,), inside, "vector", step=width)

    def _across(self, node: Reduction, width: int, pass_: Pass) -> Total:
        """Return an accumulator whose lanes are combined after the loop."""
        total = self._accumulator(node, width)
        is_ordered = len(pass_.axes) == 1 and lanes_of_product(node.op, node.dtype)
        return replace(total, method="ordered") if is_ordered else total

    def total(self, node: Accumulated) -> Total:
        is_vector = self.lane is not None and self.lane in self.kernel.free[node]
        lanes = self.width if is_vector else 1
        if isinstance(node, Scan):
            var = Var(self.new_name("acc"), node.dtype, lanes)
            return Total(node.op, (node.axis,), node.dtype, var, method="scan")
        return self._accumulator(node, lanes)

    def _accumulator(self, node: Reduction, lanes: int) -> Total:
        """Return an accumulator in the dtype of the reduction; an argmax has that of its values."""
        is_position = node.op in ("argmax", "argmin")
        name = self.new_name("acc")
        var = Var(name, node.value.dtype if is_position else node.dtype, lanes)
        at = Var(f"{name}_at", torch.int64) if is_position else None
        # No other pass reads the vectors of a whole tensor's sum, so float64 blocks cost little.
        is_wide = node.op == "sum" and node.dtype == torch.float32 and not self.kernel.outer
        return Total(node.op, node.axes, node.value.dtype, var, at, wide=is_wide)

    def joined(self, node: Reduction, lanes: int) -> Total:
        """Return an accumulator of the results of parts."""
        total = self._accumulator(node, lanes)
        return replace(total, method="blocks") if adds_floats(total) else total

    # -- scratch rows ------------------------------------------------------------------------------

    def _declare_rows(self, passes: Sequence[Pass]) -> list[Statement]:
        """Choose the values to save for later passes, and declare their memory."""
        # Lanes are contiguous there. Passes with lanes along different axes recompute values: no
        # order is contiguous along both.
        self._rows = {}
        made: list[Statement] = []
        for pass_ in passes:
            along = self._lane_axes(pass_, passes)
            if len(along) > 1:
                continue
            order = (*(axis for axis in pass_.axes if axis not in along), *along)
            for value in pass_.saved:
                is_vector = self.lane is not None and self.lane in self.kernel.free[value]
                lanes = self.width if is_vector else 1
                size, limit = points(pass_.axes), ROW_BYTES // (value.dtype.itemsize * lanes)
                if size <= limit:
                    name = self.new_name("row")
                    self._rows[value] = _Row(name, order, lanes)
                    # C++ arrays have constant sizes.
                    most = limit if isinstance(size, Size) else size
                    made.append(Scratch(name, value.dtype, most, lanes))
        return made

    def _lane_axes(self, pass_: Pass, passes: Sequence[Pass]) -> set[Axis]:
        """Return the axes along which the lanes of this pass and passes over equal axes run."""
        equal = [each for each in passes if {*each.axes} == {*pass_.axes}]
        chosen = [self._lanes_of(each)[0] for each in equal]
        return {axis for axis in chosen if axis is not None}

    def point(
        self,
        pass_: Pass,
        bound: frozenset[Axis],
        ready: frozenset[Value],
        totals: Mapping[Accumulated, Total],
    ) -> Body:
        known = [
            Let(value, Load(row.name, (position_in(row.axes),), value.dtype))
            for value, row in self.saved_before(pass_).items()
        ]
        return (*known, *super().point(pass_, bound, ready, totals))

    def saved_before(self, pass_: Pass) -> dict[Value, _Row]:
        return {
            value: row
            for value, row in self._rows.items()
            if {*row.axes} == {*pass_.axes} and value in self._saved
        }

    def saves(self, pass_: Pass) -> Body:
        rows = [(value, self._rows[value]) for value in pass_.saved if value in self._rows]
        return tuple(Store(row.name, position_in(row.axes), value) for value, row in rows)

    # -- parallel parts ----------------------------------------------------------------------------

    def _split_pass(
        self, pass_: Pass, lane: Axis, width: int, ready: frozenset[Value]
    ) -> list[Statement]:
        """Run the pass in parts of fixed size, in parallel, and combine their results in order."""
        loops = tuple(axis for axis in pass_.axes if axis != lane)
        size = max(PART, -(-lane.extent // MOST_PARTS // width) * width) if not loops else 0
        parts = -(-lane.extent // size) if not loops else loops[0].extent
        part = loops[0] if loops else Axis("part", parts)
        totals: dict[Accumulated, Total] = {
            node: self._across(node, width, pass_) for node in pass_.reductions
        }
        vector = self._vector(pass_, lane, width, ready, totals)
        if not loops:
            start = mul(AxisVar(part), size)
            stop = least_of(lane.extent, add(start, Integer(size)))
            vector = replace(vector, start=start, stop=stop, most=size)
        stored = {node: self.new_name("part") for node in pass_.reductions}
        at = AxisVar(part)
        body = (
            *map(Start, totals.values()),
            *plain_loops(loops[1:], (vector,)),
            *(
                Store(name, at, Partial(totals[node], node.dtype, across=True))
                for node, name in stored.items()
            ),
        )
        made: list[Statement] = [
            Scratch(name, node.dtype, parts, parts_of=totals[node]) for node, name in stored.items()
        ]
        made.append(on_threads(For((part,), body)))
        each_part = Axis("part", parts)
        for node, name in stored.items():
            total = self.joined(node, 1)
            read = Load(name, (AxisVar(each_part),), node.dtype)
            made += [Start(total), For((each_part,), (Join(total, read),))]
            made.append(Let(node, Result(total, node.dtype)))
        return made

    def tall(self, passes: Sequence[Pass], lane: Axis, width: int) -> Body:
        """Sum columns over many rows and few columns, with parts of the rows in parallel. Lanes are
        columns, so each part has a row of partial sums; they are added in the order of the parts.
        """
        first, others = passes[0], passes[1:]
        rows = first.axes[0]
        most = min(MOST_PARTS, PARTIAL_SUMS // lane.extent)
        size = max(TALL_PART, -(-rows.extent // most))
        parts = -(-rows.extent // size)
        part = Axis("part", parts)
        with self.along(lane, width):
            totals: dict[Accumulated, Total] = {node: self.total(node) for node in first.reductions}
            bound = self.bound | frozenset(first.axes)
            inside = self.point(replace(first, saved=()), bound, frozenset(), totals)
        start = mul(AxisVar(part), size)
        loop = For(
            (rows,), plain_loops(first.axes[1:], inside), start=start,
            stop=least_of(rows.extent, add(start, Integer(size))), most=size,
        )  # fmt: skip
        memory = {node: self.new_name("part") for node in totals}
        at = add(mul(AxisVar(part), lane.extent), AxisVar(lane))
        of_part = (
            *map(Start, totals.values()),
            loop,
            *(Store(memory[node], at, Partial(t, node.dtype)) for node, t in totals.items()),
        )
        in_parts = For((lane,), of_part, "vector", step=width)
        with self.along(lane, width):
            sums = {node: self.joined(node, width) for node in first.reductions}
            joins = [
                Join(total, Load(memory[node], (at,), node.dtype)) for node, total in sums.items()
            ]
            rest = self.all_passes(others)
        combine = (
            *map(Start, sums.values()),
            For((part,), tuple(joins)),
            *(Let(node, Result(total, node.dtype)) for node, total in sums.items()),
            *rest,
        )
        declared = [
            Scratch(name, node.dtype, parts * lane.extent, parts_of=totals[node])
            for node, name in memory.items()
        ]
        return (
            *declared,
            on_threads(For((part,), (in_parts,))),
            For((lane,), combine, "vector", step=width),
        )
