"""Writes one C++ kernel: the function around its passes, and the loops over the outer axes.

In: a Structure, its lanes, the target. Out: the lines of one C++ function. Shapes of the outer
loop:
  - outer lanes:  rows x blocks of an outer axis; everything inside is a vector (pointwise, column
    sums)
  - tall columns: many rows of few columns are summed in parallel parts (cpp_passes.py)
  - row lanes:    a loop over rows, in which every pass runs along its own axis (softmax, layer
    norm)
  - split rows:   too few rows for the threads: the passes themselves run in parallel parts
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..devices import Target
from ..lazy_dataclass import dataclass
from ..loops.expr import Axis, AxisVar, Expr, mul, substitute
from ..loops.ir import Buffer, IndexValue, Load, Reduction, run_time_values, walk
from ..platforms import is_clang
from ..schedule.products import Product
from ..schedule.score import PARALLEL_WORK, body_cost, extent_product, points
from ..symbols.size import Dimension, Size, hint_of, is_same
from .cpp_blocks import spans_of
from .cpp_passes import PARTIAL_SUMS, PassWriter, tested_blocks_text
from .cpp_reduce import LANES
from .cpp_text import CTYPES, blocks_text, closed, count_text, name_sizes, step_text
from .cpp_values import CppBody
from .loop_structure import Structure
from .products.cpp import write_products
from .text import comment_lines
from .vector_lanes import Lanes, lane_step, likely_extent

__all__ = ["KernelWriter"]

GRAIN = 30_000  # least work of one task of a thread
# Number of tiles read one after the other along contiguous memory: the cache lines of a row follow
# each other, so that prefetching works, and each page is visited once for four tiles. Writing more
# rows at a time would need more pages than the first-level TLB holds (64 or 72).
STRIP = 4


@dataclass(slots=True)
class KernelWriter:
    """Writes one function; `body` has the open scopes. `all_threads`: use all threads, even for
    little work.
    """

    kernel: Structure
    products: Sequence[Product]
    lanes: Lanes
    target: Target
    buffers: Mapping[str, Buffer]
    names: Mapping[str, str]
    body: CppBody
    passes: PassWriter
    all_threads: bool = False

    def function(self) -> list[str]:
        """Return the lines of the whole function."""
        body = self.body
        body.open(f'extern "C" int {self.kernel.name}(void* const* args) {{')
        for number, buffer in enumerate(self.kernel.arguments):
            const = "" if buffer in self.kernel.written else "const "
            kind = f"{const}{CTYPES[self.buffers[buffer].dtype]}*"
            body.line(f"{kind} {self.names[buffer]} = ({kind})args[{number}];")
        for number, symbol in enumerate(self.kernel.symbols):
            sizes = f"((const int64_t*)args[{len(self.kernel.arguments)}])"
            body.line(f"const int64_t {symbol.name} = {sizes}[{number}];")
        checks = self._checks_indexes()
        if checks:
            body.line("int bad = 0;  // set by a run-time index that is out of range")
        lines, before = body.scopes[-1].lines, len(body.scopes[-1].lines)
        self._loops()
        if self.kernel.symbols:
            symbols = {symbol.name for symbol in self.kernel.symbols}
            lines[before:] = name_sizes(lines[before:], symbols, lambda: body.name("n"))
        body.line("return bad;" if checks else "return 0;")
        body.close()
        return [*comment_lines(self.kernel.origins, "//", 116), *body.scopes[0].lines]

    def _checks_indexes(self) -> bool:
        loads = (node for node in self.kernel.free if isinstance(node, Load))
        stores = (store for p in self.kernel.passes for store in p.stores)
        numbers = (node.expr for node in self.kernel.free if isinstance(node, IndexValue))
        offsets = [node.index[0] for node in loads] + [store.index[0] for store in stores]
        offsets += numbers  # in a scatter written as `where`, a value compares an index
        return any(run_time_values(offset) for offset in offsets)

    # -- the outer loops ---------------------------------------------------------------------------

    def _loops(self) -> None:
        if self.products:
            write_products(self.kernel, self.products, self.body, self.names)
            return
        if self.lanes.outer is not None:
            self._outer_lanes(self.lanes.outer, self.lanes.width)
            return
        rows = extent_product(self.kernel.outer)
        few = rows < 2 * self.target.threads and not self.kernel.symbols
        if few and self._parallel(rows) and self._splittable():
            self.passes.serial(self.kernel.outer)
            self.passes.write(self.kernel.passes, split=True)
            self.passes.close(len(self.kernel.outer))
            return
        opened = self._rows(self.kernel.outer)
        self.passes.write(self.kernel.passes)
        self.passes.close(opened)

    def _splittable(self) -> bool:
        """Return whether every big pass runs along lanes, and no store adds to shared memory."""
        adds = any(store.mode == "add" for p in self.kernel.passes for store in p.stores)
        return not adds and any(axis is not None for axis, _ in self.lanes.passes)

    def _work(self) -> int:
        """Return the cost of one outer point."""
        total = 0
        for pass_ in self.kernel.passes:
            nodes = [node for node in walk(pass_.roots) if not isinstance(node, Reduction)]
            total += extent_product(pass_.axes) * (body_cost(nodes) + len(pass_.stores))
        return max(total, 1)

    def _parallel(self, points: int) -> bool:
        adds = any(store.mode == "add" for p in self.kernel.passes for store in p.stores)
        work = points * self._work()
        # Threads would add to the same element without synchronisation.
        if adds or self.target.threads == 1:
            return False
        if self.kernel.symbols:
            return True  # `_pieces` decides at run time
        return self.all_threads or work // self._speed() > PARALLEL_WORK // 4

    def _pieces(self, units: Dimension, work: Dimension, grain: int) -> str:
        """Return the first arguments of parallel_for: the number of units, of `work` each, and the
        least number per task, which is `grain` for static sizes.
        """
        if not isinstance(units, Size) and not isinstance(work, Size):
            return f"{units}, {grain}"
        limits = f"{PARALLEL_WORK // 4 * self._speed()}, {GRAIN * self._speed()}"
        count, each = count_text(units), count_text(work)
        return f"{count}, jm::grain({count}, {each}, {limits}, {self.target.threads})"

    def _exact_work(self) -> Dimension:
        """Return `_work` as an expression of the dynamic sizes."""
        total: Dimension = 0
        for pass_ in self.kernel.passes:
            nodes = [node for node in walk(pass_.roots) if not isinstance(node, Reduction)]
            total = total + points(pass_.axes) * max(body_cost(nodes) + len(pass_.stores), 1)
        return total

    def _grain(self, work: int, units: int) -> int:
        """Return the least number of units, of cost `work` each, for one task."""
        each = -(-units // self.target.threads)
        return max(1, each if self.all_threads else min(GRAIN // max(work, 1), each))

    def _speed(self) -> int:
        """Return how many points are computed at once: the lanes, at most those of one register."""
        widths = [width for _, width in self.lanes.passes]
        return min(max([self.lanes.width, *widths]), self.target.lanes or 1) or 1

    def _open_range(self, pieces: str) -> None:
        """Open the parallel loop's body."""
        # Where the thread count is decided at run time, g++ would inline the body into each of
        # three calls (row sums: 166 ms instead of 107): it is marked noinline. There, g++ would
        # reload each size after any masked load or store, which it assumes to write to all memory:
        # sizes are captured by copy (512 by 64 plus a column: 0.97 of the static kernel's time, not
        # 1.34).
        if not self.kernel.symbols:
            header = f"jm::parallel_for({pieces}, [&](int64_t begin, int64_t end) {{"
            self.body.open(header, footer="});")
            return
        # The outer lambda copies too: captured by reference, each value was stored and read through
        # a pointer, 2 to 3 ns of a call and 7% of a kernel's code.
        copies = "[=, &bad]" if self._checks_indexes() else "[=]"
        header = f"jm::parallel_for({pieces}, {copies}(int64_t begin, int64_t end) JM_APART {{"
        self.body.open(f"{header} {copies}() JM_BODY {{", footer="}(); });")

    def _rows(self, axes: tuple[Axis, ...]) -> int:
        """Open a loop over all points of `axes`, in parallel when that pays; return the scopes
        opened.
        """
        rows = extent_product(axes)
        if not axes or not self._parallel(rows):
            opened = self.passes.open_trip_test(self.lanes.passes) if axes else 0
            self.passes.serial(axes)
            return opened + len(axes)
        grain = self._grain(self._work() // self._speed(), rows)
        pieces = self._pieces(points(axes), self._exact_work(), grain)
        return self._flat_rows(axes, pieces, self.lanes.passes)

    def _counted_rows(self, axes: tuple[Axis, ...]) -> None:
        """Open a loop over flat positions from `begin` to `end` that also maintains the axes."""
        # A division by a run-time size takes thirty cycles, so the coordinates are incremented from
        # row to row (transpose(0, 1): 1.03 of the static kernel's time, 1.61 with divisions).
        body, rows = self.body, "int64_t row = begin; row < end; ++row"
        if not any(isinstance(points(axes[n:]), Size) for n in range(1, len(axes))):
            body.open(f"for ({rows}) {{", axes)
            for line in _digits(axes, "row"):
                body.line(f"const int64_t {line};")
            return
        body.line(f"int64_t {', '.join(_digits(axes, 'begin'))};")
        first, *others = axes
        counted = "".join(f"{a.name}, {count_text(a.extent)}, " for a in reversed(others))
        body.open(f"for ({rows}, jm::count_on({counted}{first.name})) {{", axes)

    # -- outer lanes -------------------------------------------------------------------------------

    def _outer_lanes(self, lane: Axis, width: int) -> None:
        others = tuple(axis for axis in self.kernel.outer if axis != lane)
        tiled = self._tiled_axis(others, lane)
        if not self.kernel.symbols and self._is_tall(others, lane):
            most = 4 * max(self.target.lanes, 4)
            self.passes.tall(
                self.kernel.passes, lane, min(most, width * 4) if width < most else width
            )
            return
        if not others:
            self._blocks_in_parallel(lane, width)
            return
        if tiled is not None:
            self._tiles(others, tiled, lane, width)
            return
        if self.kernel.symbols:
            self._rows_of_any_length(others, lane, width)
            return
        if extent_product(others) >= 4 * self.target.threads or not self._parallel(
            extent_product(self.kernel.outer)
        ):
            opened = self._rows_of_blocks(others, lane)
            self._block(blocks_text(width, lane.extent), lane, width)
            self.passes.close(opened)
            return
        self._columns(others, lane, width)

    def _rows_of_any_length(self, others: tuple[Axis, ...], lane: Axis, width: int) -> None:
        is_pointwise = not any(p.axes for p in self.kernel.passes)
        is_tested = is_pointwise or self.lanes.is_one_step
        opened = self._rows_of_blocks(others, lane, [(lane, width)] if is_tested else ())
        self._block(self._steps_of(lane, width), lane, width)
        self.passes.close(opened)

    def _steps_of(self, lane: Axis, width: int) -> str:
        """Return the beginning of a loop over all blocks of lanes."""
        (span,) = spans_of((), lane, width, self.passes.trip_tests.get((lane, width)))
        return (
            blocks_text(width, lane.extent) if span.trip_test is None else tested_blocks_text(span)
        )

    def _is_tall(self, others: Sequence[Axis], lane: Axis) -> bool:
        """Return whether the nest is one pass of sums over many rows of few columns, then
        pointwise.
        """
        first, *rest = self.kernel.passes
        columns = min(16 * max(self.target.lanes, 4) * self.target.threads, PARTIAL_SUMS // 64)
        sums = bool(first.reductions) and all(
            r.op in LANES and r.dtype != torch.bool for r in first.reductions
        )
        simple = not first.stores and not first.saved and not any(p.axes for p in rest)
        tall = bool(first.axes) and first.axes[0].extent >= 2048
        few = not others and lane.extent < columns
        return few and sums and simple and tall and self._parallel(lane.extent)

    def _rows_of_blocks(
        self, others: tuple[Axis, ...], lane: Axis, tested: Sequence[tuple[Axis | None, int]] = ()
    ) -> int:
        """Open a loop over rows of whole lanes; a row's work includes the lane axis. `tested`:
        lanes whose trip count is tested around the rows.
        """
        length = hint_of(lane.extent)
        rows, work = extent_product(others), self._work() * length // self._speed()
        if not self._parallel(rows * length):
            opened = self.passes.open_trip_test(tested)
            self.passes.serial(others)
            return opened + len(others)
        work_of_row = self._exact_work() * lane.extent
        pieces = self._pieces(points(others), work_of_row, self._grain(work, rows))
        return self._flat_rows(others, pieces, tested)

    def _flat_rows(
        self, axes: tuple[Axis, ...], pieces: str, tested: Sequence[tuple[Axis | None, int]] = ()
    ) -> int:
        """Open a loop over rows, in parallel; return the number of scopes opened."""
        self._open_range(pieces)
        # The test is inside a thread's range: around the parallel loop, its code would be there
        # twice.
        opened = 2 + self.passes.open_trip_test(tested)
        if len(axes) == 1:
            name = axes[0].name
            self.body.open(f"for (int64_t {name} = begin; {name} < end; ++{name}) {{", axes)
        else:
            self._counted_rows(axes)
        return opened

    def _block(self, call: str, lane: Axis, width: int) -> None:
        """Write a loop over blocks of lanes with all passes inside."""
        body = self.body
        body.set_lanes(lane, width)
        header = f"{call}[&](int64_t {lane.name}, auto n) JM_BODY {{"
        body.open(header, (lane,), footer="});")
        self.passes.write(self.kernel.passes)
        body.close()
        body.set_lanes(None, 1)

    def _blocks_in_parallel(self, lane: Axis, width: int) -> None:
        if self.lanes.is_one_step:  # one step: nothing to parallelise
            opened = self.passes.open_trip_test([(lane, width)])
            self._block(self._steps_of(lane, width), lane, width)
            self.passes.close(opened)
            return
        if not self._parallel(hint_of(lane.extent)):
            self._block(blocks_text(width, lane.extent), lane, width)
            return
        grain = self._grain(
            self._work() * width // self._speed(), -(-hint_of(lane.extent) // width)
        )
        pieces = self._pieces(-(-lane.extent // width), self._exact_work() * width, grain)
        self._open_range(pieces)
        start, end, loop = f"begin * {width}", f"end * {width}", "whole_blocks"
        if isinstance(lane.extent, Size) or lane.extent % width:
            end, loop = f"jm::least_of({end}, {count_text(lane.extent)})", "blocks"
        self._block(f"jm::{loop}<{width}>({start}, {end}, ", lane, width)
        self.body.close()

    def _columns(self, others: tuple[Axis, ...], lane: Axis, width: int) -> None:
        """Parallelise over blocks of lanes as well as rows, where the rows are too few."""
        blocks = -(-lane.extent // width)
        per_thread = -(-blocks * extent_product(others) // (4 * self.target.threads))
        step = width * max(1, min(per_thread, blocks))
        strip = Axis(f"{lane.name}_strip", -(-lane.extent // step))
        opened = self._flat_rows((*others, strip), f"{extent_product(others) * strip.extent}, 1")
        end = f"jm::least_of({lane.extent}, {strip.name} * {step} + {step})"
        loop = "blocks" if lane.extent % width else "whole_blocks"
        self._block(f"jm::{loop}<{width}>({strip.name} * {step}, {end}, ", lane, width)
        self.passes.close(opened)

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

    def _tiles(self, others: tuple[Axis, ...], tiled: Axis, lane: Axis, width: int) -> None:
        """Write square tiles, lanes by lanes: loads along the rows are transposed in registers."""
        # A block of lanes takes up to STRIP tiles, which are neighbours in memory.
        tile = Axis(f"{tiled.name}_tile", -(-tiled.extent // width))
        tiles = extent_product(tile if axis == tiled else axis for axis in others)
        some = max(1, min(STRIP, tiles // (4 * max(self.target.threads, 1))))
        strip = Axis(f"{tiled.name}_strip", -(-tile.extent // some))
        rest = tuple(strip if axis == tiled else axis for axis in others)
        rows = extent_product(rest)
        if self._parallel(extent_product(self.kernel.outer)):
            work = self._exact_work() * lane.extent * (width * some)
            grain = max(1, rows // (8 * self.target.threads))
            opened = self._flat_rows(rest, self._pieces(points(rest), work, grain))
        else:
            self.passes.serial(rest)
            opened = len(rest)
        body, name = self.body, tiled.name
        body.set_lanes(lane, width)
        varying = isinstance(tiled.extent, Size) or isinstance(lane.extent, Size)
        if varying:
            header = f"jm::steps<{width}>({count_text(lane.extent)}, "
            header += f"[&](int64_t {lane.name}, int64_t some) JM_BODY {{"
        else:
            header = f"{blocks_text(width, lane.extent)}[&](int64_t {lane.name}, auto n) JM_BODY {{"
        body.open(header, (lane,), footer="});")
        start, end = f"{strip.name} * {some}", f"{tile.name}_end"
        stop = f"jm::least_of({count_text(tile.extent)}, {start} + {some})"
        loop = f"int64_t {tile.name} = {start}, {end} = {stop}; {tile.name} < {end}; ++{tile.name}"
        body.open(f"for ({loop}) {{", (tile,))
        # Otherwise g++ keeps a pointer for each row of a tile in memory and increments them all
        # (transpose of 64 by 64: 1.70 of the static kernel's time, now 1.03).
        position = f"jm::opaque({tile.name} * {width})" if varying else f"{tile.name} * {width}"
        body.line(f"const int64_t first = {position};")
        left = f"{count_text(tiled.extent)} - first"
        body.line(f"const int64_t rows = jm::least_of({left}, {width});")
        start_of = mul(AxisVar(tile), width)
        turned = self._load_tiles(tiled, start_of, lane, width, "some" if varying else "n")
        if varying:  # for static extents the compiler knows which tiles are whole
            lanes = f"{CTYPES[next(iter(turned)).dtype]}, {width}"
            body.open(f"jm::tile_of<{lanes}>(some, [&](auto n) JM_BODY {{", footer="});")
        # clang does not unroll the other loop, as g++ 12 does, and then keeps the tile in memory
        # (transpose of 500 by 300: 1.3 of g++'s time, now 1.0).
        if varying or is_clang(self.target.cxx):
            rows_loop = f"jm::tile_rows<{width}>(first, rows, [&](int64_t {name}) JM_BODY {{"
            body.open(rows_loop, (tiled,), footer="});")
        else:
            body.open(f"for (int64_t {name} = first; {name} < first + rows; ++{name}) {{", (tiled,))
        for node, tile_name in turned.items():
            body.define(node, f"{tile_name}[{name} - first]", vector=True)
        self.passes.write(self.kernel.passes)
        self.passes.close(4 if varying else 3)
        body.set_lanes(None, 1)
        self.passes.close(opened)

    def _load_tiles(
        self, tiled: Axis, start: Expr, lane: Axis, width: int, lanes: str
    ) -> dict[Load, str]:
        """Load one transposed tile per load along the rows; `lanes`: text of the valid lane
        count.
        """
        body, names = self.body, {}
        for node, step in self._transposed_loads(tiled, lane):
            names[node] = body.name("tile")
            at = body.scalar_position(substitute(node.index[0], {tiled: start}))
            body.line(f"{body.vector_type(node.dtype)} {names[node]}[{width}];")
            pointer = f"{self.names[node.buffer]} + {at}"
            distance = step_text(step)
            body.line(f"jm::load_tile({names[node]}, {pointer}, {distance}, rows, {lanes});")
        return names


def _digits(axes: Sequence[Axis], flat: str) -> list[str]:
    """Return definitions of the coordinates of a flat position."""
    found = []
    for number, axis in enumerate(axes):
        below = points(axes[number + 1 :])
        text = flat if is_same(below, 1) else f"{flat} / {closed(count_text(below))}"
        if number:
            text = f"{text} % {closed(count_text(axis.extent))}"
        found.append(f"{axis.name} = {text}")
    return found
