"""One kernel: the loops around the values of cpp_values.py.

In: a Structure, its lanes, the target. Out: the lines of one C++ function. Three shapes of loop:
  - outer lanes:  rows x blocks of an outer axis; everything inside is a vector (pointwise, column sums)
  - row lanes:    a loop over rows, in which every pass runs along its own axis (softmax, layer norm)
  - split rows:   too few rows for the threads: every pass is cut into parts of fixed size that run in
                  parallel; parts are combined in order, so the result does not depend on the threads
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..loops.expr import Axis, AxisVar, Expr, Integer, add, mul
from ..loops.ir import Buffer, Load, Reduction, Store, Value, walk
from ..schedule.score import PARALLEL_WORK, body_cost, extent_product
from ..target import Target
from .cpp_product import product_in, write_product
from .cpp_reduce import Accumulator
from .cpp_text import CTYPES, comment_line
from .cpp_values import Body
from .lanes import Lanes, lane_step
from .structure import Pass, Structure, passes_in

__all__ = ["KernelWriter"]

GRAIN = 30_000  # work of one piece handed to a thread
ROW_BYTES = 128 << 10  # scratch rows live on the stack of the thread
PART = 1 << 14  # elements of one part of a split pass
MOST_PARTS = 1024
TILE = 16  # rows of a tile when memory is read along one axis and written along another


@dataclass(slots=True)
class KernelWriter:
    """Writes one function; `body` holds the scopes."""

    one: Structure
    lanes: Lanes
    target: Target
    buffers: Mapping[str, Buffer]
    names: Mapping[str, str]
    body: Body

    def function(self) -> list[str]:
        """The whole function."""
        body = self.body
        body.open(f'extern "C" int {self.one.name}(void* const* args) {{')
        for number, buffer in enumerate(self.one.arguments):
            const = "" if buffer in self.one.written else "const "
            kind = f"{const}{CTYPES[self.buffers[buffer].dtype]}*"
            body.line(f"{kind} {self.names[buffer]} = ({kind})args[{number}];")
        checks = self._checks_indexes()
        if checks:
            body.line("int bad = 0;  // set by a run-time index that is out of range")
        self._loops()
        body.line("return bad;" if checks else "return 0;")
        body.close()
        return [*comment_line(self.one.origins), *body.scopes[0].lines]

    def _checks_indexes(self) -> bool:
        loads = (node for node in self.one.free if isinstance(node, Load))
        stores = (store for p in self.one.passes for store in p.stores)
        texts = (repr(part) for access in (*loads, *stores) for part in access.index)
        return any("ValueIndex(" in text for text in texts)

    # -- the outer loops -----------------------------------------------------------------------------

    def _loops(self) -> None:
        product = product_in(self.one)
        if product is not None:
            write_product(self.one, product, self.body, self.names)
            return
        if self.lanes.outer is not None:
            self._outer_lanes(self.lanes.outer, self.lanes.width)
            return
        rows = extent_product(self.one.outer)
        if self._parallel(rows) and rows < 2 * self.target.threads and self._splittable():
            self._serial(self.one.outer)
            self._passes(self.one.passes, split=True)
            self._close(len(self.one.outer))
            return
        opened = self._rows(self.one.outer)
        self._passes(self.one.passes)
        self._close(opened)

    def _splittable(self) -> bool:
        """Every big pass runs along lanes, and nothing is added to shared memory."""
        adds = any(store.mode == "add" for p in self.one.passes for store in p.stores)
        return not adds and any(axis is not None for axis, _ in self.lanes.passes)

    def _work(self) -> int:
        """Cost of one outer point."""
        total = 0
        for one in self.one.passes:
            nodes = [node for node in walk(one.roots) if not isinstance(node, Reduction)]
            total += extent_product(one.axes) * (body_cost(nodes) + len(one.stores))
        return max(total, 1)

    def _parallel(self, points: int) -> bool:
        adds = any(store.mode == "add" for p in self.one.passes for store in p.stores)
        work = points * self._work()
        return not adds and self.target.threads > 1 and work // self._speed() > PARALLEL_WORK // 4

    def _speed(self) -> int:
        """How many units of work one step of a vector loop does."""
        widths = [width for _, width in self.lanes.passes]
        return min(max([self.lanes.width, *widths]), self.target.lanes or 1) or 1

    def _serial(self, axes: Sequence[Axis]) -> None:
        for axis in axes:
            name = axis.name
            header = f"for (int64_t {name} = 0; {name} < {axis.extent}; ++{name}) {{"
            self.body.open(header, (axis,))

    def _close(self, count: int) -> None:
        for _ in range(count):
            self.body.close()

    def _rows(self, axes: tuple[Axis, ...]) -> int:
        """Open a loop over all points of `axes`, in parallel when that pays; how many scopes."""
        rows = extent_product(axes)
        if not axes or not self._parallel(rows):
            self._serial(axes)
            return len(axes)
        work = max(self._work() // self._speed(), 1)
        grain = max(1, min(GRAIN // work, -(-rows // self.target.threads)))
        body = self.body
        body.open(
            f"jm::parallel_for({rows}, {grain}, [&](int64_t begin, int64_t end) {{", footer="});"
        )
        name = axes[0].name if len(axes) == 1 else "row"
        bound = axes if len(axes) == 1 else ()
        body.open(f"for (int64_t {name} = begin; {name} < end; ++{name}) {{", bound)
        if len(axes) == 1:
            return 2
        self._digits(axes, "row")
        return 2

    def _digits(self, axes: Sequence[Axis], flat: str) -> None:
        """Coordinates from a flat position; the current scope then knows the axes."""
        below = extent_product(axes)
        for number, axis in enumerate(axes):
            below //= axis.extent
            text = flat if below == 1 else f"{flat} / {below}"
            if number:
                text = f"{text} % {axis.extent}"
            self.body.line(f"const int64_t {axis.name} = {text};")
        scope = self.body.scopes[-1]
        scope.bound = scope.bound | frozenset(axes)

    # -- outer lanes ---------------------------------------------------------------------------------

    def _outer_lanes(self, lane: Axis, width: int) -> None:
        others = tuple(axis for axis in self.one.outer if axis != lane)
        tiled = self._tiled_axis(others, lane)
        if not others:
            self._blocks_in_parallel(lane, width)
            return
        if tiled is not None:
            self._tiles(others, tiled, lane, width)
            return
        if extent_product(others) >= 4 * self.target.threads or not self._parallel(
            extent_product(self.one.outer)
        ):
            opened = self._rows_of_blocks(others, lane)
            self._block(f"jm::blocks<{width}>(0, {lane.extent}", lane, width)
            self._close(opened)
            return
        self._columns(others, lane, width)

    def _rows_of_blocks(self, others: tuple[Axis, ...], lane: Axis) -> int:
        """Rows of whole lanes: the work of a row counts the lane axis too."""
        rows, work = extent_product(others), self._work() * lane.extent // self._speed()
        if not self._parallel(rows * lane.extent):
            self._serial(others)
            return len(others)
        grain = max(1, min(GRAIN // max(work, 1), -(-rows // self.target.threads)))
        return self._flat_rows(others, rows, grain)

    def _flat_rows(self, axes: tuple[Axis, ...], rows: int, grain: int) -> int:
        header = f"jm::parallel_for({rows}, {grain}, [&](int64_t begin, int64_t end) {{"
        self.body.open(header, footer="});")
        if len(axes) == 1:
            name = axes[0].name
            self.body.open(f"for (int64_t {name} = begin; {name} < end; ++{name}) {{", axes)
        else:
            self.body.open("for (int64_t row = begin; row < end; ++row) {")
            self._digits(axes, "row")
        return 2

    def _block(self, call: str, lane: Axis, width: int) -> None:
        """A loop over blocks of lanes with all passes inside."""
        body = self.body
        body.set_lanes(lane, width)
        header = f"{call}, [&](int64_t {lane.name}, auto n) JM_BODY {{"
        body.open(header, (lane,), footer="});")
        self._passes(self.one.passes)
        body.close()
        body.set_lanes(None, 1)

    def _blocks_in_parallel(self, lane: Axis, width: int) -> None:
        if not self._parallel(lane.extent):
            self._block(f"jm::blocks<{width}>(0, {lane.extent}", lane, width)
            return
        blocks = -(-lane.extent // width)
        work = max(self._work() * width // self._speed(), 1)
        grain = max(1, min(GRAIN // work, -(-blocks // self.target.threads)))
        header = f"jm::parallel_for({blocks}, {grain}, [&](int64_t begin, int64_t end) {{"
        self.body.open(header, footer="});")
        end = f"end * {width}"
        if lane.extent % width:
            end = f"jm::least_of({end}, {lane.extent})"
        self._block(f"jm::blocks<{width}>(begin * {width}, {end}", lane, width)
        self.body.close()

    def _columns(self, others: tuple[Axis, ...], lane: Axis, width: int) -> None:
        """Few rows: blocks of lanes are handed out beside the rows."""
        blocks = -(-lane.extent // width)
        per_thread = -(-blocks * extent_product(others) // (4 * self.target.threads))
        step = width * max(1, min(per_thread, blocks))
        strip = Axis(f"{lane.name}_strip", -(-lane.extent // step))
        opened = self._flat_rows((*others, strip), extent_product(others) * strip.extent, 1)
        end = f"jm::least_of({lane.extent}, {strip.name} * {step} + {step})"
        self._block(f"jm::blocks<{width}>({strip.name} * {step}, {end}", lane, width)
        self._close(opened)

    def _tiled_axis(self, others: Sequence[Axis], lane: Axis) -> Axis | None:
        """The axis along which loads are contiguous that are far apart along the lanes."""
        if any(p.axes for p in self.one.passes):
            return None
        for node in self.one.free:
            if isinstance(node, Load) and lane_step(node.index[0], lane, self.one) not in (0, 1):
                for axis in others:
                    if axis.extent >= TILE and lane_step(node.index[0], axis, self.one) == 1:
                        return axis
        return None

    def _tiles(self, others: tuple[Axis, ...], tiled: Axis, lane: Axis, width: int) -> None:
        """Tiles of TILE rows: what a block of lanes reads far apart stays in L1 for the next rows."""
        tile = Axis(f"{tiled.name}_tile", -(-tiled.extent // TILE))
        rest = tuple(tile if axis == tiled else axis for axis in others)
        rows = extent_product(rest)
        if self._parallel(extent_product(self.one.outer)):
            opened = self._flat_rows(rest, rows, max(1, rows // (8 * self.target.threads)))
        else:
            self._serial(rest)
            opened = len(rest)
        body, name = self.body, tiled.name
        body.set_lanes(lane, width)
        header = f"jm::blocks<{width}>(0, {lane.extent}, [&](int64_t {lane.name}, auto n) JM_BODY {{"
        body.open(header, (lane,), footer="});")
        end = f"jm::least_of({tiled.extent}, {tile.name} * {TILE} + {TILE})"
        start = f"int64_t {name} = {tile.name} * {TILE}"
        body.open(f"for ({start}; {name} < {end}; ++{name}) {{", (tiled,))
        self._passes(self.one.passes)
        self._close(2)
        body.set_lanes(None, 1)
        self._close(opened)

    # -- passes --------------------------------------------------------------------------------------

    def _passes(self, passes: Sequence[Pass], split: bool = False) -> None:
        rows = self._scratch_rows(passes)
        for number, one in enumerate(passes):
            if not one.axes:
                self._point(one, {})
                continue
            axis, width = self.lanes.passes[number] if self.body.lane is None else (None, 1)
            if split and axis is not None and extent_product(one.axes) > 2 * PART:
                self._split_pass(one, axis, width, rows)
            else:
                self._pass(one, axis, width, rows)

    def _scratch_rows(self, passes: Sequence[Pass]) -> dict[Value, tuple[str, tuple[Axis, ...]]]:
        """Memory for values that later passes use again."""
        rows: dict[Value, tuple[str, tuple[Axis, ...]]] = {}
        for one in passes:
            for value in one.keep:
                lanes = self.body.width if self.body.is_vector(value) else 1
                size = extent_product(one.axes) * lanes
                if size * value.dtype.itemsize <= ROW_BYTES:
                    name = self.body.name("row")
                    self.body.line(f"alignas(64) {CTYPES[value.dtype]} {name}[{size}];")
                    rows[value] = (name, one.axes)
        return rows

    def _pass(
        self,
        one: Pass,
        lane: Axis | None,
        width: int,
        rows: Mapping[Value, tuple[str, tuple[Axis, ...]]],
    ) -> None:
        """One loop nest over the pass's axes, the lane axis innermost."""
        body = self.body
        accumulators = [self._accumulator(node, lane, width) for node in one.reductions]
        for accumulator in accumulators:
            body.line(accumulator.declare())
        loops = [axis for axis in one.axes if axis != lane]
        self._serial(loops)
        if lane is not None:
            self._inner_lanes(one, lane, width, f"0, {lane.extent}", rows, accumulators)
        else:
            self._point(one, rows, accumulators)
        self._close(len(loops))
        self._results(accumulators, lane is not None)

    def _inner_lanes(
        self,
        one: Pass,
        lane: Axis,
        width: int,
        span: str,
        rows: Mapping[Value, tuple[str, tuple[Axis, ...]]],
        accumulators: Sequence[Accumulator],
    ) -> None:
        body = self.body
        body.set_lanes(lane, width)
        header = f"jm::blocks<{width}>({span}, [&](int64_t {lane.name}, auto n) JM_BODY {{"
        body.open(header, (lane,), footer="});")
        self._point(one, rows, accumulators)
        body.close()
        body.set_lanes(None, 1)

    def _accumulator(self, node: Reduction, lane: Axis | None, width: int) -> Accumulator:
        if lane is not None:
            return Accumulator(node, self.body.name("acc"), width)
        return Accumulator(
            node, self.body.name("acc"), self.body.width if self.body.is_vector(node) else 1
        )

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
                text = accumulator.result(accumulator.name)
                body.define(accumulator.node, text, vector=accumulator.width > 1)

    def _split_pass(
        self,
        one: Pass,
        lane: Axis,
        width: int,
        rows: Mapping[Value, tuple[str, tuple[Axis, ...]]],
    ) -> None:
        """The pass in parts of fixed size, in parallel; results of the parts are combined in order."""
        body = self.body
        loops = tuple(axis for axis in one.axes if axis != lane)
        size = max(PART, -(-lane.extent // MOST_PARTS // width) * width) if not loops else 0
        parts = -(-lane.extent // size) if not loops else loops[0].extent
        accumulators = [Accumulator(r, body.name("acc"), width) for r in one.reductions]
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
        self._serial(loops[1:])
        span = f"0, {lane.extent}"
        if not loops:
            span = f"part * {size}, jm::least_of({lane.extent}, part * {size} + {size})"
        self._inner_lanes(one, lane, width, span, rows, accumulators)
        self._close(len(loops[1:]))
        for a in accumulators:
            body.line(f"{stored[a.name]}[{part}] = {a.across_lanes()};")
        self._close(2)
        self._combine(accumulators, stored, parts)

    def _combine(
        self, accumulators: Sequence[Accumulator], stored: Mapping[str, str], parts: int
    ) -> None:
        body = self.body
        for a in accumulators:
            total = Accumulator(a.node, body.name("acc"), 1)
            body.line(total.declare())
            join = total.join_part(f"{stored[a.name]}[part]")
            body.line(f"for (int64_t part = 0; part < {parts}; ++part) {join}")
            body.define(a.node, total.result(total.name), vector=False)

    # -- one point -----------------------------------------------------------------------------------

    def _point(
        self,
        one: Pass,
        rows: Mapping[Value, tuple[str, tuple[Axis, ...]]],
        accumulators: Sequence[Accumulator] = (),
    ) -> None:
        """The statements of one point: nested reductions, accumulations, then all stores."""
        body = self.body
        self._recall(one, rows)
        scope = body.scopes[-1].bound
        for nested in passes_in(scope, (), one.roots, self.one.free, ready=body.ready()):
            self._nested(nested)
        for value in one.keep:
            if value in rows:
                self._keep(value, *rows[value])
        for accumulator in accumulators:
            vector = accumulator.width > 1
            value = body.use(accumulator.node.value, as_vector=vector)
            if accumulator.dtype != accumulator.node.value.dtype:
                value = f"jm::convert<{CTYPES[accumulator.dtype]}>({value})"
            across = body.lane in accumulator.node.axes
            body.line(accumulator.update(value, self._position(accumulator), across))
        texts = [body.store(store) for store in one.stores]
        for text in texts:
            body.line(text)

    def _nested(self, one: Pass) -> None:
        """A reduction inside the point: plain loops, vectors stay vectors."""
        accumulators = [self._accumulator(node, None, 1) for node in one.reductions]
        for accumulator in accumulators:
            self.body.line(accumulator.declare())
        self._serial(one.axes)
        self._point(one, {}, accumulators)
        self._close(len(one.axes))
        self._results(accumulators, across=False)

    def _position(self, accumulator: Accumulator) -> str:
        """Row-major position of the point among the reduction's axes."""
        if not accumulator.positional:
            return ""
        position: Expr = Integer(0)
        for axis in accumulator.node.axes:
            position = add(mul(position, axis.extent), AxisVar(axis))
        body = self.body
        if body.lane in accumulator.node.axes:
            return body.lane_position(position)
        text = body.scalar_position(position)
        return f"V{body.count}<int64_t>({text})" if accumulator.width > 1 else text

    def _row_place(self, name: str, axes: tuple[Axis, ...], vector: bool) -> str:
        """Where the current point (or block) of a scratch row is."""
        place: Expr = Integer(0)
        for axis in axes:
            place = add(mul(place, axis.extent), AxisVar(axis))
        if vector and self.body.lane not in axes:
            place = mul(place, self.body.width)
        return f"{name} + {self.body.scalar_position(place)}"

    def _keep(self, value: Value, name: str, axes: tuple[Axis, ...]) -> None:
        body = self.body
        vector = body.is_vector(value)
        place = self._row_place(name, axes, vector)
        text = body.use(value)
        if not vector:
            body.line(f"*({place}) = {text};")
        else:
            count = "n" if body.lane in axes else "jm::Full{}"
            body.line(f"jm::store({place}, {text}, {count});")

    def _recall(
        self, one: Pass, rows: Mapping[Value, tuple[str, tuple[Axis, ...]]]
    ) -> None:
        """Kept values of earlier passes are loaded, not computed again."""
        body = self.body
        for value, (name, axes) in rows.items():
            if axes != one.axes or value in one.keep:
                continue
            vector = body.is_vector(value)
            place = self._row_place(name, axes, vector)
            if not vector:
                body.define(value, f"{name}[{place.removeprefix(f'{name} + ')}]", vector=False)
            else:
                count = "n" if body.lane in axes else "jm::Full{}"
                body.define(value, f"jm::load<{body.count}>({place}, {count})", vector=True)
