"""Prints offsets as Triton expressions, and the shapes, positions and masks of tiles.

In: offsets of the linear form, the Tile of a program. Out: text. Every index vector has the full
rank of the tile (size 1 in dimensions that it does not depend on), so that values broadcast; a
block of size 1 is a scalar.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from ...loops.expr import (
    Apply,
    Axis,
    AxisVar,
    Expr,
    Integer,
    axes_of,
    is_never_negative,
    linear,
)
from ...loops.ir import Value
from ...symbols.size import Dimension, Size
from ..kernel import TileBlock, Var
from ..kernel_values import variables_in
from ..loop_form import position_in
from ..text import OffsetText, terms_text
from .tile import Tile

__all__ = ["Scope", "TileOffsets"]

_SIZE_OPS = {"min": "tl.minimum", "max": "tl.maximum"}


class Scope:
    """Holds the names of masks, positions and first positions of the blocks that are open."""

    def __init__(self, outside: Scope | None = None) -> None:
        self.masks: dict[TileBlock, str] = {} if outside is None else dict(outside.masks)
        self.flat: dict[TileBlock, str] = {} if outside is None else dict(outside.flat)
        self.starts: dict[TileBlock, str] = {} if outside is None else dict(outside.starts)

    def inside(self) -> Scope:
        return Scope(self)


class TileOffsets(OffsetText):
    """Prints offsets of one kernel. `scope`: the blocks that are open; `axes`: those along which
    variables vary; `helpers`: the device functions that are called.
    """

    def __init__(self, tile: Tile) -> None:
        self.tile = tile
        self.all_blocks = tile.blocks
        self.scope = Scope()
        self.helpers: set[str] = set()
        self.axes: dict[Var, frozenset[Axis]] = {}
        self._positions = {
            b: linear(position_in(b.axes))[1] for b in self.all_blocks if len(b.axes) > 1
        }
        self._home = {axis: block for block in self.all_blocks for axis in block.axes}

    @property
    def position_dtype(self) -> str:
        return "tl.int64" if self.tile.wide else "tl.int32"

    def helper(self, name: str) -> str:
        self.helpers.add(name)
        return name

    # -- memory ----------------------------------------------------------------------------------

    @abstractmethod
    def name_of(self, code: str) -> str:
        """Return a variable that holds the expression, computed here."""

    @abstractmethod
    def value(self, node: Value) -> str:
        """Return the expression of a value."""

    @abstractmethod
    def axes_of(self, node: Value) -> frozenset[Axis]:
        """Return the axes along which an expression varies."""

    # -- shapes ----------------------------------------------------------------------------------

    def dimension(self, block: TileBlock) -> int:
        """Return the block's dimension in the tile."""
        return self.tile.dimension(block)

    def positions(self, block: TileBlock) -> str:
        """Return 0 .. size-1 along the block's dimension; "" for a scalar."""
        if block.size == 1:
            return ""
        wide = ".to(tl.int64)" if self.tile.wide and block not in self.tile.outer else ""
        return self.lanes(block) + wide

    def lanes(self, block: TileBlock) -> str:
        """Return the positions of a block of several points in 32 bits."""
        text = f"tl.arange(0, {block.size})"
        if self.tile.rank > 1:
            mine = self.dimension(block)
            spots = (":" if d == mine else "None" for d in range(self.tile.rank))
            text += f"[{', '.join(spots)}]"
        return text

    def bind(self, axis: Axis, block: TileBlock) -> None:
        """Let the variable of that name hold positions of a block."""
        self._home[axis] = block

    def blocks_over(self, axes: Iterable[Axis]) -> set[TileBlock]:
        return {self._home[axis] for axis in axes if axis in self._home}

    def ordered(self, blocks: set[TileBlock]) -> list[TileBlock]:
        return [block for block in self.all_blocks if block in blocks]

    def masks(self, axes: Iterable[Axis]) -> list[str]:
        """Return the masks of the blocks over these axes, which say what is inside."""
        blocks = self.ordered(self.blocks_over(axes))
        return [self.scope.masks[block] for block in blocks if block in self.scope.masks]

    def shape(self, blocks: Iterable[TileBlock]) -> str:
        """Return the shape of a value that varies along these blocks; [] for a scalar."""
        sizes = {self.dimension(block): block.size for block in blocks if block.size > 1}
        if not sizes:
            return "[]"
        return f"[{', '.join(str(sizes.get(d, 1)) for d in range(self.tile.rank))}]"

    def spread(self, text: str, blocks: Iterable[TileBlock]) -> str:
        return f"tl.broadcast_to({text}, {self.shape(blocks)})"

    def axes_in(self, expr: Expr) -> frozenset[Axis]:
        return axes_of(expr).union(*map(self.axes_of, variables_in(expr)))

    # -- indexes ---------------------------------------------------------------------------------

    def size_text(self, size: Dimension) -> str:
        """Return an extent or a stride, in parentheses if it is an expression."""
        return self.closed_index(size.expr) if isinstance(size, Size) else str(size)

    def spread_index(self, expr: Expr, shape: str, dtype: str) -> str:
        """Broadcast an index to that shape; Triton broadcasts only tensors, not plain integers."""
        text = self.index(expr)
        if isinstance(expr, Integer):
            return f"tl.full({shape}, {text}, {dtype})"
        return f"tl.broadcast_to({text}, {shape})"

    def index(self, expr: Expr) -> str:
        """Return the expression in integer arithmetic; axes are variables of their own name."""
        return self.sum(expr)[0]

    def closed_index(self, expr: Expr) -> str:
        """Return the expression, in brackets if it has an operator."""
        text, is_open = self.sum(expr)
        return f"({text})" if is_open else text

    def sum(self, expr: Expr) -> tuple[str, bool]:
        """Return the text of an expression, and whether it has an operator outside of brackets."""
        constant, terms = linear(expr)
        is_open = constant < 0
        parts = []
        for block, digits in self._positions.items():
            # Triton cannot see that the digits of a position add up to the position, and would load
            # elements one by one.
            factor = terms.get(AxisVar(block.axes[-1]), 0)
            if factor and all(terms.get(atom) == factor * n for atom, n in digits.items()):
                flat = self.scope.flat[block]
                parts.append(flat if factor == 1 else f"{flat} * {factor}")
                is_open |= factor != 1
                terms = {atom: n for atom, n in terms.items() if atom not in digits}
        for block, flat in self.scope.flat.items():
            # Triton sees that this sum is aligned, and not that its two parts together are.
            if (rest := _beyond(block, constant, terms)) is not None:
                return terms_text([f"{flat}_at"], {}, rest, self.atom), rest != 0
        is_open |= len(parts) + len(terms) + bool(constant) > 1
        is_open |= any(n != 1 or (isinstance(a, Apply) and a.op == "*") for a, n in terms.items())
        return terms_text(parts, terms, constant, self.atom), is_open

    def divided(self, sign: str, a: Expr, b: int) -> str:
        return self.rounded_down(sign, a, str(b))

    def rounded_down(self, sign: str, a: Expr, divisor: str) -> str:
        """Return a division that rounds down, which Triton's operators do only for non-negative
        operands.
        """
        if is_never_negative(a):
            return f"({self.closed_index(a)} {sign} {divisor})"
        name = {"//": "floor_divide_integer", "%": "remainder_integer"}[sign]
        return f"{self.helper(name)}({self.index(a)}, {divisor})"

    def sized(self, expr: Apply) -> str:
        op, args = expr.op, expr.args
        if op in ("//", "%"):
            return self.rounded_down(op, args[0], self.closed_index(args[1]))
        texts = [self.closed_index(part) for part in args]
        return " * ".join(texts) if op == "*" else f"{_SIZE_OPS[op]}({', '.join(texts)})"


def _beyond(block: TileBlock, constant: int, terms: Mapping[Any, int]) -> int | None:
    """Return the elements between the points of an aligned block and the accessed ones, if it is
    the same aligned number for all points.
    """
    if block.row is None:
        return None
    first, row = linear(block.row)
    (axis,) = block.axes
    is_along = terms == {**row, AxisVar(axis): 1}
    return constant - first if is_along and (constant - first) % block.unit == 0 else None
