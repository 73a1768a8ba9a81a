"""Writes values as Triton expressions: named if they are shared, hoisted out of loops that they do
not depend on.

In: nodes of a Structure and the stack of open scopes. Out: text, placed as scoped_text.py says. A
run-time index that is out of range fails a device assertion, as eager's CUDA kernels do: the error
surfaces at the next synchronisation. Lanes outside the extents are exempt.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch

from ...lazy_dataclass import dataclass, field
from ...loops.expr import (
    Add,
    Apply,
    Axis,
    AxisVar,
    Expr,
    FloorDiv,
    Integer,
    Mod,
    Symbol,
    ValueIndex,
    add,
    is_never_negative,
    linear,
)
from ...loops.free_axes import value_axes
from ...loops.ir import (
    Buffer,
    Cast,
    Compute,
    Constant,
    IndexValue,
    Load,
    Reduction,
    Value,
    walk,
)
from ...operators.scalar import SCALARS
from ...schedule.substitution import expr_axes
from ...symbols.polynomial import product
from ...symbols.size import Dimension, Size, expr_of, is_same
from ..loop_structure import Structure, by_value
from ..scoped_text import Scope, ScopedText, Text
from ..text import terms_text
from .ops import (
    INFIX,
    cast_text,
    closed,
    compute_text,
    literal,
    plain_number,
    spread,
    typed,
)
from .tile import Tile, TileBlock

__all__ = ["TritonScope", "TritonValues"]

LONGEST = 80  # characters of an expression that needs no name
_SIZE_OPS = {"min": "tl.minimum", "max": "tl.maximum"}


@dataclass(slots=True)
class TritonScope(Scope):
    """Represents one open block of lines, with the masks and positions of blocks in it."""

    masks: dict[TileBlock, str] = field(default_factory=dict)
    flat: dict[TileBlock, str] = field(default_factory=dict)


class TritonValues(ScopedText[TritonScope]):
    """Writes values into scopes; the subclass decides which scopes there are."""

    scope_type = TritonScope

    def __init__(
        self, kernel: Structure, tile: Tile, names: Mapping[str, str], buffers: Mapping[str, Buffer]
    ) -> None:
        super().__init__(kernel, names, buffers)
        self.tile = tile
        self.all_blocks = (*tile.outer, *tile.inner.values())
        self._by_value = {kernel.arguments[index] for index in by_value(kernel, buffers)}
        self._positions = {b: _position_of(b) for b in self.all_blocks if len(b.axes) > 1}
        self._home = {axis: block for block in self.all_blocks for axis in block.axes}
        self._uses = Counter(part for node in kernel.free for part in node.operands)
        self._uses.update(root for part in kernel.passes for root in part.roots)

    def learn(self, value: Value) -> None:
        """Add facts about values that are not in the structure."""
        nodes = walk((value,))
        self.free |= value_axes(nodes)
        self._uses.update(part for node in nodes for part in node.operands)

    @abstractmethod
    def nested(self, node: Reduction, depth: int) -> None:
        """Compute a reduction that is inside a pass, in the scope at `depth`."""

    # -- scopes ----------------------------------------------------------------------------------

    def bind(self, axes: Iterable[Axis]) -> None:
        self.scopes[-1].bound |= frozenset(axes)

    def mask_of(self, block: TileBlock) -> str:
        """Return the name of the block's mask, or "" when all of it is inside the extent."""
        return next((scope.masks[block] for scope in self.scopes if block in scope.masks), "")

    # -- shapes ----------------------------------------------------------------------------------

    def dimension(self, block: TileBlock) -> int:
        """Return the block's dimension in the tile."""
        spread = self.tile.spread
        return spread.index(block) if block in spread else len(spread)

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

    def blocks_of(self, value: Value) -> set[TileBlock]:
        """Return the blocks along which a value varies."""
        return self.blocks_over(self.free[value])

    def blocks_over(self, axes: Iterable[Axis]) -> set[TileBlock]:
        return {self._home[axis] for axis in axes if axis in self._home}

    def ordered(self, blocks: set[TileBlock]) -> list[TileBlock]:
        return [block for block in self.all_blocks if block in blocks]

    def shape(self, blocks: Iterable[TileBlock]) -> str:
        """Return the shape of a value that varies along these blocks; [] for a scalar."""
        sizes = {self.dimension(block): block.size for block in blocks if block.size > 1}
        if not sizes:
            return "[]"
        return f"[{', '.join(str(sizes.get(d, 1)) for d in range(self.tile.rank))}]"

    # -- values ----------------------------------------------------------------------------------

    def use(self, value: Value) -> str:
        """Return text of the value for the innermost scope."""
        return self.reach(value, self.depth).code

    def name_of(self, code: str) -> str:
        """Return a variable that holds the expression, computed here."""
        if code.isidentifier() or code.startswith("tl.full([]"):
            return code
        name = self.name()
        self.line(f"{name} = {code}")
        return name

    def needs_name(self, value: Value, text: Text) -> bool:
        return self._uses[value] > 1 or len(text.code) > LONGEST

    def constant(self, node: Constant) -> str:
        return typed(node.value, node.dtype)

    def parts(self, node: Value) -> tuple[Value, ...]:
        return () if isinstance(node, Reduction) else node.operands

    def enter(self, node: Value) -> None:
        if isinstance(node, Reduction):
            self.nested(node, self.home(self.free[node], node.operands))
        else:
            super().enter(node)

    def code_of(self, node: Value, depth: int) -> str:
        match node:
            case Load():
                return self._load(node, depth)
            case Cast(value=value, dtype=dtype):
                return cast_text(self.reach(value, depth).code, value.dtype, dtype)
            case Compute(op=op, args=args):
                return compute_text(op, self._operands(node, depth), node.dtype, args[-1].dtype)
            case IndexValue(expr=expr, dtype=dtype):
                text = self.index(expr, depth)
                if text.lstrip("-").isdigit():
                    return typed(int(text), dtype)
                return cast_text(text, torch.int32, dtype)
        raise TypeError(f"no Triton for {type(node).__name__} here")

    def _operands(self, node: Compute, depth: int) -> list[str]:
        numbers = [isinstance(arg, Constant) for arg in node.args]
        chooses = SCALARS[node.op].conditional
        tensor = not all(numbers[1:] if chooses else numbers)
        # Triton gives a plain number the dtype of a tensor operand; without one it would be an
        # int32 or a float32.
        plain = (node.op in INFIX or chooses) and tensor
        texts = []
        for arg in node.args:
            if isinstance(arg, Constant):
                make = literal if plain else typed
                texts.append(make(arg.value, arg.dtype))
            else:
                texts.append(self.reach(arg, depth).code)
        return texts

    # -- memory ----------------------------------------------------------------------------------

    def _load(self, node: Load, depth: int) -> str:
        if any(is_same(size, 0) for size in self.buffers[node.buffer].shape):
            return typed(node.fill, node.dtype)
        if node.buffer in self._by_value:
            return self._cpu_scalar(node, depth)
        axes = expr_axes(node.index[0])
        offset = self.index(node.index[0], depth)
        blocks = self.blocks_over(axes)
        masks = [mask for block in self.ordered(blocks) if (mask := self.mask_of(block))]
        if node.mask is not None:
            masks.append(closed(self.reach(node.mask, depth).code))
            offset = self._as_wide_as(offset, blocks, self.blocks_of(node.mask))
        pointer = (
            self.names[node.buffer] if offset == "0" else f"{self.names[node.buffer]} + {offset}"
        )
        if not masks:
            return f"tl.load({pointer})"
        return f"tl.load({pointer}, mask={' & '.join(masks)}, other={_fill(node)})"

    def _cpu_scalar(self, node: Load, depth: int) -> str:
        """Return a CPU scalar, which is a parameter passed by value."""
        name = self.names[node.buffer]
        if node.mask is None:
            return name
        return f"tl.where({self.reach(node.mask, depth).code}, {name}, {_fill(node)})"

    def _as_wide_as(self, offset: str, blocks: set[TileBlock], needed: set[TileBlock]) -> str:
        """Broadcast pointers to at least the shape of their mask, which tl.load requires."""
        shape = self.shape(blocks | needed)
        if shape == self.shape(blocks):
            return offset
        return spread(offset, shape)

    # -- indexes ---------------------------------------------------------------------------------

    def size_text(self, size: Dimension) -> str:
        """Return an extent or a stride, in parentheses if it is an expression."""
        return closed(self.index(size.expr)) if isinstance(size, Size) else str(size)

    def index(self, expr: Expr, depth: int | None = None) -> str:
        """Return the expression in integer arithmetic; axes are variables of their own name."""
        at = self.depth if depth is None else depth
        constant, terms = linear(expr)
        parts = []
        for block, digits in self._positions.items():
            # Triton cannot see that the digits of a position add up to the position, and would load
            # elements one by one.
            factor = terms.get(AxisVar(block.axes[-1]), 0)
            if factor and all(terms.get(atom) == factor * n for atom, n in digits.items()):
                flat = next(s.flat[block] for s in reversed(self.scopes) if block in s.flat)
                parts.append(flat if factor == 1 else f"{flat} * {factor}")
                terms = {atom: n for atom, n in terms.items() if atom not in digits}
        return terms_text(parts, terms, constant, lambda atom: self._atom(atom, at))

    def _atom(self, expr: Expr, depth: int) -> str:
        match expr:
            case AxisVar(axis):
                return axis.name
            case Symbol(name):
                return name
            case Apply(op, args):
                return self._sized(op, args, depth)
            case ValueIndex():
                return self._run_time(expr, depth)
            case FloorDiv(a, b):
                return self._divided("//", a, str(b), depth)
            case Mod(a, b):
                return self._divided("%", a, str(b), depth)
            case Integer() | Add():
                return f"({self.index(expr, depth)})"
        raise TypeError(f"not an index expression: {expr!r}")

    def _divided(self, sign: str, a: Expr, divisor: str, depth: int) -> str:
        """Return a division that rounds down, which Triton's operators do only for non-negative
        operands.
        """
        if is_never_negative(a):
            return f"({closed(self.index(a, depth))} {sign} {divisor})"
        name = {"//": "floor_divide_integer", "%": "remainder_integer"}[sign]
        return f"{name}({self.index(a, depth)}, {divisor})"

    def _sized(self, op: str, args: Sequence[Expr], depth: int) -> str:
        """Return arithmetic over dynamic sizes."""
        if op in ("//", "%"):
            return self._divided(op, args[0], closed(self.index(args[1], depth)), depth)
        texts = [closed(self.index(part, depth)) for part in args]
        if op == "*":
            return " * ".join(texts)
        return f"{_SIZE_OPS[op]}({', '.join(texts)})"

    def _run_time(self, expr: ValueIndex, depth: int) -> str:
        """Check a run-time index, counted from the end if it is negative."""
        self.write(expr.value)
        if (known := self.known(expr)) is not None:
            return known.code
        scope_at = self.home(self.free[expr.value], (expr.value,))
        raw_index, size = self.reach(expr.value, scope_at).code, self.size_text(expr.extent)
        name = self.name()
        inside = f"({name} >= -{size}) & ({name} < {size})"
        blocks = self.ordered(self.blocks_of(expr.value))
        outside = [f" | ~{mask}" for block in blocks if (mask := self.mask_of(block))]
        self.scopes[scope_at].lines += [
            f"{name} = {raw_index}",
            f'tl.device_assert({inside}{"".join(outside)}, "index out of range")',
        ]
        index = self.name()
        self.scopes[scope_at].lines.append(
            f"{index} = tl.where({name} < 0, {name} + {size}, {name})"
        )
        self.scopes[scope_at].texts[expr] = Text(index, scope_at, named=True)
        return index


def _position_of(block: TileBlock) -> Mapping[Expr, int]:
    """Return the terms of a point's row-major position."""
    position, below = Integer(0), Integer(1)  # type: Expr, Expr
    for axis in reversed(block.axes):
        position = add(position, product(AxisVar(axis), below))
        below = product(below, expr_of(axis.extent))
    return linear(position)[1]


def _fill(node: Load) -> str:
    """Return the value of a masked-off load."""
    # Triton reads a plain number as a float32, and casts no int to a float of eight bits.
    if isinstance(node.fill, int):
        is_small = node.dtype.is_floating_point and node.dtype.itemsize == 1
        return repr(float(node.fill) if is_small else node.fill)
    if node.dtype == torch.float64 and node.fill:
        return typed(node.fill, node.dtype)
    return plain_number(node.fill, torch.float64)
