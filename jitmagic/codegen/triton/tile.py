"""Chooses the tile of a nest that one Triton program works on.

In: a Structure and the target. Out: a Tile: blocks of outer points (a block of size 1 is a scalar),
one block per set of inner axes, and the number of warps. There are three shapes:
  points   one block over all outer axes, collapsed; two for a transposition.
  rows     a few rows per program, each whole inner extent in registers ("persistent").
  loops    the inner extent in steps, each pass a loop of its own.
The last dimension of a tile is the inner one. Rows that are strided in memory (column reductions)
get wide outer blocks, so that neighbouring threads touch neighbouring elements.

For dynamic extents, block sizes follow the hints, and the number of blocks is an expression of the
sizes. Two assumptions that make kernels faster are guarded: that a row fits into a block, and that
offsets fit into 32 bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

from ...devices import Target
from ...lazy_dataclass import dataclass, replace
from ...loops.expr import Axis, Expr, bounds, coefficient, magnitude_bound
from ...loops.ir import IndexValue, Load, Pick, Reduction, Scan, walk
from ...operators.scalar import ORDERS
from ...schedule.score import extent_of, extent_product
from ...symbols.size import Dimension, Size, hint_of, may_assume
from ..config import TritonConfig
from ..kernel import TileBlock
from ..kernel_values import next_power
from ..loop_structure import Structure, offsets_in, picks_of, scans_of
from .aligned_rows import BLOCK, aligned_block
from .relative_sums import with_relative_sums

__all__ = [
    "FAR", "MOST_WARPS", "POINTS", "ROW", "Tile", "choose_tile", "has_far_offsets",
    "with_row_loops",
]  # fmt: skip

# Elements of one program of a pointwise nest. Twice as many where their columns share values: the
# threads load these once, and batch norm's result takes 55 us instead of 68 (64x256x56x56, bf16).
POINTS, POINTS_WARPS = 1024, 4
ROW = 16384  # elements of one program that still fit its registers
ROW_LOOP = 8192  # least elements of a row that a program takes in steps, each loaded in advance
ROW_BLOCKS = (4096, 2048, 1024)  # elements of one program of rows that have values of their own
STEP = 8192  # elements of one step of a looped reduction
STEP_STRIDED = 4096  # the same for rows that are strided in memory
# Rows whose loads are in flight in loops: 54 us instead of 68 for the gradients of a layer norm, 41
# instead of 59 for batch norm's statistics; two for its gradients from two tensors, 69 instead of
# 89. From three they lose a tenth, others do not gain.
STAGES = 3
SECTOR = 32  # bytes of one memory transaction
STRIDED_COLUMNS = 32  # neighbouring columns one program of a column reduction takes
SQUARE = 32  # side of a transposing tile
MOST_WARPS = 16
# The margin below 2**31 covers offsets of masked lanes, which are beyond the extent.
FAR = 2**31 - 2**20  # element offsets from here on are computed in 64 bits
LEAST = 128  # least elements of a block over a dynamic extent, which may grow


@dataclass(frozen=True, slots=True)
class Tile:
    """Lists the blocks of one program. `inner`: the block of each set of inner axes, looped over
    unless its count is 1.
    """

    outer: tuple[TileBlock, ...]
    inner: Mapping[tuple[Axis, ...], TileBlock]
    warps: int
    wide: bool  # whether offsets need 64 bits
    stages: int = 0  # loads in flight in a loop over steps; 0: Triton's default
    down: tuple[TileBlock, ...] = ()  # blocks along the first dimension, beside those of `spread`
    along_rows: bool = False  # neighbouring threads take neighbouring points of a row

    @property
    def programs(self) -> Dimension:
        return prod(block.count for block in self.outer)

    @property
    def spread(self) -> tuple[TileBlock, ...]:
        """Return the outer blocks that are dimensions of the tile."""
        return tuple(block for block in self.outer if block.size > 1)

    @property
    def rank(self) -> int:
        return 2 if self.down else len(self.spread) + bool(self.inner)

    @property
    def blocks(self) -> tuple[TileBlock, ...]:
        """Return all blocks, outer ones first."""
        return tuple(dict.fromkeys((*self.outer, *self.inner.values(), *self.down)))

    def dimension(self, block: TileBlock) -> int:
        """Return the block's dimension in the tile: the last one if it is an inner block."""
        if block in self.down:
            return 0
        return self.spread.index(block) if block in self.spread else self.rank - 1


_DEFAULTS = TritonConfig()


def choose_tile(kernel: Structure, target: Target, overrides: TritonConfig = _DEFAULTS) -> Tile:
    """Choose the tile of a program; non-zero overrides win."""
    inner = tuple(dict.fromkeys(part.axes for part in kernel.passes if part.axes))
    wide = has_far_offsets(kernel)
    if not inner:
        tile = _points(kernel, target, wide, overrides)
    else:
        one_row = replace(overrides, rows=1, step=0) if kernel.summed else overrides
        # Of the rows that a program sums, the tile has one.
        outer = tuple(axis for axis in kernel.outer if axis not in kernel.summed)
        tile = _rows(replace(kernel, outer=outer), inner, target, wide, one_row)
    tile = _aligned_tile(kernel, tile)
    stages = overrides.stages or _stages(kernel, tile)
    return replace(tile, warps=overrides.warps or tile.warps, stages=stages)


def _stages(kernel: Structure, tile: Tile) -> int:
    """Return how many steps of a loop a program loads while it computes; 0: Triton's choice."""
    if kernel.summed or not tile.inner:
        return STAGES if kernel.summed else 0
    _, sums = with_relative_sums(kernel.passes, tile.inner)
    has_squares = any(each.kind == "squares" for each in sums.values())
    if has_squares or _is_pointwise(kernel) or any(b.row is not None for b in tile.inner.values()):
        return STAGES
    looped = any(not block.single for block in tile.inner.values())
    return 2 if looped and not tile.along_rows and len({*_tile_loads(kernel)}) == 2 else 0


def _aligned_tile(kernel: Structure, tile: Tile) -> Tile:
    """Return the tile with blocks of rows that begin at aligned elements."""
    if tile.inner:
        # The steps of an aligned block are not in order, as those of a scan are.
        if tile.spread or any(map(scans_of, kernel.passes)):
            return tile
    elif len(tile.outer) != 2 or len(tile.spread) != 1:
        return tile
    inner = {axes: aligned_block(kernel, block) for axes, block in tile.inner.items()}
    outer = tile.outer if inner else (tile.outer[0], aligned_block(kernel, tile.outer[1]))
    longest = max(block.size for block in [*inner.values()] or outer[1:])  # maybe shorter now
    return replace(tile, outer=outer, inner=inner, warps=min(tile.warps, _warps(longest, 512)))


def _positions(kernel: Structure) -> list[Expr]:
    """Return all index arithmetic over axes: offsets, and indexes used as data."""
    return offsets_in(kernel) + [node.expr for node in kernel.free if isinstance(node, IndexValue)]


def has_far_offsets(kernel: Structure) -> bool:
    """Return whether element offsets need 64 bits."""
    return _sizes_reach_far(kernel) if kernel.symbols else _reaches_far(kernel)


def _reaches_far(kernel: Structure) -> bool:
    reach = [abs(end) for offset in _positions(kernel) for end in bounds(offset)]
    return max([*reach, prod(axis.extent for axis in kernel.outer)]) >= FAR


def _sizes_reach_far(kernel: Structure) -> bool:
    """Return whether offsets of dynamic extents need 64 bits; a guard keeps the answer valid."""
    if kernel.context is None:  # the symbols are numbers, not sizes: unbounded
        return True
    spans = [magnitude_bound(expr, kernel.context) for expr in _positions(kernel)]
    spans += [extent_of(axes) for axes in (kernel.outer, *(part.axes for part in kernel.passes))]
    return any(span is None or not may_assume("<", span, FAR) for span in spans)


def _most(extent: Dimension) -> int:
    """Return the largest useful block size."""
    return ROW if isinstance(extent, Size) else next_power(extent)


def _around(extent: Dimension) -> int:
    """Return the size of a block that holds the extent of this call."""
    size = next_power(hint_of(extent))
    return max(size, LEAST) if isinstance(extent, Size) else size


def _multiprocessors(target: Target) -> int:
    return target.multiprocessors or 128


# -- pointwise ------------------------------------------------------------------------------------


def _points(kernel: Structure, target: Target, wide: bool, overrides: TritonConfig) -> Tile:
    count = extent_product(kernel.outer)
    if count >= POINTS and (pair := _transposed(kernel)) is not None:
        return _square(kernel, *pair, wide, overrides.side or SQUARE)
    if _has_row_values(kernel) and (side := _row_block(kernel.outer[-1].extent)):
        return _blocks_of_rows(kernel, wide, overrides.points or side)
    fair = next_power(-(-count // (4 * _multiprocessors(target))))
    extent = extent_of(kernel.outer)
    each = 512 if fair > POINTS and _has_column_values(kernel) else 256
    size = min(overrides.points or min(max(fair, LEAST), each * POINTS_WARPS), _most(extent))
    # Threads with several results of a window hold fewer of each: 150 us instead of 171 for 7x7.
    each = 128 if _most_stores(kernel) >= 4 else each
    return Tile((TileBlock("x", kernel.outer, extent, size),), {}, _warps(size, each), wide)


def _most_stores(kernel: Structure) -> int:
    """Return the most results that a point stores into one buffer."""
    return max(Counter(store.buffer for part in kernel.passes for store in part.stores).values())


def _has_column_values(kernel: Structure) -> bool:
    """Return whether values are loaded that are the same for the columns of all rows, and all
    elements of a thread are in the same columns.
    """
    along = kernel.outer[-1] if len(kernel.outer) > 1 else None
    if along is None or isinstance(along.extent, Size):
        return False
    loads = {node: axes for node, axes in kernel.free.items() if isinstance(node, Load) and axes}
    whole = [node.dtype.itemsize for node, axes in loads.items() if axes >= set(kernel.outer)]
    step = 32 * POINTS_WARPS * 16 // min(whole, default=16)  # elements of 16 bytes for each thread
    return step % along.extent == 0 and any(axes == {along} for axes in loads.values())


def with_row_loops(kernel: Structure, target: Target) -> Structure:
    """Return a pointwise kernel with a loop along rows that are long, many, and have values of
    their own: these are loaded once, and the next elements while the last ones are computed.
    """
    if any(part.axes for part in kernel.passes) or not _has_row_values(kernel):
        return kernel
    *rows, along = kernel.outer
    extents = (extent_product(rows), along.extent)
    if isinstance(along.extent, Size) or extents[1] < ROW_LOOP:
        return kernel
    if extents[0] < 4 * _multiprocessors(target) or _transposed(kernel) is not None:
        return kernel
    (part,) = kernel.passes
    stores = tuple(replace(store, inner=(along,)) for store in part.stores)
    return replace(kernel, outer=tuple(rows), passes=(replace(part, axes=(along,), stores=stores),))


def _is_pointwise(kernel: Structure) -> bool:
    return not any(isinstance(node, (Reduction, Scan, Pick)) for node in kernel.free)


def _has_row_values(kernel: Structure) -> bool:
    """Return whether values are loaded that are the same for all points of a row."""
    rows = frozenset(kernel.outer[:-1])
    return any(
        isinstance(node, Load) and axes and axes <= rows for node, axes in kernel.free.items()
    )


def _row_block(extent: Dimension) -> int:
    """Return the size of blocks that cover a row well; 0 if none does."""
    if isinstance(extent, Size):
        return 0
    return next((size for size in ROW_BLOCKS if -(-extent // size) * size <= 1.25 * extent), 0)


def _blocks_of_rows(kernel: Structure, wide: bool, size: int) -> Tile:
    """Return a tile of one row, whose values are loaded once for all of its points."""
    *rows, along = kernel.outer
    across = TileBlock("y", tuple(rows), extent_of(rows), 1)
    block = TileBlock("x", (along,), along.extent, size)
    return Tile((across, block), {}, _warps(size, 512), wide)


def _transposed(kernel: Structure) -> tuple[Axis, Axis] | None:
    """Return (axis contiguous in loads, axis contiguous in stores) if these differ."""
    if len(kernel.outer) < 2:
        return None
    fast = kernel.outer[-1]
    stores = [store for each in kernel.passes for store in each.stores]
    if any(coefficient(store.index[0], fast) != 1 for store in stores):
        return None
    for node in kernel.free:
        if not isinstance(node, Load) or coefficient(node.index[0], fast) in (0, 1, None):
            continue
        for axis in kernel.outer[:-1]:
            sides = hint_of(axis.extent), hint_of(fast.extent)
            if min(sides) >= 8 and coefficient(node.index[0], axis) == 1:
                return axis, fast
    return None


def _square(kernel: Structure, slow: Axis, fast: Axis, wide: bool, side: int) -> Tile:
    rest = tuple(axis for axis in kernel.outer if axis not in (slow, fast))
    blocks = [TileBlock("z", rest, extent_of(rest), 1)] if rest else []
    for name, axis in (("y", slow), ("x", fast)):
        blocks.append(TileBlock(name, (axis,), axis.extent, min(side, _most(axis.extent))))
    return Tile(tuple(blocks), {}, 4, wide)


# -- rows -----------------------------------------------------------------------------------------


def _rows(
    kernel: Structure,
    inner: tuple[tuple[Axis, ...], ...],
    target: Target,
    wide: bool,
    overrides: TritonConfig,
) -> Tile:
    rows, extents = extent_product(kernel.outer), {axes: extent_of(axes) for axes in inner}
    longest = max(map(_around, extents.values()))
    strided = bool(kernel.outer) and _is_strided(kernel)
    height = min(overrides.rows, next_power(rows)) or _height(rows, longest, strided, target)
    if kernel.outer and not (strided or overrides.rows):
        height = max(height, _sector_height(kernel, rows, longest, target))
    if _is_pointwise(kernel):
        overrides = replace(overrides, step=overrides.step or BLOCK)
    limit = max((overrides.step or (ROW // 2 if strided else ROW)) // height, 16)
    loads = _tile_loads(kernel) if kernel.outer else []
    blocks = {}
    for n, (axes, extent) in enumerate(extents.items()):
        whole = _around(extent)
        step = (overrides.step or (_strided_step(loads) if strided else STEP)) // height
        passes = [part for part in kernel.passes if part.axes == axes]
        again = len(passes) > 1 or any(map(scans_of, passes))
        orders = any(node.op in ORDERS for part in passes for node in part.reductions)
        keep = limit if again else min(limit, STEP // height)
        keep = max(keep, whole) if orders or any(map(picks_of, passes)) else keep
        fits = whole <= keep and may_assume("<=", extent, whole)
        size = whole if fits else max(min(step, whole), 16)
        blocks[axes] = TileBlock(f"r{n}" if n else "r", axes, extent, size, fits)
    outer = (TileBlock("x", kernel.outer, extent_of(kernel.outer), height),) if kernel.outer else ()
    # Strided operands get fewer warps where there are several: column sums took 24 us instead of 36
    # (12544 x 768, bf16) and 57 instead of 77 (32768 x 1024).
    each = 512 if not strided or len(loads) < 2 else 2048 // _narrowest(loads)
    # Fewer warps have fewer parts of a scan to join: from its end, 8192 rows of 8192 took 134 us
    # with 8 warps and 207 with 16, on an H200.
    each = max(each, 1024) if any(map(scans_of, kernel.passes)) else each
    warps = _warps(height * max(block.size for block in blocks.values()), each)
    return Tile(outer, blocks, warps, wide, along_rows=not strided)


def _strided_step(loads: Sequence[Load]) -> int:
    """Return the step of a strided reduction."""
    # Several operands fill the registers of a program sooner, and wide ones sooner still.
    # The shorter steps of float32 follow max-autotune's choice (30 us instead of 40).
    return STEP_STRIDED if len(loads) < 2 else 2 * STEP_STRIDED // _narrowest(loads)


def _narrowest(loads: Sequence[Load]) -> int:
    """Return the bytes of the narrowest element, at least 2 and at most 4."""
    return min(4, max(2, min(load.dtype.itemsize for load in loads)))


def _sector_height(kernel: Structure, rows: int, longest: int, target: Target) -> int:
    """Return the rows whose neighbouring elements fill a memory sector, if some loads are
    contiguous across the rows and the others are not.
    """
    fast = kernel.outer[-1]
    narrow = [load.dtype.itemsize for load in _tile_loads(kernel) if _steps_by_one(load, fast)]
    if not narrow or longest > ROW:
        return 1
    best = min(SECTOR // min(narrow), ROW // longest)
    while best > 1 and -(-rows // best) < _multiprocessors(target):
        best //= 2
    return min(best, next_power(rows))


def _height(rows: int, longest: int, strided: bool, target: Target) -> int:
    """Choose the rows of one program: enough elements for its threads, enough programs for all
    cores.
    """
    if rows <= 1:
        return 1
    best = STRIDED_COLUMNS if strided else max(2048 // longest, 1)
    while best > (8 if strided else 1) and -(-rows // best) < 2 * _multiprocessors(target):
        best //= 2
    return min(best, next_power(rows))


def _is_strided(kernel: Structure) -> bool:
    """Return whether most loads that need the whole tile are contiguous along the last outer
    axis.
    """
    strided = [_steps_by_one(load, kernel.outer[-1]) for load in _tile_loads(kernel)]
    return 2 * sum(strided) > len(strided)


def _tile_loads(kernel: Structure) -> list[Load]:
    """Return the loads, once per pass, that depend on an inner axis and the last outer axis and are
    contiguous along one of them.
    """
    fast, configs = kernel.outer[-1], []
    for part in kernel.passes:
        for node in walk(part.roots) if part.axes else ():
            if not isinstance(node, Load) or not {fast, part.axes[-1]} <= kernel.free[node]:
                continue
            if _steps_by_one(node, fast) or _steps_by_one(node, part.axes[-1]):
                configs.append(node)
    return configs


def _steps_by_one(load: Load, axis: Axis) -> bool:
    return coefficient(load.index[0], axis) == 1


def _warps(elements: int, each: int) -> int:
    """Return the warps for a tile when one warp takes `each` elements."""
    return min(next_power(elements // each), MOST_WARPS)
