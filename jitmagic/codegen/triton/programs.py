"""Prints where the blocks of a program begin, their positions and their masks.

In: the statements that open blocks, the Tile of a program. Out: lines, which printer.py completes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from ...loops.expr import AxisVar, Expr, Integer
from ...symbols.size import Dimension, is_same
from ..kernel import Statement, TileBlock, VarIndex
from .expressions import TritonExpressions
from .tile import Tile

__all__ = ["ProgramText"]


class ProgramText(TritonExpressions):
    """Prints the blocks of one kernel."""

    def __init__(self, tile: Tile, names: Mapping[str, str], by_value: Iterable[str] = ()) -> None:
        super().__init__(tile, names, by_value)
        self.lines_: list[str] = []
        self.indent = 0

    @abstractmethod
    def block(self, body: Iterable[Statement]) -> None:
        """Print statements."""

    def line(self, text: str) -> None:
        self.lines_.append(f"{'    ' * self.indent}{text}")

    def inside(self, head: str, body: Iterable[Statement]) -> None:
        self.line(head)
        outside, self.scope = self.scope, self.scope.inside()
        self.indent += 1
        self.block(body)
        self.indent -= 1
        self.scope = outside

    def program(self, blocks: Sequence[TileBlock]) -> None:
        """Define the blocks of this program, by its number."""
        before: list[int | str] = []
        pid = "tl.program_id(0)" + (".to(tl.int64)" if self.tile.wide else "")
        if len(blocks) > 1:
            self.line(f"pid = {pid}")
            pid = "pid"
        opened: list[tuple[TileBlock, str, int]] = []
        for number, block in reversed(list(enumerate(blocks))):
            start = pid if all(n == 1 for n in before) else f"{pid} // {_product(before)}"
            before.append(self.programs(block))
            if not all(other.single for other in blocks[:number]):
                start += f" % {before[-1]}"
            if block.size > 1 and not block.single:
                opened.append((block, start if start == pid else f"({start})", block.size))
            else:
                opened.append((block, start if block.size == 1 else "", 1))
        # Where an aligned block begins depends on the row.
        for block, start, factor in sorted(opened, key=lambda each: each[0].row is not None):
            self.open(block, start, factor)

    def programs(self, block: TileBlock) -> int | str:
        """Return the number of programs along a block."""
        if block.single or isinstance(block.count, int):
            return 1 if block.single else int(block.count)
        extent = self.size_text(block.reach)
        return extent if block.size == 1 else f"tl.cdiv({extent}, {block.size})"

    def first(self, block: TileBlock, start: Expr) -> str:
        """Return the position at which a block begins; "" if that is 0."""
        if start == Integer(0):
            return ""
        if isinstance(start, AxisVar | VarIndex) or block.size == 1:
            return self.closed_index(start)
        name = f"{block.name}_first"  # addresses repeat it
        self.line(f"{name} = {self.index(start)}")
        return name

    def open(self, block: TileBlock, origin: str, factor: int = 1, is_whole: bool = False) -> None:
        """Define the positions of a block, its mask and its axes."""
        points = self.positions(block)
        start = origin if factor == 1 else f"{origin} * {factor}"
        self.scope.starts[block] = start
        text = " + ".join(part for part in (start, points) if part)
        flat = block.axes[0].name if len(block.axes) == 1 else block.name
        if block.row is not None:
            self.open_aligned(block, flat, start, points, is_whole)
            return
        if block not in self.all_blocks:  # a point of a loop, whose variable is an int32
            text = f"{start or 0} + tl.full([], 0, {self.position_dtype})"
        self.line(f"{flat} = {text}")
        if block.ragged:
            self.line(f"{flat}_in = {flat} < {self.size_text(block.extent)}")
            self.scope.masks[block] = f"{flat}_in"
        self.scope.flat[block] = flat
        below: Dimension = 1
        for number, axis in reversed(list(enumerate(block.axes))):
            text = flat if is_same(below, 1) else f"{flat} // {self.size_text(below)}"
            if number:
                text += f" % {self.size_text(axis.extent)}"
            if text != axis.name:
                self.line(f"{axis.name} = {text}")
            below = below * axis.extent

    def open_aligned(
        self, block: TileBlock, flat: str, start: str, points: str, is_whole: bool
    ) -> None:
        """Define the positions of a block that begins where memory is aligned."""
        assert block.row is not None
        row, unit, extent = f"{flat}_row", block.unit, self.size_text(block.extent)
        self.line(f"{row} = {self.index(block.row)}")
        self.line(f"{flat}_at = {row} // {unit} * {unit} + {start} + {points}")
        self.line(f"{flat} = {flat}_at - {row}")
        self.scope.flat[block] = flat
        if is_whole:
            return
        self.line(f"{flat}_in = ({flat} >= 0) & ({flat} < {extent})")
        self.scope.masks[block] = f"{flat}_in"

    def whole_block(self, block: TileBlock, body: Sequence[Statement]) -> None:
        """Write the body without masks and with them."""
        flat = self.scope.flat[block]
        first = f"{flat}_first"
        self.line(f"{first} = {self.scope.starts[block]} - {flat}_row % {block.unit}")
        end = f"{first} + {block.size} <= {self.size_text(block.extent)}"
        mask = self.scope.masks.pop(block)
        self.inside(f"if ({first} >= 0) & ({end}):", body)
        self.scope.masks[block] = mask
        self.inside("else:", body)


def _product(counts: Sequence[int | str]) -> str:
    """Return the product of numbers and texts."""
    parts = [n for n in counts if isinstance(n, str)]
    known = prod(n for n in counts if isinstance(n, int))
    parts += [str(known)] if known != 1 or not parts else []
    text = " * ".join(parts)
    return f"({text})" if len(parts) > 1 else text
