"""Lists the tiles of a Triton kernel that are worth measuring beside the one that is chosen."""

from __future__ import annotations

from ...devices import Target
from ..config import TritonConfig
from ..loop_structure import Structure
from .tile import MOST_WARPS, POINTS, ROW, Tile, choose_tile

__all__ = ["tile_candidates"]


def tile_candidates(kernel: Structure, target: Target) -> tuple[TritonConfig, ...]:
    """Return configs around the heuristics' choice: other warps, other blocks, and for a long
    extent a loop instead of a whole block or the reverse.
    """
    tile = choose_tile(kernel, target)
    warps = [w for w in (tile.warps // 2, tile.warps * 2) if 1 <= w <= MOST_WARPS]
    configs = [TritonConfig(warps=w) for w in warps]
    if tile.inner:
        others = _row_candidates(tile)
        return (*configs, *([c for c in others if c.stages] if kernel.summed else others))
    if len(tile.spread) > 1:
        return (*configs, *(TritonConfig(side=s, warps=w) for s in (16, 64) for w in (4, 8)))
    block = tile.outer[-1] if tile.outer else None
    if block is None or block.single:
        return tuple(configs)
    sizes = [s for s in (block.size // 2, block.size * 2, block.size * 4) if s <= 4 * POINTS]
    configs += [TritonConfig(points=s) for s in sizes]
    return (*configs, *(TritonConfig(points=s, warps=8) for s in sizes if s > block.size))


def _row_candidates(tile: Tile) -> list[TritonConfig]:
    longest = max(block.size for block in tile.inner.values())
    configs = []
    if tile.outer and not tile.outer[0].single:
        height = tile.outer[0].size
        heights = [h for h in (height // 2, height * 2) if h and h * longest <= 2 * ROW]
        configs += [TritonConfig(rows=h) for h in heights]
    looped = any(not block.single for block in tile.inner.values())
    if looped or tile.stages:
        configs += [TritonConfig(stages=n) for n in (2, 3)]
    steps = (1024, 2048, 4096, 8192) if looped or longest > 1024 else ()
    return [*configs, *(TritonConfig(step=s) for s in steps)]
