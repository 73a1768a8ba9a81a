"""Prints a kernel as the body of one Triton function.

In: a Kernel of the linear form, the Tile of a program. Out: lines, and the device functions that
they call. A run-time index that is out of range fails a device assertion, as eager's CUDA kernels
do: the error surfaces at the next synchronisation. Points outside the extents are exempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count

import torch

from ...loops.expr import Expr
from ...loops.ir import Value
from ...loops.values import HALVES, identity
from ..kernel import (
    Accumulate,
    Atomic,
    Barrier,
    Check,
    Dot,
    Fold,
    For,
    Kernel,
    Let,
    Open,
    Ordered,
    Prefix,
    Program,
    Result,
    Section,
    Set,
    Start,
    Statement,
    Store,
    TileBlock,
    Total,
    Var,
    WholeBlock,
)
from ..kernel_walk import statements
from ..linearize import Style
from .ops import cast_text, typed
from .programs import ProgramText
from .tile import Tile

__all__ = ["FEW_PLACES", "STYLE", "TritonText"]

FEW_PLACES = 16  # keys that are found one after the other faster than all are sorted
STYLE = Style(longest=7, tiles=True)
# Other reductions call the device function combine_*.
_JOIN: Mapping[str, str] = {"sum": "+", "prod": "*", "any": "|", "all": "&"}
_FOLD: Mapping[str, str] = {
    "sum": "tl.sum",
    "any": "tl.max",
    "all": "tl.min",
    "max_number": "tl.max",
}


class TritonText(ProgramText):
    """Prints one kernel."""

    def __init__(
        self, kernel: Kernel, tile: Tile, names: Mapping[str, str], by_value: Iterable[str] = ()
    ) -> None:
        super().__init__(tile, names, by_value)
        self.kernel, written = kernel, [param.dtype for param in kernel.params if param.written]
        self.is_half = HALVES.issuperset(written)
        self._numbers = count()

    def lines(self) -> list[str]:
        """Return the body of the function, not indented."""
        has_sections = any(isinstance(each, Section) for each in statements(self.kernel.body))
        for symbol in self.kernel.sizes:
            if has_sections:
                self.line(f"{symbol.name}_wide = {symbol.name}")
            if not self.tile.wide:  # sizes are int64: arithmetic of 32 bits is faster
                self.line(f"{symbol.name} = {symbol.name}.to(tl.int32)")
        self.block(self.kernel.body)
        return self.lines_

    # -- statements ------------------------------------------------------------------------------

    def block(self, body: Iterable[Statement]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, each: Statement) -> None:
        match each:
            case Program(blocks):
                self.program(blocks)
            case Open(block, beside=TileBlock() as other):
                self.open(block, self.scope.starts[other])
            case Open(block, start, is_whole):
                self.open(block, self.first(block, start), is_whole=is_whole)
            case Section(name, buffer, offset):
                self.line(f"{name} = {self.section(name, buffer, offset)}")
            case For():
                self.loop(each)
            case WholeBlock(block, body):
                self.whole_block(block, body)
            case Let(Var() as var, value):
                self.let(var, value)
            case Set(var, value):
                self.line(f"{var.name} = {self.value(value)}")
            case Start(total):
                self.start(total)
            case Accumulate(total, value, _, block) if total.relative is not None:
                self.relate(total, value, block)
            case Accumulate(total, value, position):
                self.accumulate(total, value, position)
            case Dot():
                self.dot(each)
            case Check():
                self.check(each)
            case Barrier():
                # The only explicit barrier between the threads of a program that Triton has.
                self.line("tl.debug_barrier()")
            case Store():
                self.store(each)
            case _:
                raise TypeError(f"no Triton for {each!r}")

    def loop(self, loop: For) -> None:
        (axis,) = loop.axes
        stop = self.size_text(axis.extent) if loop.stop is None else self.index(loop.stop)
        steps = f"range({self.index(loop.start)}, {stop}"
        steps += f", {loop.step})" if loop.step != 1 else ")"
        if loop.stages:
            steps = f"tl.{steps[:-1]}, num_stages={loop.stages})"
        self.inside(f"for {axis.name} in {steps}:", loop.body)

    def let(self, var: Var, value: Value) -> None:
        self.axes[var] = self.axes_of(value)
        if isinstance(value, Fold):
            self.fold(var, value)
        elif isinstance(value, Prefix):
            self.prefix(var, value)
        elif isinstance(value, Ordered):
            self.ordered_keys(var, value)
        else:
            self.line(f"{var.name} = {self.value(value)}")

    def name_of(self, code: str) -> str:
        """Return a variable that holds the expression, computed here."""
        name = f"t{next(self._numbers)}"
        self.line(f"{name} = {code}")
        return name

    # -- reductions ------------------------------------------------------------------------------

    def start(self, total: Total) -> None:
        """Define the accumulators, and their positions or rounding errors."""
        held, dtype = total.var.name, total.var.dtype
        self.axes[total.var] = frozenset(total.tile)
        if total.method == "dot":
            self.line(f"{held} = tl.zeros({self.shape(self.blocks_over(total.tile))}, tl.float32)")
            return
        shape = self.lanes_of(total)
        start = typed(identity(total.op, dtype), dtype, shape)
        self.line(f"{held} = {start}")
        if total.at is not None:
            at = f"tl.full({shape}, {2**31 - 1}, {self.position_dtype})"
            self.line(f"{total.at.name} = {at}")
        elif total.lost is not None:
            self.line(f"{total.lost.name} = {start}")
        if total.relative is not None:
            self.axes[total.relative] = frozenset(total.tile)
            self.line(f"{total.relative.name} = {typed(0, dtype, shape)}")
        if total.count is not None:
            self.axes[total.count] = frozenset()
            self.line(f"{total.count.name} = {typed(0, dtype)}")

    def lanes_of(self, total: Total) -> str:
        """Return the shape of accumulators, one for each group of values along the last block."""
        blocks = self.blocks_over(total.tile)
        if total.group == 1:
            return self.shape(blocks)
        (size,) = (block.size for block in blocks if block.size > 1)
        return f"[{size // total.group}]"

    def accumulate(self, total: Total, value: Value, position: Expr | None) -> None:
        """Accumulate the next value of each lane."""
        held, text = total.var.name, self.value(value)
        if total.at is not None:
            assert position is not None
            at, name = total.at.name, self.helper(f"first_{total.op}")
            code = f"{name}({held}, {at}, {text}, {self.index(position)})"
            self.line(f"{held}, {at} = {code}")
        elif total.lost is not None:
            lost = total.lost.name
            self.line(f"{held}, {lost} = {self.helper('add_kept')}({held}, {lost}, {text})")
        elif total.op in _JOIN:
            self.line(f"{held} = {held} {_JOIN[total.op]} {self.closed(value)}")
        else:
            combine = self.helper(f"combine_{total.op}")
            self.line(f"{held} = {combine}({held}, {self.closed(value)})")

    def relate(self, total: Total, value: Value, block: TileBlock | None) -> None:
        """Accumulate a value and its share of a sum relative to what was before."""
        held = [v.name for v in (total.var, total.relative) if v is not None]
        count = [] if total.count is None else [total.count.name]
        of_max = "add_exps" if total.group > 1 else "add_exp"
        function = self.helper(of_max if total.op == "max" else "add_square")
        mask = None if block is None else self.scope.masks.get(block)
        made = held if mask is None else [f"{name}_next" for name in held]
        code = f"{function}({', '.join([*held, *count])}, {self.value(value)})"
        self.line(f"{', '.join([*made, *count])} = {code}")
        if mask is None:
            return
        for name in held:
            self.line(f"{name} = tl.where({mask}, {name}_next, {name})")

    def fold(self, var: Var, fold: Fold) -> None:
        """Combine the points along the block and define the result."""
        block, op, value = fold.block, fold.op, fold.value
        self.folded |= {var} if op == "sum" else set()
        axis, source = self.dimension(block), value.dtype
        keep = ", keep_dims=True" if self.tile.rank > 1 else ""
        blocks = self.blocks_over(self.axes_of(value)) | {block}
        if op in ("argmax", "argmin"):
            name = f"{var.name}_at"
            text, positions = self.positioned(value, block, blocks)
            function = self.helper(f"first_{op}")
            self.line(f"_, {name} = tl.reduce(({text}, {positions}), {axis}, {function}{keep})")
            self.line(f"{var.name} = {name}.to(tl.int64)")
            return
        if block in self.blocks_over(self.axes_of(value)):
            text = self.named(value)
        else:
            text = self.name_of(self.spread(self.value(value), blocks))
        # tl.max and tl.min ignore NaN: only integers may use them.
        is_plain = not source.is_floating_point and op in ("max", "min")
        function = f"tl.{op}" if is_plain else _FOLD.get(op, "tl.reduce")
        combine = f", {self.helper(f'combine_{op}')}" if function == "tl.reduce" else ""
        text = f"{function}({text}, {axis}{combine}{keep})"
        if source == fold.dtype:
            self.line(f"{var.name} = {text}")
        else:
            self.line(f"{var.name} = {cast_text(self.name_of(text), source, fold.dtype)}")

    def prefix(self, var: Var, prefix: Prefix) -> None:
        """Combine each point along the block with those before it."""
        block, op, source = prefix.block, prefix.op, prefix.value.dtype
        blocks, whole = self.blocks_over(self.axes_of(prefix.value)), {*self.tile.spread, block}
        text = self.value(prefix.value)
        if not blocks >= whole:  # Triton 3.6 fails to scan tiles of one row or column
            text = self.spread(text, whole)
        combine = self.helper(f"combine_{op}")
        text = f"tl.associative_scan({text}, {self.dimension(block)}, {combine})"
        if source != prefix.dtype:
            text = cast_text(self.name_of(text), source, prefix.dtype)
        self.line(f"{var.name} = {text}")

    def ordered_keys(self, var: Var, ordered: Ordered) -> None:
        """Put the keys of a block in order: few of them one after the other, else all."""
        block, places, keys = ordered.block, ordered.places, self.value(ordered.keys)
        whole = {*self.tile.spread, block}
        if not self.blocks_over(self.axes_of(ordered.keys)) >= whole:
            keys = self.spread(keys, whole)
        if places.extent <= FEW_PLACES:
            args = f"{self.positions(places)}, {places.extent}, {self.dimension(block)}"
            self.line(f"{var.name} = {self.helper('first_keys')}({keys}, {args})")
        else:
            self.line(f"{var.name} = tl.sort({keys}, descending=True)")

    def positioned(self, value: Value, block: TileBlock, blocks: set[TileBlock]) -> tuple[str, str]:
        """Return the values and the positions of an argmax or argmin."""
        if isinstance(value, Result) and value.total.at is not None:
            return value.total.var.name, value.total.at.name
        text = self.value(value)
        if block not in self.blocks_over(self.axes_of(value)):
            text = self.spread(text, blocks)
        return text, f"tl.broadcast_to({self.scope.flat[block]}, {self.shape(blocks)})"

    def dot(self, each: Dot) -> None:
        """Add the product of two matrices, by tensor cores."""
        a, b = self.matrix(each.a, {*each.left}), self.matrix(each.b, {*each.right})
        if self.dimension(each.right[0]) == self.dimension(each.left[1]):
            b = f"tl.trans({b})"
        held = each.total.var.name
        # Without it float32 products would be rounded to TF32.
        exact = ', input_precision="ieee"' if each.a.dtype == torch.float32 else ""
        self.line(f"{held} = tl.dot({a}, {b}, {held}{exact})")

    def matrix(self, value: Value, blocks: set[TileBlock]) -> str:
        """Return an operand of a product, which need not vary along both dimensions."""
        text = self.value(value)
        over = self.blocks_over(self.axes_of(value))
        return text if over == blocks else self.name_of(self.spread(text, blocks))

    def store(self, store: Store) -> None:
        blocks = self.blocks_over(store.axes)
        value, masks = self.value(store.value), self.masks(store.axes)
        mask = f", mask={' & '.join(masks)}" if masks else ""
        if isinstance(store, Atomic):
            where = self.index(store.offset)
            if any(block.size > 1 for block in blocks):
                where = self.spread_index(store.offset, self.shape(blocks), self.position_dtype)
            place = f"{self.names[store.buffer]} + {where}"
            # The default, acq_rel, would add fences, which sums in no particular order do not need.
            self.line(f'tl.atomic_add({place}, {value}{mask}, sem="relaxed")')
            return
        self.line(f"tl.store({self.pointer(store.buffer, store.offset)}, {value}{mask})")

    def check(self, check: Check) -> None:
        """Check a run-time index, counted from the end if it is negative."""
        index, size, axes = check.index, self.size_text(check.extent), self.axes_of(check.index)
        name = f"{check.var.name}_raw"
        inside = f"({name} >= -{size}) & ({name} < {size})"
        outside = [f" | ~{mask}" for mask in self.masks(axes)]
        if check.mask is not None:
            outside.append(f" | ~{self.closed(check.mask)}")
        self.axes[check.var] = axes
        self.line(f"{name} = {self.value(index)}")
        self.line(f'tl.device_assert({inside}{"".join(outside)}, "index out of range")')
        self.line(f"{check.var.name} = tl.where({name} < 0, {name} + {size}, {name})")
