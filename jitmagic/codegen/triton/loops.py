"""Builds the loop form of a Triton kernel: the passes of a nest over the tile of a program.

In: a Structure, its Tile. Out: a Kernel. A whole inner extent is opened once, and all passes share
the values that are computed from it; an extent taken in steps is a loop per pass, and values are
recomputed in each. Invariant: points outside an extent are never read, stored or reduced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...lazy_dataclass import replace
from ...loops.expr import Axis, AxisVar, Integer, coefficient
from ...loops.free_axes import value_axes
from ...loops.ir import Buffer, Compute, IndexValue, Load, Reduction, Scan, Value, walk
from ...loops.ir import Store as NestStore
from ...loops.relative_sums import RelativeSum
from ...loops.values import cast, identity
from ...operators.scalar import ORDERS, REDUCTIONS
from ...schedule.products import Product
from ...schedule.score import extent_of
from ...schedule.substitution import Rebuilder, free_axes
from ...symbols.size import Dimension, Size, upper_bound
from ..kernel import (
    Accumulate,
    Barrier,
    Dot,
    Fold,
    For,
    Inside,
    Kernel,
    Key,
    Let,
    OfKey,
    Open,
    Ordered,
    Prefix,
    Program,
    Result,
    Start,
    Statement,
    Store,
    TileBlock,
    Total,
    Var,
    WholeBlock,
)
from ..loop_form import Accumulated, Body, LoopBuilder, params_of, position_in
from ..loop_structure import Pass, Structure, picks_of, scans_of
from ..products.tensor_cores import dot_operands
from .aligned_rows import WIDEST
from .ops import WIDE
from .relative_sums import related_sum, with_relative_sums
from .tile import Tile

__all__ = ["tile_kernel"]

# Additions per lane above which a float sum is compensated (TwoSum): six operations instead of one,
# in a loop that is limited by memory. Eager's threads add about ten values each.
LONG = 32


def tile_kernel(
    kernel: Structure, tile: Tile, buffers: Mapping[str, Buffer], product: Product | None = None
) -> Kernel:
    """Return the kernel of a nest. `product`: tensor cores compute its sum."""
    loops = _TileLoops(kernel, tile, product, _needs_fence(kernel, buffers))
    body = loops.groups() if kernel.summed else loops.rows()
    if tile.outer and tile.outer[-1].row is not None:
        body = (WholeBlock(tile.outer[-1], body),)
    body = (Program(tile.outer), *body)
    return Kernel(kernel.name, params_of(kernel, buffers), kernel.symbols, body, kernel.origins)


class _TileLoops(LoopBuilder):
    def __init__(self, kernel: Structure, tile: Tile, product: Product | None, fence: bool) -> None:
        super().__init__(kernel)
        self.tile, self.product, self.fence = tile, product, fence
        self._opened: set[TileBlock] = set()
        self._scanned: set[Scan] = set()  # in blocks that hold the whole extent
        self._rows: dict[Reduction, TileBlock] = {}  # the blocks of rows that are put in order
        self._orders: dict[tuple[Reduction, TileBlock], Var] = {}
        self._relative: dict[Reduction, RelativeSum] = {}  # sums in the loop of their maximum
        self._sums: dict[NestStore, Total] = {}  # over rows of a group

    def rows(self) -> Body:
        return self.passes(self.kernel.passes, frozenset(self.kernel.outer))

    def groups(self) -> Body:
        """Compute the rows of a group one after the other, and sum over them."""
        blocks = tuple(self.tile.inner.values())
        self._opened.update(blocks)
        axes = self.kernel.summed
        row = TileBlock(self.new_name("k"), axes, extent_of(axes), 1)
        at = _loop_of(row)
        loop = For((at,), (Open(row, AxisVar(at)), *self.rows()), stages=self.tile.stages)
        across = tuple(axis for axis in self.kernel.outer if axis not in axes)
        stores = (
            Store(each.buffer, each.index[0], Result(total, each.value.dtype),
                  (*across, *each.inner))
            for each, total in self._sums.items()
        )  # fmt: skip
        return (*map(Open, blocks), *map(Start, self._sums.values()), loop, *stores)

    def passes(
        self,
        passes: Sequence[Pass],
        bound: frozenset[Axis],
        ready: frozenset[Value] = frozenset(),
    ) -> Body:
        if bound == frozenset(self.kernel.outer):
            passes, self._relative = with_relative_sums(passes, self.tile.inner)
        return super().passes(passes, bound, ready)

    def pass_(self, pass_: Pass, bound: frozenset[Axis], ready: frozenset[Value]) -> Body:
        if not pass_.axes:
            return self.point(pass_, bound, ready, {})
        block = self.tile.inner.get(pass_.axes)
        if block is None or bound != frozenset(self.kernel.outer):  # inside a point of a pass
            return self._nested(pass_, bound, ready)
        if self.product is not None:
            return self._multiplied(self.product, block)
        inside = bound | frozenset(pass_.axes)
        if block.single:
            return self._whole(pass_, block, inside, ready)
        return self._looped(pass_, block, inside, ready)

    # -- passes over a tile ------------------------------------------------------------------------

    def _whole(
        self, pass_: Pass, block: TileBlock, bound: frozenset[Axis], ready: frozenset[Value]
    ) -> Body:
        """Reduce a tile that holds the whole extent."""
        opened = () if block in self._opened else (Open(block),)
        self._opened.add(block)
        body = self.point(pass_, bound, ready, {})
        scans = [node for node in scans_of(pass_) if node not in self._scanned]
        self._scanned.update(scans)
        nested = (
            *(each for each in body if not _is_store(each)),
            *self._picks(pass_, block),
            *(Let(node, self._prefix(node, block)) for node in scans),
        )
        keys = (each for node in pass_.reductions for each in self._keys(node, block))
        folds = (
            Let(node, Fold(node.op, self._entering(node, block), block, node.dtype))
            for node in pass_.reductions
            if node.op not in ORDERS
        )
        return (*opened, *nested, *keys, *folds, *(each for each in body if _is_store(each)))

    def _looped(
        self, pass_: Pass, block: TileBlock, bound: frozenset[Axis], ready: frozenset[Value]
    ) -> Body:
        """Reduce in steps: each lane accumulates, and the lanes are combined after the loop."""
        sums = {node: self._relative[node] for node in pass_.reductions if node in self._relative}
        beside = {found.beside for found in sums.values()}
        pass_ = replace(pass_, reductions=tuple(n for n in pass_.reductions if n not in sums))
        totals: dict[Accumulated, Total] = {
            node: self._lanes(node, block, node in beside) for node in pass_.reductions
        }
        start = _loop_of(block)
        point = self._entered(self.point(pass_, bound, ready, totals), totals, block)
        point = tuple(_counted(each, block) for each in point)
        carries = {node: self._carry(node, block) for node in scans_of(pass_)}
        scans = (each for node in carries for each in self._scan_step(node, carries[node], block))
        folds = (
            Let(node, Fold(node.op, Result(total, total.var.dtype), block, node.dtype))
            for node, total in totals.items()
        )
        loops = self._steps(block, start, (*scans, *point))
        relative = (
            Let(node, related_sum(node, found, totals[found.beside], block))
            for node, found in sums.items()
        )
        started = (*carries.values(), *totals.values())
        return (*map(Start, started), *loops, *folds, *relative)

    def _steps(self, block: TileBlock, start: Axis, body: Body) -> Body:
        """Return loops over the steps of an extent; those of an aligned block that may run past
        the ends of the row come last, with masks.
        """
        size, extent = block.size, block.extent
        if block.row is None or isinstance(extent, Size):
            inside = (Open(block, AxisVar(start)), *body)
            return (For((start,), inside, step=size, stages=self.tile.stages),)
        last = extent // size * size  # the first place at which a step can be past the end
        if last + size < block.reach:  # or two steps can
            inside = (Open(block, AxisVar(start)), WholeBlock(block, body))
            return (For((start,), inside, step=size, stages=self.tile.stages),)
        inside = (Open(block, AxisVar(start), is_whole=True), *body)
        whole = For((start,), inside, start=Integer(size), stop=Integer(last), step=size,
                    stages=self.tile.stages)  # fmt: skip
        ends = For((start,), (Open(block, AxisVar(start)), *body), step=last)
        return (whole, ends)

    def _multiplied(self, product: Product, block: TileBlock) -> Body:
        """Sum the products of two operands in steps, by tensor cores."""
        rows, across = self.tile.outer
        (columns,) = self.tile.down
        var = Var(self.new_name("acc"), torch.float32)
        axes = (*rows.axes, *across.axes)
        total = Total("sum", block.axes, var.dtype, var, method="dot", tile=axes)
        start = _loop_of(block)
        a, b = dot_operands(product)
        b = Rebuilder({product.n: AxisVar(columns.axes[0])}).value(b)
        if block.ragged:  # a scale that is not finite makes NaN of the zeros beyond the end
            b = Inside(b, block, 0, b.dtype)
        dot = Dot(total, a, b, (rows, block), (block, columns), across)
        body = (Open(block, AxisVar(start)), dot)
        loop = For((start,), body, step=block.size, stages=self.tile.stages)
        opened = Open(columns, beside=across)
        return (opened, Start(total), loop, Let(product.total, Result(total, var.dtype)))

    def _nested(self, pass_: Pass, bound: frozenset[Axis], ready: frozenset[Value]) -> Body:
        """Compute reductions inside a point by a loop over the points of their axes."""
        made: list[Statement] = []
        for node in pass_.reductions:
            # The axes get new names: elsewhere they may be blocks of the tile.
            axes = tuple(Axis(self.new_name("k"), axis.extent) for axis in node.axes)
            bind = {old: AxisVar(new) for old, new in zip(node.axes, axes, strict=True)}
            point = Reduction(node.op, axes, Rebuilder(bind).value(node.value), node.dtype)
            self.free |= value_axes(walk((point,)))
            total = self._lanes(point, None)
            flat = axes[0].name if len(axes) == 1 else self.new_name("k")
            block = TileBlock(flat, axes, extent_of(axes), 1)
            start = _loop_of(block)
            inside = Pass(axes, (point,))
            totals: dict[Accumulated, Total] = {point: total}
            body = self.point(inside, bound | frozenset(axes), ready, totals)
            body = self._entered(body, totals, None)
            made += [Start(total), For((start,), (Open(block, AxisVar(start)), *body))]
            made.append(Let(node, Result(total, node.dtype)))
        return tuple(made)

    def point(
        self,
        pass_: Pass,
        bound: frozenset[Axis],
        ready: frozenset[Value],
        totals: Mapping[Accumulated, Total],
    ) -> Body:
        sums = [store for store in pass_.stores if store.mode == "total"]
        others = tuple(store for store in pass_.stores if store.mode != "total")
        made = super().point(replace(pass_, stores=others), bound, ready, totals)
        made = (*made, *map(self._add_row, sums))
        axes = (*self.kernel.outer, *pass_.axes)
        stores = [replace(each, axes=axes) for each in made if isinstance(each, Store)]
        fence = (Barrier(),) if self.fence and stores else ()
        return (*(each for each in made if not isinstance(each, Store)), *fence, *stores)

    def _add_row(self, store: NestStore) -> Accumulate:
        """Add the values of a row to the sums over the rows of a group."""
        name, dtype = self.new_name("acc"), store.value.dtype
        total = Total("sum", self.kernel.summed, dtype, Var(name, dtype), tile=store.inner)
        self._sums[store] = total
        return Accumulate(total, store.value)

    def _entered(
        self, body: Body, totals: Mapping[Accumulated, Total], block: TileBlock | None
    ) -> Body:
        """Accumulate values in the accumulators' dtype, and only points inside the extent."""
        nodes = {total.var: node for node, total in totals.items()}
        return tuple(
            replace(each, value=self._entering(nodes[each.total.var], block))
            if isinstance(each, Accumulate) and each.total.var in nodes
            else each
            for each in body
        )

    # -- rows in order -----------------------------------------------------------------------------

    def _keys(self, node: Reduction, block: TileBlock) -> Body:
        """Return the statements that compute the keys of a row; () for other reductions."""
        if node.op not in ORDERS:
            return ()
        self._rows[node] = block
        key: Value = Key(node.value, IndexValue(position_in(block.axes)), node.op)
        if block.ragged:
            key = Inside(key, block, torch.iinfo(key.dtype).min, key.dtype)
        keys = Var(self.new_name("v_keys"), key.dtype)
        return Let(keys, key), Let(node, keys)

    def _picks(self, pass_: Pass, block: TileBlock) -> Body:
        """Return the statements that put rows in order whose elements a pass reads."""
        made: list[Statement] = []
        for node in picks_of(pass_):
            if (node.row, block) not in self._orders:
                keys = self._orders[node.row, block] = Var(self.new_name("v_order"), torch.int64)
                made.append(Let(keys, Ordered(node.row, self._rows[node.row], block)))
            picked = Var(self.new_name("v_pick"), node.dtype)
            key = self._orders[node.row, block]
            made += [Let(picked, OfKey(key, node.row.op, node.part, node.dtype)), Let(node, picked)]
        return tuple(made)

    # -- scans -------------------------------------------------------------------------------------

    def _prefix(self, node: Scan, block: TileBlock) -> Prefix:
        return Prefix(node.op, self._entering(node, block), block, node.dtype)

    def _carry(self, node: Scan, block: TileBlock) -> Total:
        """Return the accumulator of the blocks before, for each row."""
        axes = free_axes(node.value) - frozenset(block.axes)
        tile = tuple(axis for each in self.tile.outer for axis in each.axes if axis in axes)
        var = Var(self.new_name("acc"), node.dtype)
        return Total(node.op, block.axes, node.dtype, var, tile=tile, method="scan")

    def _scan_step(self, node: Scan, carry: Total, block: TileBlock) -> Body:
        """Return the statements that scan a block and carry its end to the next one."""
        inside, scanned, end = (Var(self.new_name("v_scan"), node.dtype) for _ in range(3))
        before = Result(carry, node.dtype)
        joined = Compute(REDUCTIONS[node.op], (before, inside), node.dtype)
        return (
            Let(inside, self._prefix(node, block)),
            Let(scanned, joined),
            Let(node, scanned),
            Let(end, Fold(node.op, self._entering(node, block), block, node.dtype)),
            Accumulate(carry, end),
        )

    # -- reductions --------------------------------------------------------------------------------

    def _entering(self, node: Accumulated, block: TileBlock | None) -> Value:
        """Return the value to reduce in the accumulator's dtype; points outside the extent are the
        identity.
        """
        held = _accumulator_dtype(node)
        value = cast(node.value, held)
        if block is None or not block.ragged:
            return value
        return Inside(value, block, identity(node.op, held), held)

    def _lanes(self, node: Reduction, block: TileBlock | None, is_beside: bool = False) -> Total:
        """Return accumulators: one for each point of a block, or for each value that varies.
        `is_beside`: with a sum relative to it.
        """
        name, dtype = self.new_name("acc"), _accumulator_dtype(node)
        axes = free_axes(node) if block is None else free_axes(node.value) | frozenset(block.axes)
        at = lost = None
        relative = Var(f"{name}_relative", dtype) if is_beside else None
        number = Var(f"{name}_count", dtype) if is_beside and node.op == "sum" else None
        group = self._group_of(node, block) if is_beside and node.op == "max" else 1
        steps: Dimension = extent_of(node.axes) if block is None else block.count
        if node.op in ("argmax", "argmin"):
            at = Var(f"{name}_at", torch.int64 if self.tile.wide else torch.int32)
        elif node.op == "sum" and dtype.is_floating_point and upper_bound(steps) > LONG:
            lost = Var(f"{name}_lost", dtype)
        order = [axis for b in (*self.tile.outer, *self.tile.inner.values()) for axis in b.axes]
        tile = tuple(axis for axis in order if axis in axes)
        return Total(
            node.op, node.axes, dtype, Var(name, dtype), at, lost,
            tile=tile, relative=relative, count=number, group=group,
        )  # fmt: skip

    def _group_of(self, node: Reduction, block: TileBlock | None) -> int:
        """Return how many neighbouring values of a row one thread loads at once. They share the
        factor for the maximum before: 153 instructions for 16 values of bfloat16, not 266.
        """
        if block is None or self.tile.rank > 1:
            return 1
        along = [
            each.dtype.itemsize
            for each in walk((node.value,))
            if isinstance(each, Load) and coefficient(each.index[0], block.axes[-1]) == 1
        ]
        return min(WIDEST // min(along, default=WIDEST), block.size)


def _counted(each: Statement, block: TileBlock) -> Statement:
    """Return the statement without values outside of the block, if it counts values."""
    if not isinstance(each, Accumulate) or each.total.count is None:
        return each
    if not isinstance(each.value, Inside):
        return each
    return replace(each, value=each.value.value, block=block)


def _is_store(each: Statement) -> bool:
    return isinstance(each, (Store, Barrier))


def _loop_of(block: TileBlock) -> Axis:
    """Return the variable of a loop over the blocks of an extent."""
    extent: Any = block.reach  # a Size acts as an int
    return Axis(f"{block.name}_at", extent)


def _accumulator_dtype(node: Accumulated) -> torch.dtype:
    """Return the dtype in which a reduction accumulates."""
    return WIDE.get(node.value.dtype, node.value.dtype)


def _needs_fence(kernel: Structure, buffers: Mapping[str, Buffer]) -> bool:
    """Return whether a thread could overwrite an element before another thread has read it.

    It can if the nest reads its own outputs, or if a pointwise result reuses the memory of an
    operand of the same layout (schedule/memory.py), unless all accesses have one width and so one
    thread layout.
    """
    read = {node.buffer for node in kernel.free if isinstance(node, Load)}
    if read & kernel.written:
        return True
    if len({buffers[name].dtype.itemsize for name in kernel.arguments}) == 1:
        return False
    dying = [buffers[name] for name in read if buffers[name].role == "temp"]
    layouts = {(buffer.shape, buffer.stride, buffer.dtype) for buffer in dying}
    written = {(buffers[n].shape, buffers[n].stride, buffers[n].dtype) for n in kernel.written}
    return bool(layouts & written) and all(not part.axes for part in kernel.passes)
