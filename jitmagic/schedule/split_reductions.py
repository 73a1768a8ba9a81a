"""Splits reductions, for devices with many cores and programs with few rows.

In: the fused program. Out: the same program, in which a reduction that would leave most cores idle
becomes two nests: one reduces pieces of the extent in parallel into a small temporary, the next
combines them.

    sum{j} x[i, j]  ->  part[p, i] = sum{k} x[i, p * K + k];   sum{p} part[p, i]

The combination of the pieces stays inside the nest that reads it where that costs nothing; a result
that is needed at many points is combined by a nest of its own. Inner loops of stores become outer
loops of their own nest. Only the CUDA schedule does this: it trades launches for parallelism.

For dynamic extents, the length of pieces follows the hint, and their number is an expression. That
an extent stays too short to split is assumed and guarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..budget import check
from ..devices import Target
from ..lazy_dataclass import dataclass, field, replace
from ..loops.expr import Axis, AxisVar, Expr, add, mul, times
from ..loops.free_axes import value_axes
from ..loops.ir import (
    Buffer,
    Cast,
    Compute,
    IndexValue,
    Load,
    LoopProgram,
    Nest,
    Reduction,
    Scan,
    Step,
    Store,
    Value,
    landmarks,
    walk,
)
from ..loops.relative_sums import RelativeSum, relative_sum
from ..loops.values import cast, compute, constant, identity, where
from ..symbols.size import Dimension, Size, expr_of, hint_of, is_same, may_assume
from .dependencies import loads_of, storages, store_values
from .legality import overwrites_reads
from .products import products_of
from .score import ROW, extent_of, extent_product
from .substitution import Rebuilder, free_axes, fresh_axis
from .tile import final_nest

__all__ = ["split_reductions"]

STRIDED_ROW = 1024  # least length of a strided row to split; contiguous rows are split beyond ROW
STRIDED_COLUMNS = 32  # columns per program for strided rows
ROUNDS = 4  # programs wanted per multiprocessor
PIECE = 512  # least length of a piece
STRIDED_PIECE = 128  # the same for strided rows
UNIT = 16  # pieces of a dynamic extent are multiples of it: loads are of 16 bytes


def split_reductions(program: LoopProgram, target: Target) -> LoopProgram:
    """Split the reductions that would leave cores of the target idle."""
    if not target.multiprocessors:
        return program
    splitter = _Splitter(program, target, dict(program.buffers))
    steps: list[Step] = []
    for step in program.steps:
        steps.extend(splitter.split(step) if isinstance(step, Nest) else (step,))
    return replace(program, buffers=splitter.buffers, steps=tuple(steps))


@dataclass(frozen=True, slots=True)
class _Cut:
    """Describes one split axis: `axis` = piece * length + offset; `ragged`: the last piece is
    shorter.
    """

    axis: Axis
    piece: Axis
    offset: Axis

    @property
    def position(self) -> Expr:
        return add(mul(AxisVar(self.piece), self.offset.extent), AxisVar(self.offset))

    @property
    def ragged(self) -> bool:
        return not is_same(self.axis.extent % self.offset.extent, 0)


@dataclass(frozen=True, slots=True)
class _Combining:
    """A nest that combines pieces: its name and its stores, of one value per row."""

    name: str
    stores: Sequence[Store]


@dataclass(slots=True)
class _Splitter:
    program: LoopProgram
    target: Target
    buffers: dict[str, Buffer]
    owner: dict[str, str] = field(init=False)
    taken: set[str] = field(init=False)
    finishing: _Combining | None = None  # the last nest that combines pieces

    def __post_init__(self) -> None:
        self.owner = storages(self.program)
        self.taken = {*self.buffers, *(str(getattr(s, "name", "")) for s in self.program.steps)}

    def split(self, nest: Nest) -> list[Step]:
        """Return the nests that replace this one, in order."""
        check()
        if any(isinstance(node, Scan) for node in landmarks(nest.stores)):
            return [nest]  # its rows stay whole
        if len(nest.outer) > 1 and products_of(nest.outer, store_values(nest.stores), True):
            return [nest]  # tensor cores take it in tiles
        nests: list[Nest] = []
        while (chosen := self._next(nest)) is not None:
            nodes, cut = chosen
            nest = self._cut(nest, nodes, cut, nests)
        if not nests and not self._is_lopsided(nest):
            return [nest]
        steps = self._without_inner_loops(nest, nests)
        return [*nests, *steps]

    def _is_lopsided(self, nest: Nest) -> bool:
        """Return whether only few programs would run, each writing a long row."""
        # A row is written by one program, so a few long rows leave most cores idle.
        few = extent_product(nest.outer) < ROUNDS // 2 * self.target.multiprocessors
        return few and any(extent_product(store.inner) > ROW for store in nest.stores)

    # -- choosing ----------------------------------------------------------------------------------

    def _next(self, nest: Nest) -> tuple[list[Reduction], _Cut] | None:
        """Return wide reductions over the same axes that depend on no other wide one."""
        nodes = walk(store_values(nest.stores))
        free = value_axes(nodes)
        outer = frozenset(nest.outer)
        wide = [
            node
            for node in nodes
            if isinstance(node, Reduction) and free[node] <= outer and self._pieces(nest, node) > 1
        ]
        if not wide:
            return None
        first = wide[0]  # walk yields operands first, so it depends on no other wide one
        pending = set(wide)
        group = [
            node
            for node in wide
            if node.axes == first.axes
            and not any(part in pending for part in walk((node.value,)))
            and self._axis(node) == self._axis(first)
        ]
        axis = self._axis(first)
        pieces = self._pieces(nest, first)
        length = _length(axis.extent, pieces)
        piece = fresh_axis(axis, -(-axis.extent // length))
        cut = _Cut(axis, piece, fresh_axis(axis, length))
        sums = [node for node in wide if _is_relative_to(node, group, pending, cut)]
        return [*group, *sums], cut

    def _axis(self, node: Reduction) -> Axis:
        """Return the axis to split: the first if order matters, else the longest (the first of
        equals).
        """
        # The pieces of an argmax keep the order of positions only along the outermost axis.
        if node.op.startswith("arg"):
            return node.axes[0]
        return max(node.axes, key=lambda axis: hint_of(axis.extent))

    def _pieces(self, nest: Nest, node: Reduction) -> int:
        """Return the number of pieces that would fill the cores; 1 leaves the reduction unsplit."""
        rows, extent = extent_product(nest.outer), extent_product(node.axes)
        strided = self._is_strided(nest, node)
        limit = STRIDED_ROW if strided else ROW
        if may_assume("<=", extent_of(node.axes), limit):
            return 1
        programs = -(-rows // STRIDED_COLUMNS) if strided else rows
        wanted = ROUNDS * self.target.multiprocessors // programs
        most = min(
            extent // (STRIDED_PIECE if strided else PIECE), hint_of(self._axis(node).extent)
        )
        return min(wanted, most) if wanted > 1 else 1

    def _is_strided(self, nest: Nest, node: Reduction) -> bool:
        """Return whether most reads of the whole loop are contiguous across the rows."""
        if not nest.outer:
            return False
        last, fast = AxisVar(node.axes[-1]), AxisVar(nest.outer[-1])
        along = strided = 0
        for load in walk((node.value,)):
            if isinstance(load, Load) and {last, fast} <= {*load.index}:
                steps = dict(zip(load.index, self.buffers[load.buffer].stride, strict=True))
                along += is_same(steps[last], 1)
                strided += is_same(steps[fast], 1)
        return strided > along

    # -- cutting -----------------------------------------------------------------------------------

    def _cut(self, nest: Nest, nodes: list[Reduction], cut: _Cut, nests: list[Nest]) -> Nest:
        stores: list[Store] = []
        results: dict[Value, Value] = {}
        done: dict[Value, tuple[Reduction, Value]] = {}
        for node in nodes:
            inside = _Piece(node, cut)
            found = relative_sum(node)
            if found is not None and found.beside in done:
                own, loaded = done[found.beside]
                part = self._part(nest, _in_piece(found, own), cut, stores)
                base = Rebuilder(made=results).value(found.base)
                total = _related(found, own, cast(loaded, node.dtype), part, base)
                results[node] = Reduction("sum", (cut.piece,), total, node.dtype)
            elif node.op.startswith("arg"):
                best = self._part(nest, inside.best(), cut, stores)
                position = self._part(nest, inside.best_position(), cut, stores)
                results[node] = _first_of_best(node, best, position, cut)
            else:
                reduced = inside.reduced(node.op)
                part = self._part(nest, reduced, cut, stores)
                results[node] = Reduction(node.op, (cut.piece,), part, node.dtype)
                done[node] = reduced, part
        name = self._name(f"{nest.name}_parts")
        outer = (cut.piece, *nest.outer)
        nests.append(final_nest(name, outer, stores, nest.origins, self.buffers))
        if nest.outer and self._needed_widely(nest, nodes):
            results = self._finish(nest, results, nests)
        rebuild = Rebuilder(made=results)
        return replace(nest, stores=tuple(rebuild.store(store) for store in nest.stores))

    def _part(self, nest: Nest, value: Value, cut: _Cut, stores: list[Store]) -> Value:
        """Store a value per piece and row, and return its load."""
        point = (AxisVar(cut.piece), *(AxisVar(axis) for axis in nest.outer))
        name = self._temporary(nest, (cut.piece, *nest.outer), value)
        stores.append(Store(name, (), point, value))
        return Load(name, point, value.dtype)

    def _temporary(self, nest: Nest, axes: tuple[Axis, ...], value: Value) -> str:
        name = self._name(f"{nest.name}_part")
        device = self.buffers[nest.stores[0].buffer].device
        self.buffers[name] = Buffer.over(name, axes, value.dtype, device)
        self.owner[name] = name
        return name

    def _name(self, wanted: str) -> str:
        number = 0
        while f"{wanted}{number}" in self.taken:
            number += 1
        self.taken.add(f"{wanted}{number}")
        return f"{wanted}{number}"

    def _needed_widely(self, nest: Nest, nodes: list[Reduction]) -> bool:
        """Return whether the results are read again at every point of another wide loop."""
        # An inner loop would repeat the combination at each of its points.
        if any(store.inner for store in nest.stores):
            return True
        done = set(nodes)
        return any(
            isinstance(node, Reduction)
            and node not in done
            and any(part in done for part in walk((node.value,)))
            for node in walk(store_values(nest.stores))
        )

    def _finish(
        self, nest: Nest, results: dict[Value, Value], nests: list[Nest]
    ) -> dict[Value, Value]:
        """Combine the pieces once per row in a separate nest, and return loads of the results."""
        stores, loads = [], {}
        point = tuple(AxisVar(axis) for axis in nest.outer)
        for node, result in results.items():
            name = self._temporary(nest, nest.outer, result)
            stores.append(Store(name, (), point, result))
            loads[node] = Load(name, point, result.dtype)
        if (last := self._last_combining(nests)) is not None:
            nests[-1] = self._with_more_stores(last, stores, nest)
        else:
            self.finishing = _Combining(self._name(f"{nest.name}_ends"), stores)
            nests.append(self._final(self.finishing.name, stores, nest))
        return dict(loads)

    # -- inner loops -------------------------------------------------------------------------------

    def _without_inner_loops(self, nest: Nest, nests: list[Nest]) -> list[Step]:
        """Turn stores with inner loops into nests over all their points."""
        # Values that are constant along a row are computed before, not at each of its points.
        if not any(store.inner for store in nest.stores):
            return [self._final(nest.name, nest.stores, nest)]
        # EfficientNet's AMP training step took 7.6 s on an H200 when a reduction was repeated at
        # each point, and takes 45 ms with each row reduced once.
        if once := _once_per_row(nest):
            loads = self._finish(nest, {node: node for node in once}, nests)
            rebuild = Rebuilder(made=loads)
            nest = replace(nest, stores=tuple(rebuild.store(store) for store in nest.stores))
        byaxes: dict[tuple[Axis, ...], list[Store]] = {}
        for store in nest.stores:
            byaxes.setdefault(store.inner, []).append(replace(store, inner=()))
        if (order := self._in_order(byaxes)) is None:
            return [self._final(nest.name, nest.stores, nest)]
        if order[0] == () and (last := self._last_combining(nests)) is not None:
            nests[-1] = self._with_more_stores(last, byaxes[()], nest)
            order = order[1:]
        steps: list[Step] = []
        for inner in order:
            name = nest.name if not steps else self._name(f"{nest.name}_ends")
            steps.append(self._final(name, byaxes[inner], nest, inner))
        return steps

    def _last_combining(self, nests: Sequence[Nest]) -> _Combining | None:
        """Return the last of the nests if it combines pieces."""
        last = self.finishing
        return last if last is not None and nests and nests[-1].name == last.name else None

    def _with_more_stores(self, last: _Combining, stores: Sequence[Store], nest: Nest) -> Nest:
        """Return the last combining nest, with further stores of one value per row."""
        values = {store.buffer: store.value for store in last.stores}
        use = Rebuilder(on_load=lambda load: values.get(load.buffer, load))
        self.finishing = _Combining(last.name, [*last.stores, *map(use.store, stores)])
        return self._final(last.name, self.finishing.stores, nest)

    def _final(
        self,
        name: str,
        stores: Sequence[Store],
        nest: Nest,
        inner: tuple[Axis, ...] = (),
    ) -> Nest:
        return final_nest(name, (*nest.outer, *inner), stores, nest.origins, self.buffers)

    def _in_order(
        self, parts: Mapping[tuple[Axis, ...], Sequence[Store]]
    ) -> list[tuple[Axis, ...]] | None:
        """Return an order in which no part overwrites what a later one reads; None if there is
        none.
        """
        loads = {key: loads_of(stores) for key, stores in parts.items()}
        reads = {key: {self.owner.get(x.buffer, x.buffer) for x in loads[key]} for key in parts}
        writes = {
            key: frozenset(self.owner.get(store.buffer, store.buffer) for store in stores)
            for key, stores in parts.items()
        }
        for key, stores in parts.items():
            if overwrites_reads(stores, loads[key], self.owner, writes[key]):
                return None
        waiting, order = list(parts), list[tuple[Axis, ...]]()
        while waiting:
            free = [
                key
                for key in waiting
                if not any(writes[key] & (reads[k] | writes[k]) for k in waiting if k != key)
            ]
            if not free:
                return None
            order.append(free[0])
            waiting.remove(free[0])
        return order


def _is_relative_to(
    node: Reduction, group: list[Reduction], pending: set[Reduction], cut: _Cut
) -> bool:
    """Return whether the node is a sum relative to one of the group, and depends on no other
    reduction that is pending.
    """
    found = relative_sum(node)
    if found is None or found.beside not in group:
        return False
    if found.kind == "squares" and (cut.ragged or isinstance(extent_of(node.axes), Size)):
        return False  # the number of values in a piece is not known
    return pending.isdisjoint(part for part in walk((found.base,)) if part not in group)


def _in_piece(found: RelativeSum, own: Reduction) -> Reduction:
    """Return the sum in a piece, relative to the maximum or the mean `own` of the piece."""
    dtype = found.value.dtype
    value, base = cast(own.value, dtype), cast(own, dtype)
    if found.kind == "squares":
        rest = compute("sub", value, compute("truediv", base, _count(own)))
        return Reduction("sum", own.axes, compute("mul", rest, rest), dtype)
    # Infinity minus infinity would be NaN: a piece whose values are all -inf adds nothing.
    is_infinite = compute("isinf", base)
    finite = where(is_infinite, constant(0, dtype), base)
    return Reduction("sum", own.axes, compute("exp", compute("sub", value, finite)), dtype)


def _related(found: RelativeSum, own: Reduction, held: Value, part: Value, base: Value) -> Value:
    """Return the sum of a piece relative to the base of the whole sum."""
    if found.kind == "exponentials":
        return compute("mul", part, compute("exp", compute("sub", held, base)))
    rest = compute("sub", compute("truediv", held, _count(own)), base)
    return compute("add", part, compute("mul", _count(own), compute("mul", rest, rest)))


def _count(own: Reduction) -> Value:
    """Return the number of values of a piece."""
    return constant(float(extent_product(own.axes)), torch.promote_types(own.dtype, torch.float32))


def _once_per_row(nest: Nest) -> list[Value]:
    """Return the largest values that depend on rows alone and are used by stores with inner
    loops.
    """
    stores = [store for store in nest.stores if store.inner]
    nodes = walk(store_values(stores))
    free, outer = value_axes(nodes), frozenset(nest.outer)
    rows = {
        node
        for node in nodes
        if isinstance(node, (Cast, Compute, Reduction))
        and free[node] <= outer
        and any(isinstance(part, Load) for part in node.below)
    }
    used = {part for node in nodes if node not in rows for part in node.operands}
    used.update(store.value for store in stores)
    return [node for node in nodes if node in rows and node in used]


def _length(extent: Dimension, pieces: int) -> int:
    """Return the length of a piece: a divisor of the extent if one is near."""
    least = -(-hint_of(extent) // pieces)
    if isinstance(extent, Size):
        return -(-least // UNIT) * UNIT
    # A divisor leaves no ragged piece, whose loads would need masks.
    for length in range(least, min(2 * least, extent) + 1):
        if extent % length == 0:
            return length
    return least


@dataclass(frozen=True, slots=True)
class _Piece:
    """Builds the part of a reduction inside one piece."""

    node: Reduction
    cut: _Cut

    def reduced(self, op: str) -> Reduction:
        axes = tuple(self.cut.offset if axis == self.cut.axis else axis for axis in self.node.axes)
        value = self._value(op)
        return Reduction(op, axes, value, torch.int64 if op.startswith("arg") else value.dtype)

    def best(self) -> Reduction:
        return self.reduced(self.node.op.removeprefix("arg"))

    def best_position(self) -> Value:
        """Return the position of the best value in the whole extent."""
        below = self.cut.offset.extent * extent_of(self.node.axes[1:])
        start = IndexValue(times(AxisVar(self.cut.piece), below))
        return compute("add", self.reduced(self.node.op), start)

    def _value(self, op: str) -> Value:
        bindings = {self.cut.axis: self.cut.position}
        if not self.cut.ragged:
            return Rebuilder(bindings).value(self.node.value)
        extent = self.cut.axis.extent
        end = IndexValue(expr_of(extent)) if isinstance(extent, Size) else extent
        inside = compute("lt", IndexValue(self.cut.position), end)

        def guarded(load: Load) -> Value:
            if self.cut.piece not in free_axes(load):
                return load
            mask = inside if load.mask is None else compute("logical_and", inside, load.mask)
            return Load(load.buffer, load.index, load.dtype, mask, load.fill)

        value = Rebuilder(on_load=guarded).value(Rebuilder(bindings).value(self.node.value))
        return where(inside, value, constant(identity(op, value.dtype), value.dtype))


def _first_of_best(node: Reduction, best: Value, position: Value, cut: _Cut) -> Value:
    """Return the lowest position among the pieces with the best value (NaN is the best)."""
    op = node.op.removeprefix("arg")
    overall = Reduction(op, (cut.piece,), best, best.dtype)
    same: Value = compute("eq", best, overall)
    if best.dtype.is_floating_point:
        same = compute("logical_or", same, compute("isnan", best))
    candidate = where(same, position, constant(2**62, position.dtype))
    return Reduction("min", (cut.piece,), candidate, position.dtype)
