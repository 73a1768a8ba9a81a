"""Prints values and offsets as Triton expressions.

In: values of the linear form, the Tile of a program. Out: text. Every index vector has the full
rank of the tile (size 1 in dimensions that it does not depend on), so that values broadcast; a
block of size 1 is a scalar.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ...loops.expr import (
    Apply,
    Axis,
    AxisVar,
    Expr,
    Integer,
    axes_of,
    is_never_negative,
    leaves,
    linear,
)
from ...loops.ir import Cast, Compute, Constant, IndexValue, Load, Value
from ...operators.scalar import SCALARS
from ...symbols.size import Dimension, Size, hint_of, upper_bound
from ..kernel import (
    Fold,
    Inside,
    Key,
    LaneCount,
    OfKey,
    Ordered,
    Prefix,
    Result,
    TileBlock,
    Total,
    Var,
    VarIndex,
)
from ..loop_form import position_in
from ..text import OffsetText, terms_text
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

__all__ = ["Scope", "TritonExpressions"]

_SIZE_OPS = {"min": "tl.minimum", "max": "tl.maximum"}


class Scope:
    """Holds the names of masks, positions and first positions of the blocks that are open."""

    def __init__(self, outside: Scope | None = None) -> None:
        self.masks: dict[TileBlock, str] = {} if outside is None else dict(outside.masks)
        self.flat: dict[TileBlock, str] = {} if outside is None else dict(outside.flat)
        self.starts: dict[TileBlock, str] = {} if outside is None else dict(outside.starts)

    def inside(self) -> Scope:
        return Scope(self)


class TritonExpressions(OffsetText):
    """Prints expressions of one kernel. `by_value`: buffers that are CPU scalars, passed as
    numbers; `scope`: the blocks that are open; `helpers`: the device functions that are called.
    """

    def __init__(self, tile: Tile, names: Mapping[str, str], by_value: Iterable[str] = ()) -> None:
        self.tile, self.names = tile, names
        self.by_value = frozenset(by_value)
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

    @abstractmethod
    def name_of(self, code: str) -> str:
        """Return a variable that holds the expression, computed here."""

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

    # -- shapes ----------------------------------------------------------------------------------

    def dimension(self, block: TileBlock) -> int:
        """Return the block's dimension in the tile."""
        return self.tile.dimension(block)

    def positions(self, block: TileBlock) -> str:
        """Return 0 .. size-1 along the block's dimension; "" for a scalar."""
        if block.size == 1:
            return ""
        wide = ".to(tl.int64)" if self.tile.wide and block not in self.tile.outer else ""
        text = f"tl.arange(0, {block.size})"
        if self.tile.rank > 1:
            mine = self.dimension(block)
            spots = (":" if d == mine else "None" for d in range(self.tile.rank))
            text += f"[{', '.join(spots)}]"
        return text + wide

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

    def axes_in(self, expr: Expr) -> frozenset[Axis]:
        through = (leaf.var for leaf in leaves(expr) if isinstance(leaf, VarIndex))
        return axes_of(expr).union(*map(self.axes_of, through))

    # -- values ----------------------------------------------------------------------------------

    def value(self, node: Value) -> str:
        """Return the expression of a value."""
        match node:
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
                all_ = f"{self.positions(block)} < {hint_of(block.extent % block.size)}"
                return f"tl.where({all_}, {typed(steps, dtype)}, {typed(steps - 1, dtype)})"
            case Result(total, dtype):
                if total.at is not None:
                    return f"{total.at.name}.to(tl.int64)"
                text, held = self.result(total), total.var.dtype
                if dtype == held:
                    return text
                return cast_text(text if total.lost is None else self.name_of(text), held, dtype)
        raise TypeError(f"no Triton for {type(node).__name__}")

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

    def helper(self, name: str) -> str:
        self.helpers.add(name)
        return name

    # -- memory ----------------------------------------------------------------------------------

    def load(self, node: Load) -> str:
        (offset,), name = node.index, self.names[node.buffer]
        if node.buffer in self.by_value:
            if node.mask is None:
                return name
            return f"tl.where({self.value(node.mask)}, {name}, {_fill(node)})"
        axes, at, is_first = self.axes_in(offset), self.index(offset), offset == Integer(0)
        masks = self.masks(axes)
        if node.mask is not None:
            masks.append(self.closed(node.mask))
            # tl.load requires pointers of at least the shape of their mask.
            wide = self.shape(self.blocks_over(axes | self.axes_of(node.mask)))
            if wide != self.shape(self.blocks_over(axes)):
                at = self.spread_index(offset, wide, "tl.int32")
                is_first = False
        pointer = name if is_first else f"{name} + {at}"
        if not masks:
            return f"tl.load({pointer})"
        return f"tl.load({pointer}, mask={' & '.join(masks)}, other={_fill(node)})"

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


def _fill(node: Load) -> str:
    """Return the value of a masked-off load."""
    # Triton reads a plain number as a float32, and casts no int to a float of eight bits.
    if isinstance(node.fill, int):
        is_small = node.dtype.is_floating_point and node.dtype.itemsize == 1
        return repr(float(node.fill) if is_small else node.fill)
    if node.dtype == torch.float64 and node.fill:
        return typed(node.fill, node.dtype)
    return plain_number(node.fill, torch.float64)
