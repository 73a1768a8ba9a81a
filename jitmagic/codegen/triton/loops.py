"""Builds the loop form of a Triton kernel: the passes of a nest over the tile of a program.

In: a Structure, its Tile. Out: a Kernel. A whole inner extent is opened once, and all passes share
the values that are computed from it; an extent taken in steps is a loop per pass, and values are
recomputed in each. Invariant: points outside an extent are never read, stored or reduced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...lazy_dataclass import replace
from ...loops.expr import Axis, AxisVar
from ...loops.free_axes import value_axes
from ...loops.ir import Buffer, Load, Reduction, Value, walk
from ...loops.values import cast, identity
from ...schedule.products import Product
from ...schedule.score import extent_of
from ...schedule.substitution import Rebuilder, free_axes
from ...symbols.size import Dimension, upper_bound
from ..kernel import (
    Accumulate,
    Barrier,
    Dot,
    Fold,
    For,
    Inside,
    Kernel,
    Let,
    Open,
    Program,
    Result,
    Start,
    Statement,
    Store,
    TileBlock,
    Total,
    Var,
)
from ..loop_form import Body, LoopBuilder, params_of
from ..loop_structure import Pass, Structure
from ..products.tensor_cores import dot_operands
from .ops import WIDE
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
    body = (Program(tile.outer), *loops.passes(kernel.passes, frozenset(kernel.outer)))
    return Kernel(kernel.name, params_of(kernel, buffers), kernel.symbols, body, kernel.origins)


class _TileLoops(LoopBuilder):
    def __init__(self, kernel: Structure, tile: Tile, product: Product | None, fence: bool) -> None:
        super().__init__(kernel)
        self.tile, self.product, self.fence = tile, product, fence
        self._opened: set[TileBlock] = set()

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
        nested = tuple(each for each in body if not _is_store(each))
        folds = (
            Let(node, Fold(node.op, self._entering(node, block), block, node.dtype))
            for node in pass_.reductions
        )
        return (*opened, *nested, *folds, *(each for each in body if _is_store(each)))

    def _looped(
        self, pass_: Pass, block: TileBlock, bound: frozenset[Axis], ready: frozenset[Value]
    ) -> Body:
        """Reduce in steps: each lane accumulates, and the lanes are combined after the loop."""
        totals = {node: self._lanes(node, block) for node in pass_.reductions}
        start = _loop_of(block)
        point = self._entered(self.point(pass_, bound, ready, totals), totals, block)
        body = (Open(block, start), *point)
        folds = (
            Let(node, Fold(node.op, Result(total, total.var.dtype), block, node.dtype))
            for node, total in totals.items()
        )
        loop = For((start,), body, step=block.size, stages=self.tile.stages)
        return (*map(Start, totals.values()), loop, *folds)

    def _multiplied(self, product: Product, block: TileBlock) -> Body:
        """Sum the products of two operands in steps, by tensor cores."""
        rows, across = self.tile.outer
        columns = self.tile.turned
        assert columns is not None
        var = Var(self.new_name("acc"), torch.float32)
        axes = (*rows.axes, *across.axes)
        total = Total("sum", block.axes, var.dtype, var, method="dot", tile=axes)
        start = _loop_of(block)
        a, b = dot_operands(product)
        b = Rebuilder({product.n: AxisVar(columns.axes[0])}).value(b)
        if block.ragged:  # a scale that is not finite makes NaN of the zeros beyond the end
            b = Inside(b, block, 0, b.dtype)
        body = (Open(block, start), Dot(total, a, b, (rows, columns, block), across))
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
            totals = {point: total}
            body = self.point(inside, bound | frozenset(axes), ready, totals)
            body = self._entered(body, totals, None)
            made += [Start(total), For((start,), (Open(block, start), *body))]
            made.append(Let(node, Result(total, node.dtype)))
        return tuple(made)

    def point(
        self,
        pass_: Pass,
        bound: frozenset[Axis],
        ready: frozenset[Value],
        totals: Mapping[Reduction, Total],
    ) -> Body:
        made = super().point(pass_, bound, ready, totals)
        axes = (*self.kernel.outer, *pass_.axes)
        stores = [replace(each, axes=axes) for each in made if isinstance(each, Store)]
        fence = (Barrier(),) if self.fence and stores else ()
        return (*(each for each in made if not isinstance(each, Store)), *fence, *stores)

    def _entered(
        self, body: Body, totals: Mapping[Reduction, Total], block: TileBlock | None
    ) -> Body:
        """Accumulate values in the accumulators' dtype, and only points inside the extent."""
        nodes = {total.var: node for node, total in totals.items()}
        return tuple(
            replace(each, value=self._entering(nodes[each.total.var], block))
            if isinstance(each, Accumulate) and each.total.var in nodes
            else each
            for each in body
        )

    # -- reductions --------------------------------------------------------------------------------

    def _entering(self, node: Reduction, block: TileBlock | None) -> Value:
        """Return the value to reduce in the accumulator's dtype; points outside the extent are the
        identity.
        """
        held = _accumulator_dtype(node)
        value = cast(node.value, held)
        if block is None or not block.ragged:
            return value
        return Inside(value, block, identity(node.op, held), held)

    def _lanes(self, node: Reduction, block: TileBlock | None) -> Total:
        """Return accumulators: one for each point of a block, or for each value that varies."""
        name, dtype = self.new_name("acc"), _accumulator_dtype(node)
        axes = free_axes(node) if block is None else free_axes(node.value) | frozenset(block.axes)
        at = lost = None
        steps: Dimension = extent_of(node.axes) if block is None else block.count
        if node.op in ("argmax", "argmin"):
            at = Var(f"{name}_at", torch.int64 if self.tile.wide else torch.int32)
        elif node.op == "sum" and dtype.is_floating_point and upper_bound(steps) > LONG:
            lost = Var(f"{name}_lost", dtype)
        order = [axis for b in (*self.tile.outer, *self.tile.inner.values()) for axis in b.axes]
        tile = tuple(axis for axis in order if axis in axes)
        return Total(node.op, node.axes, dtype, Var(name, dtype), at, lost, tile=tile)


def _is_store(each: Statement) -> bool:
    return isinstance(each, (Store, Barrier))


def _loop_of(block: TileBlock) -> Axis:
    """Return the variable of a loop over the blocks of an extent."""
    extent: Any = block.extent  # a Size acts as an int
    return Axis(f"{block.name}_at", extent)


def _accumulator_dtype(node: Reduction) -> torch.dtype:
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
    layouts = {(buffers[n].shape, buffers[n].stride, buffers[n].dtype) for n in read}
    written = {(buffers[n].shape, buffers[n].stride, buffers[n].dtype) for n in kernel.written}
    return bool(layouts & written) and all(not part.axes for part in kernel.passes)
