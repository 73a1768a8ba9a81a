"""Writes random draws: four at a time where a tile holds the elements that share a draw.

In: a Compute of "philox" (operators/draws.py). Out: its expression, and the lines before it. Philox
takes about 100 instructions for four numbers; where neighbouring lanes have them, a tile of a
quarter of the size computes them.
"""

from __future__ import annotations

from typing import Any

from ...lazy_dataclass import replace
from ...loops.expr import Axis, AxisVar, Expr, add, linear, mul
from ...loops.ir import Compute, Constant, IndexValue
from ..kernel import TileBlock
from ..loop_form import position_in
from .offsets import TileOffsets

__all__ = ["draw_text"]

SHARED = 4  # numbers of one draw


def draw_text(text: TileOffsets, node: Compute) -> str:
    """Return the expression of the bits that are drawn, int64."""
    seed, offset, place, *numbers = node.args
    assert isinstance(place, IndexValue)
    facts = ", ".join(str(each.value) for each in numbers if isinstance(each, Constant))
    key = f"{text.value(seed)}, {text.value(offset)}"
    block = _block_of_runs(text, place.expr)
    if block is None:
        return f"{text.helper('philox_bits')}({key}, {text.index(place.expr)}, {facts})"
    at = text.index(_every_fourth(text, block, place.expr))
    shape = text.shape(text.blocks_over(text.axes_in(place.expr)))
    drawn = text.name_of(f"{text.helper('philox_run')}({key}, {at}, {facts})")
    return f"tl.reshape({drawn}, {shape}).to(tl.int64)"


def _block_of_runs(text: TileOffsets, place: Expr) -> TileBlock | None:
    """Return the block of the last dimension if its lanes are places one after the other, in fours
    that begin at multiples of four.
    """
    over = [block for block in text.blocks_over(text.axes_in(place)) if block.size > 1]
    last = [block for block in over if text.dimension(block) == text.tile.rank - 1]
    if len(last) != 1 or last[0].row is not None or last[0].size % SHARED:
        return None
    (block,) = last
    constant, terms = linear(place)
    along = linear(position_in(block.axes))[1]
    if any(terms.get(atom) != factor for atom, factor in along.items()):
        return None
    others = [factor for atom, factor in terms.items() if atom not in along]
    return None if any(factor % SHARED for factor in (constant, *others)) else block


def _every_fourth(text: TileOffsets, block: TileBlock, place: Expr) -> Expr:
    """Define the first places of the fours along a block, and return the place at them."""
    fours = TileBlock(f"{block.name}_fours", (), block.extent, block.size // SHARED)
    parts = text.scope.starts[block], f"{text.positions(fours)} * {SHARED}"
    extent: Any = block.extent  # a Size acts as an int
    axis = Axis(text.name_of(" + ".join(filter(None, parts))), extent)
    text.bind(axis, replace(fours, axes=(axis,)))
    return add(add(place, mul(position_in(block.axes), -1)), AxisVar(axis))
