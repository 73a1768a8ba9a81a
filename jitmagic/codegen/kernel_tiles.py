"""Defines the statements of the kernel language for tiles of a GPU, beside those of kernel.py."""

from __future__ import annotations

from ..lazy_dataclass import dataclass
from ..loops.ir import Expr, Integer, Value
from .kernel_values import Statement, TileBlock, Total

__all__ = ["Barrier", "Dot", "Open", "Program", "Section", "WholeBlock"]


@dataclass(frozen=True, slots=True)
class Program(Statement):
    """Binds the outer axes: one program of the grid has a block of each, the last one fastest."""

    blocks: tuple[TileBlock, ...]


@dataclass(frozen=True, slots=True)
class Open(Statement):
    """Binds the axes of a block that begins at the position `start`, or where the block `beside`
    begins, whose points it has along another dimension of the tile. `is_whole`: all of its points
    are inside of the extent.
    """

    block: TileBlock
    start: Expr = Integer(0)
    is_whole: bool = False
    beside: TileBlock | None = None


@dataclass(frozen=True, slots=True)
class Dot(Statement):
    """Adds the product of two matrices: a over `left`, rows and terms, b over `right`, terms and
    columns. The total is over the rows and `across`. Either the terms of b are the same points as
    those of a along the other dimension of the tile, or its columns those of `across`.
    """

    total: Total
    a: Value
    b: Value
    left: tuple[TileBlock, TileBlock]
    right: tuple[TileBlock, TileBlock]
    across: TileBlock


@dataclass(frozen=True, slots=True)
class Section(Statement):
    """Names the memory of a buffer from an element on, which may be far: its offset has 64 bits.
    Elements are loaded and stored as those of buffers; the offsets of a tile's points from its
    first one fit into 32 bits.
    """

    name: str
    buffer: str
    offset: Expr


@dataclass(frozen=True, slots=True)
class Barrier(Statement):
    pass


@dataclass(frozen=True, slots=True)
class WholeBlock(Statement):
    """Compiles the body once more for the case that all points of the block are inside."""

    block: TileBlock
    body: tuple[Statement, ...]
