"""Builds what the Triton kernels of flex_attention share: positions, loops over tiles, scores.

In: an AttentionKernel, its blocks. Out: statements of the loop form. A program owns a tile of
queries or keys and visits those of the others. Tiles are two-dimensional: what the program owns is
dimension 0, what it visits is dimension 1. An operand of a product may have the visited positions,
or the numbers of a row of query, key or value, along the other dimension: these are blocks of their
own. With a block mask a program visits only the blocks in its list, and evaluates the mask only in
those that are not full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from itertools import count

import torch

from ...lazy_dataclass import replace
from ...loops.expr import add, floordiv, mod, mul, position, quotient, remainder
from ...loops.free_axes import value_axes
from ...loops.ir import Axis, AxisVar, Compute, Expr, IndexValue, Integer, Load, Value, walk
from ...loops.values import cast, compute, where
from ...symbols.size import Dimension, expr_of, is_same
from ..kernel import (
    Dot,
    For,
    Let,
    Open,
    Program,
    Result,
    Section,
    Start,
    Statement,
    Store,
    TileBlock,
    Total,
    Var,
    VarIndex,
)
from ..triton.tile import Tile
from .kernel import MOST_POSITIONS, SCORE, TANGENT, AttentionKernel
from .tiles import AttentionTile, is_wide, power

__all__ = ["TileLoops", "TileStep", "place_in"]

TileStep = Callable[[bool], None]
"""Makes the statements of one visited tile, masked or not."""
_Sides = tuple[TileBlock, TileBlock]
_OF_KEYS = ("key", "value", "key_grad", "value_grad")


class TileLoops:
    """Builds the statements of one kernel. The axes `e` and `f` are the numbers of a row of query
    or key, and of value. `made`: the statements of the innermost block.
    """

    def __init__(self, kernel: AttentionKernel, tile: AttentionTile) -> None:
        self.kernel, self.chosen, self.wide = kernel, tile, is_wide(kernel)
        self.own, self.visited, self.turned = tile.own, tile.visited, _down(tile.visited)
        query, key, value = (kernel.buffers[role] for role in ("query", "key", "value"))
        self.e, self.f = (_row(n, int(b.shape[3])) for n, b in (("e", query), ("f", value)))
        self.e_down, self.f_down = _down(self.e), _down(self.f)
        self.groups = query.shape[1] // key.shape[1]
        self.is_grouped = not is_same(query.shape[1], key.shape[1])
        b, self.h, _, _ = kernel.axes
        heads: Dimension = (key if kernel.kind == "keys" else query).shape[1]
        owns_groups = kernel.kind == "keys" and self.is_grouped
        head = Axis("head", self.h.extent) if owns_groups else self.h
        self.b, self.head = _point(b, kernel.extents[0]), _point(head, heads)
        self.query_head = _point(self.h, kernel.extents[1])
        parts, number = kernel.extents[0] * heads, _tiles(tile.own)
        if kernel.kind == "bias":
            of_bias = kernel.buffers["bias_grad"].shape
            parts, number = of_bias[0] * of_bias[1], number * _tiles(tile.visited)
        self.part, self.number = _numbered("part", parts), _numbered("number", number)
        # Without a function the scale is part of the exponent's factor, which saves a product.
        self.is_folded = kernel.is_plain and kernel.scale > 0
        self.index_dtype = torch.int64 if self.wide else torch.int32
        self.made: list[Statement] = []
        self._count = count()

    def tile(self) -> Tile:
        """Return the tile of a program."""
        down = (self.own, self.turned, self.e_down, self.f_down)
        blocks = (self.own, self.visited, self.turned, self.e, self.f, self.e_down, self.f_down)
        return Tile(
            (self.part, self.number),
            {block.axes: block for block in blocks},
            self.chosen.warps,
            self.wide,
            self.chosen.stages,
            down,
        )

    def let(self, prefix: str, value: Value) -> Var:
        """Return a variable that holds a value, computed here."""
        var = self._new(prefix, value.dtype)
        self.made.append(Let(var, value))
        return var

    def _new(self, prefix: str, dtype: torch.dtype) -> Var:
        return Var(f"{prefix}{next(self._count)}", dtype)

    def _named(self, prefix: str, value: Value) -> Value:
        """Return a variable that holds what is computed, here."""
        return self.let(prefix, value) if isinstance(value, Compute) else value

    @contextmanager
    def loop(self, axis: Axis, stop: Expr | None = None) -> Iterator[Expr]:
        """Make the statements of a loop."""
        outside, self.made = self.made, []
        yield AxisVar(axis)
        outside.append(For((axis,), tuple(self.made), stop=stop))
        self.made = outside

    # -- positions -------------------------------------------------------------------------------

    def open_program(self) -> None:
        """Open the tile that a program owns, and its batch and head."""
        part, number = place_in(self.part), place_in(self.number)
        heads = expr_of(self.head.extent)
        self.made += [
            Program((self.part, self.number)),
            Open(self.b, quotient(part, heads)),
            Open(self.head, remainder(part, heads)),
        ]
        if self.own.name == "i":
            # Under a causal mask the last queries see most keys: long programs start first.
            last = self._index(add(expr_of(self.number.extent), Integer(-1)))
            turn = self.let("turn", compute("sub", last, self._index(number)))
            number = VarIndex(turn, MOST_POSITIONS)
        start = self.let("start", self._index(mul(number, self.own.size)))
        self.start = VarIndex(start, MOST_POSITIONS)
        self.made.append(Open(self.own, self.start))

    def open_pair(self) -> tuple[Expr, Expr]:
        """Open the tiles of queries and keys that a program of a bias owns. Return the batch and
        the head of the bias, which has one or all of them.
        """
        part, number = place_in(self.part), place_in(self.number)
        tiles = expr_of(_tiles(self.visited))
        self.made.append(Program((self.part, self.number)))
        for block, place in (
            (self.own, quotient(number, tiles)),
            (self.visited, remainder(number, tiles)),
        ):
            start = self.let("start", self._index(mul(place, block.size)))
            self.made.append(Open(block, VarIndex(start, MOST_POSITIONS)))
        self.made.append(Open(self.turned, beside=self.visited))
        heads = expr_of(self.kernel.buffers["bias_grad"].shape[1])
        return quotient(part, heads), remainder(part, heads)

    @contextmanager
    def sharing_heads(self, first: tuple[Expr, Expr]) -> Iterator[None]:
        """Make the statements of loops over the batches and heads that share a bias."""
        blocks, sizes = (self.b, self.head), self.kernel.buffers["bias_grad"].shape[:2]
        with ExitStack() as stack:
            for block, size, place in zip(blocks, sizes, first, strict=True):
                is_shared = not is_same(size, block.extent)
                loop = Axis(f"each_{block.name}", block.extent)  # type: ignore[arg-type]
                own = stack.enter_context(self.loop(loop)) if is_shared else place
                self.made.append(Open(block, own))
            yield

    def _index(self, expr: Expr) -> Value:
        return IndexValue(expr, self.index_dtype)

    # -- memory ----------------------------------------------------------------------------------

    def open_rows(self, *roles: str) -> None:
        """Name the memory of a head's rows."""
        for role in roles:
            head: Expr = AxisVar(self.h)
            if role in _OF_KEYS and self.kernel.kind == "keys":
                head = place_in(self.head)
            elif role in _OF_KEYS:
                head = quotient(head, expr_of(self.groups))
            first = position((place_in(self.b), head), self.kernel.buffers[role].stride[:2])
            self.made.append(Section(_rows(role), role, first))

    def load(self, role: str, *blocks: TileBlock) -> Load:
        """Return elements of a head's rows; points outside are 0."""
        offset, dtype = self._offset(role, blocks), self.kernel.buffers[role].dtype
        return Load(_rows(role), (offset,), dtype, None, 0.0)

    def store(self, role: str, value: Value, *blocks: TileBlock) -> None:
        """Store elements of a head's rows."""
        self.open_rows(role)
        self._store(role, value, *blocks)

    def store_at(
        self, place: tuple[Expr, Expr], role: str, value: Value, *blocks: TileBlock
    ) -> None:
        """Store elements of the rows of a batch and a head."""
        first = position(place, self.kernel.buffers[role].stride[:2])
        self.made.append(Section(_rows(role), role, first))
        self._store(role, value, *blocks)

    def _store(self, role: str, value: Value, *blocks: TileBlock) -> None:
        axes = tuple(axis for block in blocks for axis in block.axes)
        value = cast(value, self.kernel.buffers[role].dtype)
        self.made.append(Store(_rows(role), self._offset(role, blocks), value, axes))

    def _offset(self, role: str, blocks: tuple[TileBlock, ...]) -> Expr:
        return position([*map(place_in, blocks)], self.kernel.buffers[role].stride[2:])

    # -- visiting --------------------------------------------------------------------------------

    def visit(self, step: TileStep) -> None:
        """Make the loops over the visited tiles."""
        if self.kernel.has_blocks:
            for prefix in ("", "full_") if self.kernel.has_full_blocks else ("",):
                self._visit_blocks(prefix, step)
            return
        with self.loop(Axis("step", _tiles(self.visited))) as at:  # type: ignore[arg-type]
            self._visit_tile(mul(at, self.visited.size), step, self.kernel.keeps is not None)

    def _visit_blocks(self, prefix: str, step: TileStep) -> None:
        """Make the loop over a list of blocks, of as many tiles each as fit into one."""
        side = "q" if self.visited.name == "i" else "kv"
        size, whole = self.visited.size, self.visited.group
        row = floordiv(self.start, self.own.group)
        blocks = self.let("count", self._listed(f"{prefix}{side}_num_blocks", row))
        parts, stop = whole // size, VarIndex(blocks, MOST_POSITIONS)
        # How many blocks there are is known at run time alone.
        with self.loop(Axis("step", MOST_POSITIONS), mul(stop, parts)) as at:
            listed = self._listed(f"{prefix}{side}_indices", row, floordiv(at, parts))
            block = self.let("block", listed)
            first = mul(VarIndex(block, MOST_POSITIONS), whole)
            self._visit_tile(add(first, mul(mod(at, parts), size)), step, not prefix)

    def _listed(self, role: str, *place: Expr) -> Load:
        """Return an entry of a block mask, whose batch and head may be shared."""
        buffer = self.kernel.buffers[role]
        index: list[Expr] = []
        axes = (*self.b.axes, self.h)
        for axis, size, extent in zip(axes, buffer.shape[:2], self.kernel.extents[:2], strict=True):
            same = is_same(size, extent)
            index.append(AxisVar(axis) if same else remainder(AxisVar(axis), expr_of(size)))
        return Load(role, (position((*index, *place), buffer.stride),), buffer.dtype)

    def _visit_tile(self, start: Expr, step: TileStep, is_masked: bool) -> None:
        self.made += [Open(self.visited, start), Open(self.turned, beside=self.visited)]
        self.compute_ahead(is_masked)
        step(is_masked)

    def compute_ahead(self, is_masked: bool) -> None:
        """Compute what needs no score before the product of the scores, whose time hides loads."""
        for part in self._independent(is_masked):
            self.made.append(Let(part, self.let("ahead", part)))

    def _independent(self, is_masked: bool) -> list[Value]:
        """Return what the functions compute of a visited tile without its scores."""
        kernel = self.kernel
        values = [kernel.score, *([kernel.gradient] if kernel.kind != "forward" else [])]
        values += [kernel.keeps] if is_masked and kernel.keeps is not None else []
        nodes = walk(values)
        axes, free = value_axes(nodes), dict[Value, bool]()
        for node in nodes:
            is_given = isinstance(node, Load) and node.buffer in (SCORE, TANGENT)
            free[node] = not is_given and all(free[part] for part in node.operands)
        below = {part for node in nodes if free[node] for part in node.operands}
        visited = frozenset(self.visited.axes)
        return [n for n in nodes if free[n] and n not in below and not visited.isdisjoint(axes[n])]

    # -- products and scores ---------------------------------------------------------------------

    def start_total(
        self, op: str, prefix: str, *blocks: TileBlock, over: tuple[Axis, ...] = ()
    ) -> Total:
        """Return an accumulator over blocks, started here. `over`: the axes of the values that it
        takes, if not the visited ones; over those, an accumulator over two blocks is of products.
        """
        var = self._new(prefix, torch.float32)
        tile = tuple(axis for block in blocks for axis in block.axes)
        method = "dot" if len(blocks) > 1 and not over else "plain"
        total = Total(op, over or self.visited.axes, var.dtype, var, method=method, tile=tile)
        self.made.append(Start(total))
        return total

    def product(self, a: Value, b: Value, terms: TileBlock, right: _Sides) -> Value:
        """Return the products of rows of what is owned and rows of what is visited."""
        total = self.start_total("sum", "product", self.own, self.visited)
        self.made.append(Dot(total, a, b, (self.own, terms), right, self.visited))
        return Result(total, total.var.dtype)

    def add_product(
        self, total: Total, a: Value, b: Value, right: _Sides, across: TileBlock
    ) -> None:
        """Add the products of shares, in the dtype of the rows, and of rows of what is visited."""
        left = (self.own, self.visited)
        self.made.append(Dot(total, cast(a, b.dtype), b, left, right, across))

    def scores(self, product: Value, is_masked: bool) -> tuple[Value, Value | None]:
        """Return the changed scores, and whether each counts; None if all do."""
        if not self.is_folded:
            product = self.let("s", compute("mul", product, self.kernel.scale))
        self.bind(SCORE, product)
        masks = [self._inside(b) for b in (self.own, self.visited) if self._is_guarded(b)]
        if is_masked and self.kernel.keeps is not None:
            masks.append(self.kernel.keeps)
        if not masks:
            return self._named("t", self.kernel.score), None
        kept = reduce(partial(compute, "logical_and"), masks)
        return self._named("t", where(kept, self.kernel.score, -math.inf)), kept

    def _is_guarded(self, block: TileBlock) -> bool:
        """Return whether positions outside must not count: rows of queries in a forward are just
        not stored.
        """
        return block.ragged and (block.name == "j" or self.kernel.kind == "keys")

    def _inside(self, block: TileBlock) -> Value:
        """Return whether positions of a block are inside of its extent."""
        return compute("lt", self._index(place_in(block)), self._index(expr_of(block.extent)))

    def bind(self, role: str, value: Value) -> None:
        """Give the functions of scores what they take."""
        values = (self.kernel.score, self.kernel.gradient)
        loads = [n for n in walk(values) if isinstance(n, Load) and n.buffer == role]
        self.made += [Let(load, value) for load in loads]


def place_in(block: TileBlock) -> Expr:
    """Return the position along the only axis of a block."""
    (axis,) = block.axes
    return AxisVar(axis)


def _rows(role: str) -> str:
    return f"{role}_at"


def _point(axis: Axis, extent: Dimension) -> TileBlock:
    return TileBlock(axis.name, (axis,), extent, 1)


def _numbered(name: str, extent: Dimension) -> TileBlock:
    """Return a block of one of so many numbers."""
    return _point(Axis(name, extent), extent)  # type: ignore[arg-type]  # a Size acts as an int


def _row(name: str, width: int) -> TileBlock:
    return TileBlock(name, (Axis(name, width),), width, power(width))


def _down(block: TileBlock) -> TileBlock:
    """Return the block along the other dimension of the tile."""
    (axis,), name = block.axes, f"{block.name}_down"
    return replace(block, name=name, axes=(Axis(name, axis.extent),))


def _tiles(block: TileBlock) -> Dimension:
    """Return the number of tiles that cover an extent."""
    return (block.extent + (block.size - 1)) // block.size
