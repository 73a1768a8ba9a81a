"""Prints values as Triton expressions.

In: values of the linear form, the Tile of a program. Out: text. Values broadcast, as offsets do
(offsets.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from ...loops.expr import (
    Axis,
    Expr,
    Integer,
    coefficient,
)
from ...loops.ir import Cast, Compute, Constant, IndexValue, Load, Value
from ...operators.scalar import SCALARS
from ...symbols.size import hint_of, upper_bound
from ..kernel import (
    Approximate,
    Fold,
    Inside,
    Key,
    LaneCount,
    OfKey,
    Ordered,
    Prefix,
    Result,
    Total,
    Var,
)
from .addresses import TileAddresses
from .draws import draw_text
from .ops import (
    INFIX,
    WIDE,
    cast_text,
    compute_text,
    helpers_of,
    is_call,
    is_open,
    literal,
    plain_number,
    typed,
)
from .tile import Tile

__all__ = ["TritonExpressions"]


class TritonExpressions(TileAddresses):
    """Prints expressions of one kernel. `by_value`: buffers that are CPU scalars, passed as
    numbers.
    """

    def __init__(self, tile: Tile, names: Mapping[str, str], by_value: Iterable[str] = ()) -> None:
        super().__init__(tile, names)
        self.by_value = frozenset(by_value)
        self.is_half = False  # all results have 16 bits
        self.folded: set[Var] = set()  # sums over a block
        self.fills_tile = False  # the value that is written is an operand of one that does

    def named(self, node: Value) -> str:
        """Return a variable that holds the value."""
        text = self.value(node)
        match node:
            case Var() | Result(Total(lost=None, at=None, var=Var(dtype=node.dtype))):
                return text
        return self.name_of(text)

    def result(self, total: Total) -> str:
        """Return what was accumulated. A rounding error is NaN if the sum is infinite."""
        if total.lost is None:
            return total.var.name
        held = total.var.name
        whole = self.name_of(f"{held} + {total.lost.name}")
        return f"tl.where({whole} == {whole}, {whole}, {held})"

    # -- axes ------------------------------------------------------------------------------------

    def axes_of(self, node: Value) -> frozenset[Axis]:
        """Return the axes along which an expression varies."""
        match node:
            case Var():
                return self.axes.get(node, frozenset())
            case Load(index=(offset,), mask=mask):
                over = self.axes_in(offset)
                return over if mask is None else over | self.axes_of(mask)
            case IndexValue(expr):
                return self.axes_in(expr)
            case Inside(value, block) | Prefix(_, value, block):
                return self.axes_of(value) | frozenset(block.axes)
            case Ordered(keys, block, places):
                rows = self.axes_of(keys) - frozenset(block.axes)
                return rows | frozenset(places.axes)
            case Fold(_, value, block):
                return self.axes_of(value) - frozenset(block.axes)
            case Result(total):
                return frozenset(total.tile)
            case LaneCount(block):
                return frozenset(block.axes if block.ragged else ())
        return frozenset().union(*map(self.axes_of, node.operands))

    # -- values ----------------------------------------------------------------------------------

    def value(self, node: Value) -> str:
        """Return the expression of a value."""
        outside = self.fills_tile
        self.fills_tile = outside or self.varies_everywhere(node)
        text = self.text_of(node)
        self.fills_tile = outside
        return text

    def varies_everywhere(self, node: Value) -> bool:
        """Return whether a value of a tile of rows varies along and across them."""
        if not self.tile.along_rows or self.tile.rank < 2 or not isinstance(node, Compute):
            return False
        return self.blocks_over(self.axes_of(node)).issuperset(self.tile.spread)

    def text_of(self, node: Value) -> str:
        match node:
            case Compute("philox"):
                return draw_text(self, node)
            case Compute(dtype=torch.float32) if text := self.approximate(node):
                return text
            case Var(name):
                return name
            case Constant(value, dtype):
                return typed(value, dtype)
            case Load():
                return self.load(node)
            case Cast(value, dtype):
                return cast_text(self.closed(value), value.dtype, dtype)
            case Compute(op, args, dtype):
                self.helpers.update(helpers_of(op, args[-1].dtype))
                return compute_text(op, self.operands(node), dtype, args[-1].dtype)
            case IndexValue(expr, dtype):
                if isinstance(expr, Integer):
                    return typed(expr.value, dtype)
                return cast_text(self.closed_index(expr), torch.int32, dtype)
            case Inside(value, block, fill, dtype):
                mask = self.scope.masks.get(block)
                if mask is None:  # in a WholeBlock
                    return self.value(value)
                return f"tl.where({mask}, {self.value(value)}, {typed(fill, dtype)})"
            case Key(value, position, op):
                kind = "float" if value.dtype.is_floating_point else "integer"
                held = WIDE.get(value.dtype, value.dtype)
                texts = cast_text(self.closed(value), value.dtype, held), self.value(position)
                return f"{self.helper(f'key_of_{kind}')}({', '.join(texts)}, {op == 'ascending'})"
            case OfKey(key, op, part, dtype):
                if part == "position":
                    return f"{self.helper('position_of_key')}({self.value(key)})"
                held = WIDE.get(dtype, dtype)
                kind = "float" if dtype.is_floating_point else "integer"
                name = self.helper(f"{kind}_of_key")
                text = f"{name}({self.value(key)}, {op == 'ascending'})"
                return cast_text(text, held, dtype)
            case LaneCount(block, dtype):
                steps = upper_bound(block.count)
                if not block.ragged:
                    return typed(steps, dtype)
                takes_all = f"{self.positions(block)} < {hint_of(block.extent % block.size)}"
                return f"tl.where({takes_all}, {typed(steps, dtype)}, {typed(steps - 1, dtype)})"
            case Result(total, dtype):
                if total.at is not None:
                    return f"{total.at.name}.to(tl.int64)"
                text, held = self.result(total), total.var.dtype
                if dtype == held:
                    return text
                return cast_text(text if total.lost is None else self.name_of(text), held, dtype)
        raise TypeError(f"no Triton for {type(node).__name__}")

    def approximate(self, node: Compute) -> str | None:
        """Return a cheaper expression, or None. Its error is about 2e-7, where eager's is 1e-7 and
        that of rounding a result to 16 bits at least 5e-4.
        """
        match node:
            case Approximate("exp2", (x,)):
                return f"{self.helper('flushed_exp2')}({self.value(x)})"
            case Approximate("truediv", (a, b)):
                return f"tl.fdiv({self.value(a)}, {self.value(b)})"
            case Compute() if not self.is_half:
                return None
            case Compute("add", (Compute("erf", (x,)), Constant(1.0))):
                return f"{self.helper('erf_plus_one')}({self.value(x)})"
            case Compute("exp", (x,)):
                return f"tl.exp({self.value(x)})"
            case Compute("truediv", (x, Var() as total)) if total in self.folded:
                return f"({self.closed(x)} / {total.name})"
        return None

    def closed(self, node: Value) -> str:
        """Return the expression, in brackets if an adjacent operator or method could bind to a part
        of it.
        """
        return f"({self.value(node)})" if self.is_open(node) else self.value(node)

    def is_open(self, node: Value) -> bool:
        match node:
            case Compute(op, args, dtype):
                return is_open(op, dtype, args[-1].dtype)
            case Inside(value, block):
                return block not in self.scope.masks and self.is_open(value)
            case Result(total, dtype):
                return dtype == torch.bool and total.var.dtype != dtype
        return isinstance(node, (Cast, OfKey)) and node.dtype == torch.bool

    def operands(self, node: Compute) -> list[str]:
        numbers = [isinstance(arg, Constant) for arg in node.args]
        chooses = SCALARS[node.op].conditional
        tensor = not all(numbers[1:] if chooses else numbers)
        # Triton gives a plain number the dtype of a tensor operand; without one it would be an
        # int32 or a float32.
        plain = (node.op in INFIX or chooses) and tensor
        write = literal if plain else typed
        value = self.value if is_call(node.op, node.args[-1].dtype) else self.closed
        return [
            write(arg.value, arg.dtype) if isinstance(arg, Constant) else value(arg)
            for arg in node.args
        ]

    def load(self, node: Load) -> str:
        (offset,), name = node.index, self.names[node.buffer]
        if node.buffer in self.by_value:
            if node.mask is None:
                return name
            return f"tl.where({self.value(node.mask)}, {name}, {_fill(node)})"
        axes, pointer = self.axes_in(offset), self.pointer(node.buffer, offset)
        masks = self.masks(axes)
        if node.mask is not None:
            masks.append(self.closed(node.mask))
            # tl.load requires pointers of at least the shape of their mask.
            wide = self.shape(self.blocks_over(axes | self.axes_of(node.mask)))
            if wide != self.shape(self.blocks_over(axes)):
                pointer = f"{name} + {self.spread_index(offset, wide, 'tl.int32')}"
        if self.fills_tile and self.is_row(offset, axes):
            # All rows load it, as they load their own elements: Triton would bring the elements of
            # a few rows, which it spreads over threads otherwise, to the layout of the one row.
            shape = self.shape({*self.blocks_over(axes), *self.tile.spread})
            pointer = f"{name} + {self.spread_index(offset, shape, 'tl.int32')}"
        if not masks:
            return f"tl.load({pointer})"
        return f"tl.load({pointer}, mask={' & '.join(masks)}, other={_fill(node)})"

    def is_row(self, offset: Expr, axes: frozenset[Axis]) -> bool:
        """Return whether neighbouring elements are loaded, the same for all rows of the tile."""
        blocks = self.blocks_over(axes)
        inner = [block for block in self.tile.inner.values() if block in blocks]
        return len(blocks) == len(inner) == 1 and coefficient(offset, inner[0].axes[-1]) == 1


def _fill(node: Load) -> str:
    """Return the value of a masked-off load."""
    # Triton reads a plain number as a float32, and casts no int to a float of eight bits.
    if isinstance(node.fill, int):
        is_small = node.dtype.is_floating_point and node.dtype.itemsize == 1
        return repr(float(node.fill) if is_small else node.fill)
    if node.dtype == torch.float64 and node.fill:
        return typed(node.fill, node.dtype)
    return plain_number(node.fill, torch.float64)
