"""Chooses the tiles of queries and keys of a Triton kernel of flex_attention.

In: an AttentionKernel, a config that may override the choice. Out: an AttentionTile. Blocks of a
block mask are whole multiples of the tiles. Without tuning the tiles are those of _DEFAULTS or,
with a bias, _WITH_BIAS.
"""

from __future__ import annotations

import torch

from ...lazy_dataclass import dataclass
from ...symbols.size import Dimension, Size, may_assume
from ..config import AttentionConfig
from ..kernel import TileBlock
from ..kernel_values import next_power
from ..plan import Config
from ..triton.tile import FAR
from .kernel import AttentionKernel

__all__ = ["AttentionTile", "attention_candidates", "is_wide", "power", "tile_of"]

_LEAST = 16  # side of the smallest product of tl.dot
_SHARED = 220 << 10  # bytes of shared memory of a program; sm_90 has 227 KiB


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """The blocks of one program."""

    own: TileBlock
    visited: TileBlock
    warps: int
    stages: int


# kind -> (rows, columns, warps, stages) for heads of at most 64, and wider ones: the best of 16 on
# an H200, in bf16, causal with ALiBi slopes, 4096 tokens.
_DEFAULTS = {
    "forward": ((64, 128, 4, 2), (128, 64, 4, 2)),
    "query": ((64, 64, 4, 2), (64, 64, 4, 2)),
    "keys": ((128, 64, 4, 2), (64, 64, 4, 2)),
}
# The same for kernels that read a tile of a bias: the best of 24 there, 2048 tokens. A third stage
# loads the next bias early: 275 us in place of 327 (forward, heads of 64). The gradient of a bias
# with wider heads was not measured.
_WITH_BIAS = {
    "forward": ((64, 64, 4, 3), (128, 64, 8, 3)),
    "query": ((64, 64, 4, 3), (64, 64, 4, 2)),
    "keys": ((64, 64, 4, 3), (64, 64, 4, 2)),
    "bias": ((64, 64, 4, 2), (64, 64, 4, 2)),
}


def tile_of(kernel: AttentionKernel, config: AttentionConfig) -> AttentionTile:
    """Choose the blocks; those of a block mask are whole multiples of them."""
    query, value = kernel.buffers["query"], kernel.buffers["value"]
    width = max(int(query.shape[3]), int(value.shape[3]))
    table = _WITH_BIAS if kernel.reads_pairs or kernel.kind == "bias" else _DEFAULTS
    rows, columns, warps, stages = table[kernel.kind][width > 64]
    if width > 128 or query.dtype is torch.float32:
        rows, columns, stages = min(rows, 64), min(columns, 32 if width > 64 else 64), 2
    rows, columns = config.rows or rows, config.columns or columns
    if kernel.has_blocks:
        rows, columns = (min(n, size) for n, size in
                         zip((rows, columns), kernel.block_size, strict=True))  # fmt: skip
    _, _, i, j = kernel.axes
    length, keys = kernel.extents[2:]
    groups = kernel.block_size if kernel.has_blocks else (1, 1)
    blocks = [
        TileBlock("i", (i,), length, _shortened(rows, length), group=groups[0]),
        TileBlock("j", (j,), keys, _shortened(columns, keys), group=groups[1]),
    ]
    own, visited = reversed(blocks) if kernel.kind == "keys" else blocks
    return AttentionTile(own, visited, config.warps or warps, config.stages or stages)


def _shortened(size: int, extent: Dimension) -> int:
    return size if isinstance(extent, Size) else max(_LEAST, min(size, power(extent)))


def power(size: int) -> int:
    """Return the power of two that is not less, at least the smallest tile."""
    return max(_LEAST, next_power(size))


def is_wide(kernel: AttentionKernel) -> bool:
    """Return whether offsets into captured tensors need 64 bits."""
    captured = [b for role, b in kernel.buffers.items() if role.startswith("captured")]
    for buffer in captured:
        far = [(n - 1) * step for n, step in zip(buffer.shape, buffer.stride, strict=True)]
        extent = sum(far[1:], far[0]) if far else 0
        if not (may_assume("<", extent, FAR) if isinstance(extent, Size) else extent < FAR):
            return True
    return False


def attention_candidates(kernel: AttentionKernel) -> tuple[Config, ...]:
    """Return the configs worth measuring."""
    sizes = [(128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128)]
    made = [
        AttentionConfig(rows, columns, warps, stages)
        for rows, columns in sizes
        for warps in (4, 8)
        for stages in (2, 3)
    ]
    return tuple(config for config in made if _fits(kernel, config))


def _fits(kernel: AttentionKernel, config: AttentionConfig) -> bool:
    """Return whether the tiles fit into the shared memory of one processor."""
    return _shared_bytes(kernel, config) <= _SHARED


def _shared_bytes(kernel: AttentionKernel, config: AttentionConfig) -> int:
    query, value = kernel.buffers["query"], kernel.buffers["value"]
    widths = power(int(query.shape[3])) + power(int(value.shape[3]))
    own, visited = config.rows, config.columns
    if kernel.kind == "keys":
        own, visited = visited, own
    owned = own * (widths if kernel.kind != "forward" else widths // 2)
    return query.dtype.itemsize * (owned + visited * widths * config.stages)
