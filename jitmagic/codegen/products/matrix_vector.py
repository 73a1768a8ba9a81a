"""Chooses the tile of reductions that multiply the rows of matrices by one vector.

In: a Structure whose only pass is over such sums, and the target. Out: its tile, some rows and all
or a step of their terms. A matrix is read once, the vector from cache, so that only memory limits
the sums if enough loads are in flight: a program has a tile of ELEMENTS, 16 to 32 per thread.
"""

from __future__ import annotations

from ...devices import Target
from ...loops.expr import coefficient
from ...loops.ir import Load, walk
from ...schedule.score import extent_of, extent_product
from ...symbols.size import Size, hint_of
from ..config import TritonConfig
from ..kernel import TileBlock
from ..kernel_values import next_power
from ..loop_structure import Structure
from ..triton.tile import Tile, has_far_offsets

__all__ = ["is_matrix_vector", "vector_candidates", "vector_tile"]

# H200, rows x terms in bfloat16: 11008 x 4096 22.1 us (4.1 TB/s; cuBLAS 24.2), 4096 x 11008 23.1
# (27.1), 50257 x 768 19.6 (29.5). Steps of 8192, as of other long rows, take 28 us for rows of
# 11008, of which a second step has 2816.
ELEMENTS = 4096
STEP = 512  # of longer rows, in a loop
STAGES = 3


def is_matrix_vector(kernel: Structure) -> bool:
    """Return whether the nest consists of sums of matrices' rows times vectors."""
    return bool(_matrices(kernel))


def _matrices(kernel: Structure) -> list[Load]:
    """Return the matrices of such a nest, or []."""
    if len(kernel.passes) != 2 or not kernel.outer:
        return []
    first, last = kernel.passes
    if last.axes or first.stores or any(node.op != "sum" for node in first.reductions):
        return []
    terms, outer = first.axes[-1], frozenset(kernel.outer)
    if any(isinstance(axis.extent, Size) for axis in first.axes):
        return []
    loads = [node for node in walk(first.roots) if isinstance(node, Load)]
    along = [load for load in loads if terms in kernel.free[load]]
    found = [load for load in along if kernel.free[load] & outer]
    if len(found) == len(along):  # no vector
        return []
    return found if all(coefficient(load.index[0], terms) == 1 for load in found) else []


def vector_tile(kernel: Structure, target: Target, overrides: TritonConfig) -> Tile:
    """Return the tile of one program; non-zero overrides win."""
    axes, rows, matrices = kernel.passes[0].axes, extent_product(kernel.outer), _matrices(kernel)
    whole = max(next_power(hint_of(extent_of(axes))), 16)
    step = min(overrides.step or (whole if whole <= ELEMENTS else STEP), whole)
    height = overrides.rows or max(ELEMENTS // step, 1)
    while height > 1 and not overrides.rows and (
        rows < 2 * height * target.multiprocessors or height * step * len(matrices) > ELEMENTS
    ):  # fmt: skip
        height //= 2
    height = min(height, next_power(rows))
    # 4096 x 1024 3.0 us, with four warps 3.1; int8 11008 x 4096 14.8 us with four, 16 with eight.
    is_narrow = min(load.dtype.itemsize for load in matrices) == 1
    warps = 8 if step == ELEMENTS and not is_narrow else max(1, min(4, height * step // 512))
    outer = (TileBlock("x", kernel.outer, extent_of(kernel.outer), height),)
    inner = {axes: TileBlock("r", axes, extent_of(axes), step)}
    wide = has_far_offsets(kernel)
    return Tile(outer, inner, overrides.warps or warps, wide, overrides.stages or STAGES)


def vector_candidates(tile: Tile) -> tuple[TritonConfig, ...]:
    """Return other tiles worth measuring."""
    ((_, block),) = tile.inner.items()
    sizes = [(1, 4096), (2, 2048), (4, 1024), (8, 512), (8, 256), (4, 512)]
    sizes = [(rows, step) for rows, step in sizes if step <= 2 * block.extent]
    warps = [TritonConfig(warps=n) for n in (2, 4, 8)]
    return (*warps, *(TritonConfig(rows=rows, step=step) for rows, step in sizes))
