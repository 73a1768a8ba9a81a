"""Builds a CPU kernel: the loops over the outer axes, around the passes of a point.

In: a Structure, its lanes, the target. Out: a Kernel in the loop form. Shapes of the outer loop:
  - outer lanes:  rows x blocks of an outer axis; everything inside is a vector (pointwise, column
    sums)
  - tall columns: many rows of few columns are summed in parallel parts (loops.py)
  - row lanes:    a loop over rows, in which every pass runs along its own axis (softmax, layer
    norm)
  - split rows:   too few rows for the threads: the passes themselves run in parallel parts
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ...devices import Target
from ...lazy_dataclass import dataclass, replace
from ...loops.expr import Apply, Axis, AxisVar, Expr, Integer, add, mul, substitute
from ...loops.ir import Buffer, IndexValue, Load, Reduction, run_time_values, walk
from ...platforms import is_clang
from ...schedule.score import PARALLEL_WORK, body_cost, extent_product, points
from ...symbols.size import Dimension, Size, expr_of, hint_of
from ..kernel import (
    BEGIN,
    END,
    For,
    Grain,
    Kernel,
    Let,
    LoadTile,
    Parallel,
    Statement,
    TileRow,
    Trips,
    Var,
    VarIndex,
    Whole,
)
from ..kernel_walk import with_blocks
from ..loop_form import Body, on_threads, params_of, plain_loops
from ..loop_structure import Structure, scans_of
from ..vector_lanes import Lanes, lane_step, likely_extent
from .blocks import is_long_step, step_cost, steps_to_test
from .loops import PARTIAL_SUMS, VectorLoops, least_of

__all__ = ["vector_kernel"]

GRAIN = 30_000  # least work of one task of a thread
# Number of tiles read one after the other along contiguous memory: the cache lines of a row follow
# each other, so that prefetching works, and each page is visited once for four tiles. Writing more
# rows at a time would need more pages than the first-level TLB holds (64 or 72).
STRIP = 4
_LONG = torch.int64


def vector_kernel(
    kernel: Structure,
    lanes: Lanes,
    buffers: Mapping[str, Buffer],
    target: Target,
    all_threads: bool = False,
) -> Kernel:
    """Return the loop form of a nest for vectors and threads. `all_threads`: use all threads, even
    for little work.
    """
    outer = _OuterLoops(kernel, lanes, target, all_threads, VectorLoops(kernel, lanes))
    params = params_of(kernel, buffers)
    return Kernel(kernel.name, params, kernel.symbols, outer.body(), kernel.origins)


@dataclass(slots=True)
class _OuterLoops:
    kernel: Structure
    lanes: Lanes
    target: Target
    all_threads: bool
    loops: VectorLoops

    def body(self) -> Body:
        """Return the statements of the kernel."""
        if self.lanes.outer is not None:
            return self._outer_lanes(self.lanes.outer, self.lanes.width)
        outer, passes = self.kernel.outer, self.kernel.passes
        rows = extent_product(outer)
        few = rows < 2 * self.target.threads and not self.kernel.symbols
        if few and self._parallel(rows) and self._splittable():
            return plain_loops(outer, self.loops.all_passes(passes, split=True))
        return self._rows(outer, self.loops.all_passes(passes))

    def _splittable(self) -> bool:
        """Return whether every big pass runs along lanes, and no store adds to shared memory."""
        return not self._adds() and any(axis is not None for axis, _ in self.lanes.passes)

    def _adds(self) -> bool:
        return any(store.mode == "add" for p in self.kernel.passes for store in p.stores)

    # -- how much work there is --------------------------------------------------------------------

    def _work(self) -> int:
        """Return the cost of one outer point."""
        total = 0
        for pass_ in self.kernel.passes:
            nodes = [node for node in walk(pass_.roots) if not isinstance(node, Reduction)]
            total += extent_product(pass_.axes) * (body_cost(nodes) + len(pass_.stores))
        return max(total, 1)

    def _exact_work(self) -> Dimension:
        """Return `_work` as an expression of the dynamic sizes."""
        total: Dimension = 0
        for pass_ in self.kernel.passes:
            nodes = [node for node in walk(pass_.roots) if not isinstance(node, Reduction)]
            total = total + points(pass_.axes) * max(body_cost(nodes) + len(pass_.stores), 1)
        return total

    def _speed(self) -> int:
        """Return how many points are computed at once: the lanes, at most those of one register."""
        widths = [width for _, width in self.lanes.passes]
        return min(max([self.lanes.width, *widths]), self.target.lanes or 1) or 1

    def _parallel(self, points: int) -> bool:
        # Threads would add to the same element without synchronisation.
        if self._adds() or self.target.threads == 1:
            return False
        if self.kernel.symbols:
            return True  # `_grain` decides at run time
        work = points * self._work()
        return self.all_threads or work // self._speed() > PARALLEL_WORK // 4

    def _units_per_task(self, work: int, units: int) -> int:
        """Return the least number of units, of cost `work` each, for one task."""
        each = -(-units // self.target.threads)
        return max(1, each if self.all_threads else min(GRAIN // max(work, 1), each))

    def _grain(self, units: Dimension, work: Dimension, grain: int) -> int | Grain:
        """Return the least number of units, of `work` each, for one task; `grain` for static
        sizes.
        """
        if not isinstance(units, Size) and not isinstance(work, Size):
            return grain
        speed = self._speed()
        return Grain(work, PARALLEL_WORK // 4 * speed, GRAIN * speed, self.target.threads)

    # -- rows --------------------------------------------------------------------------------------

    def _rows(self, axes: tuple[Axis, ...], body: Body) -> Body:
        """Return a loop over all points of `axes`, in parallel when that pays."""
        rows = extent_product(axes)
        if not axes or not self._parallel(rows):
            inside = plain_loops(axes, body)
            return self._tested(self.lanes.passes, inside) if axes else inside
        each = self._units_per_task(self._work() // self._speed(), rows)
        grain = self._grain(points(axes), self._exact_work(), each)
        return self._flat_rows(axes, grain, body, self.lanes.passes)

    def _flat_rows(
        self,
        axes: tuple[Axis, ...],
        grain: int | Grain,
        body: Body,
        tested: Sequence[tuple[Axis | None, int]] = (),
    ) -> Body:
        """Return a loop over rows, in parallel."""
        rows = on_threads(For(axes, body), grain)
        # The test is inside a thread's range: around the parallel loop, its code would be there
        # twice.
        return (replace(rows, body=self._tested(tested, rows.body)),)

    def _tested(self, lanes: Sequence[tuple[Axis | None, int]], body: Body) -> Body:
        """Put a trip-count test around rows of a short dynamic length."""
        # Testing once around all rows saves the test in every row, but compiles the rows twice: a
        # long step is written once instead, with masks.
        cost = step_cost(self.kernel)
        for lane, width in lanes:
            if lane is not None and (steps := steps_to_test(lane, width, cost)):
                name = self.loops.new_name("n")
                twice = steps > 1 or not is_long_step(self.kernel, self.lanes)
                return (Trips(name, lane, width, steps, _named(body, lane, width, name), twice),)
        return body

    # -- outer lanes -------------------------------------------------------------------------------

    def _outer_lanes(self, lane: Axis, width: int) -> Body:
        others = tuple(axis for axis in self.kernel.outer if axis != lane)
        tiled = self._tiled_axis(others, lane)
        if not self.kernel.symbols and self._is_tall(others, lane):
            most = 4 * max(self.target.lanes, 4)
            lanes = min(most, width * 4) if width < most else width
            return self.loops.tall(self.kernel.passes, lane, lanes)
        if not others:
            return self._blocks_in_parallel(lane, width)
        if tiled is not None:
            return self._tiles(others, tiled, lane, width)
        block = (self._block(lane, width),)
        if self.kernel.symbols:
            is_pointwise = not any(p.axes for p in self.kernel.passes)
            is_tested = is_pointwise or self.lanes.is_one_step
            return self._rows_of_blocks(others, lane, block, [(lane, width)] if is_tested else ())
        if extent_product(others) >= 4 * self.target.threads or not self._parallel(
            extent_product(self.kernel.outer)
        ):
            return self._rows_of_blocks(others, lane, block)
        return self._columns(others, lane, width, block[0])

    def _block(self, lane: Axis, width: int) -> For:
        """Return a loop over blocks of lanes with all passes inside."""
        with self.loops.along(lane, width):
            inside = self.loops.all_passes(self.kernel.passes)
        return For((lane,), inside, "vector", step=width)

    def _is_tall(self, others: Sequence[Axis], lane: Axis) -> bool:
        """Return whether the nest is one pass of sums over many rows of few columns, then
        pointwise.
        """
        first, *rest = self.kernel.passes
        columns = min(16 * max(self.target.lanes, 4) * self.target.threads, PARTIAL_SUMS // 64)
        sums = bool(first.reductions) and all(
            not r.op.startswith("arg") and r.dtype != torch.bool for r in first.reductions
        )
        sums &= not scans_of(first)
        simple = not first.stores and not first.saved and not any(p.axes for p in rest)
        tall = bool(first.axes) and first.axes[0].extent >= 2048
        few = not others and lane.extent < columns
        return few and sums and simple and tall and self._parallel(lane.extent)

    def _rows_of_blocks(
        self,
        others: tuple[Axis, ...],
        lane: Axis,
        block: Body,
        tested: Sequence[tuple[Axis | None, int]] = (),
    ) -> Body:
        """Return a loop over rows of whole lanes; a row's work includes the lane axis. `tested`:
        lanes whose trip count is tested around the rows.
        """
        length = hint_of(lane.extent)
        rows, work = extent_product(others), self._work() * length // self._speed()
        if not self._parallel(rows * length):
            return self._tested(tested, plain_loops(others, block))
        work_of_row = self._exact_work() * lane.extent
        grain = self._grain(points(others), work_of_row, self._units_per_task(work, rows))
        return self._flat_rows(others, grain, block, tested)

    def _blocks_in_parallel(self, lane: Axis, width: int) -> Body:
        block = self._block(lane, width)
        if self.lanes.is_one_step:  # one step: nothing to parallelise
            return self._tested([(lane, width)], (block,))
        if not self._parallel(hint_of(lane.extent)):
            return (block,)
        work = self._work() * width // self._speed()
        each = self._units_per_task(work, -(-hint_of(lane.extent) // width))
        units = -(-lane.extent // width)
        grain = self._grain(units, self._exact_work() * width, each)
        start, end = mul(AxisVar(BEGIN), width), mul(AxisVar(END), width)
        if isinstance(lane.extent, Size) or lane.extent % width:
            end = least_of(end, expr_of(lane.extent))
        return (Parallel(units, grain, (replace(block, start=start, stop=end),)),)

    def _columns(self, others: tuple[Axis, ...], lane: Axis, width: int, block: For) -> Body:
        """Parallelise over blocks of lanes as well as rows, where the rows are too few."""
        blocks = -(-lane.extent // width)
        per_thread = -(-blocks * extent_product(others) // (4 * self.target.threads))
        step = width * max(1, min(per_thread, blocks))
        strip = Axis(f"{lane.name}_strip", -(-lane.extent // step))
        start = mul(AxisVar(strip), step)
        stop = least_of(lane.extent, add(start, Integer(step)))
        part = replace(block, start=start, stop=stop, most=step)
        return self._flat_rows((*others, strip), 1, (part,))

    # -- transposing tiles -------------------------------------------------------------------------

    def _tiled_axis(self, others: Sequence[Axis], lane: Axis) -> Axis | None:
        """Return the axis along which loads are contiguous that are strided along the lanes."""
        if any(p.axes for p in self.kernel.passes):
            return None
        wide = (
            axis
            for axis in others
            if likely_extent(axis) >= 4 and self._transposed_loads(axis, lane)
        )
        return next(wide, None)

    def _transposed_loads(self, tiled: Axis, lane: Axis) -> list[tuple[Load, int | Expr]]:
        """Return the loads that are contiguous along `tiled`, with their stride between lanes."""
        loads = []
        for node in self.kernel.free:
            if not isinstance(node, Load) or node.mask or run_time_values(node.index[0]):
                continue
            step = lane_step(node.index[0], lane, self.kernel)
            if (
                step is not None
                and step not in (0, 1)
                and lane_step(node.index[0], tiled, self.kernel) == 1
            ):
                loads.append((node, step))
        return loads

    def _tiles(self, others: tuple[Axis, ...], tiled: Axis, lane: Axis, width: int) -> Body:
        """Return square tiles, lanes by lanes: loads along the rows are transposed in registers."""
        # A block of lanes takes up to STRIP tiles, which are neighbours in memory.
        tile = Axis(f"{tiled.name}_tile", -(-tiled.extent // width))
        tiles = extent_product(tile if axis == tiled else axis for axis in others)
        some = max(1, min(STRIP, tiles // (4 * max(self.target.threads, 1))))
        strip = Axis(f"{tiled.name}_strip", -(-tile.extent // some))
        rest = tuple(strip if axis == tiled else axis for axis in others)
        start = mul(AxisVar(strip), some)
        inside = For(
            (tile,), self._tile(tile, tiled, lane, width),
            start=start, stop=least_of(expr_of(tile.extent), add(start, Integer(some))),
        )  # fmt: skip
        kind = "vector_counted" if self._varies(tiled, lane) else "vector"
        block = (For((lane,), (inside,), kind, step=width),)
        if not self._parallel(extent_product(self.kernel.outer)):
            return plain_loops(rest, block)
        work = self._exact_work() * lane.extent * (width * some)
        each = max(1, extent_product(rest) // (8 * self.target.threads))
        return self._flat_rows(rest, self._grain(points(rest), work, each), block)

    def _varies(self, *axes: Axis) -> bool:
        return any(isinstance(axis.extent, Size) for axis in axes)

    def _tile(self, tile: Axis, tiled: Axis, lane: Axis, width: int) -> Body:
        """Return the statements of one tile."""
        varying = self._varies(tiled, lane)
        at = mul(AxisVar(tile), width)
        # Otherwise g++ keeps a pointer for each row of a tile in memory and increments them all
        # (transpose of 64 by 64: 1.70 of the static kernel's time, now 1.03).
        position: Expr = Apply("opaque", (at,)) if varying else at
        first, rows = Var("first", _LONG), Var("rows", _LONG)
        first_row = VarIndex(first, tiled.extent)
        left = add(expr_of(tiled.extent), mul(first_row, -1))
        count = VarIndex(rows, width + 1)
        loads: list[Statement] = []
        known: list[Statement] = []
        for node, step in self._transposed_loads(tiled, lane):
            name = self.loops.new_name("tile")
            offset = substitute(node.index[0], {tiled: at})
            loads.append(
                LoadTile(name, node.dtype, width, node.buffer, offset, step, count, varying)
            )
            row = add(AxisVar(tiled), mul(first_row, -1))
            known.append(Let(node, TileRow(name, row, node.dtype)))
        with self.loops.along(lane, width):
            passes = self.loops.all_passes(self.kernel.passes)
        # clang does not unroll the other loop, as g++ 12 does, and then keeps the tile in memory
        # (transpose of 500 by 300: 1.3 of g++'s time, now 1.0).
        kind = "tile_rows" if varying or is_clang(self.target.cxx) else "serial"
        each_row: Statement = For(
            (tiled,), (*known, *passes), kind, first_row, add(first_row, count), most=width
        )
        if varying:  # for static extents the compiler knows which tiles are whole
            dtype = next(node.dtype for node, _ in self._transposed_loads(tiled, lane))
            each_row = Whole(dtype, width, (each_row,))
        return (
            Let(first, IndexValue(position, _LONG)),
            Let(rows, IndexValue(least_of(left, width), _LONG)),
            *loads,
            each_row,
        )


def _named(body: Body, lane: Axis, width: int, name: str) -> Body:
    """Name the test in the loops that run over all of the tested axis."""

    def change(body: Body) -> Body:
        made = [with_blocks(each, change) for each in body]
        return tuple(
            replace(each, trips=name)
            if isinstance(each, For) and each.axes == (lane,) and each.step == width
            and each.stop is None
            else each
            for each in made
        )  # fmt: skip

    return change(body)
