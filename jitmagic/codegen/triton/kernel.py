"""Writes one Triton kernel: the passes of a nest over its tile.

In: a Structure, its Tile, names for the buffers. Out: the lines of a function body. Every index
vector has the full rank of the tile (size 1 in dimensions that it does not depend on), so that
values broadcast; a block of size 1 is a scalar. A whole inner extent is opened once and all passes
share the values computed from it; an extent taken in steps is a loop per pass, and values are
recomputed in each. Invariant: elements outside an extent are never read, stored or reduced.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import torch

from ...loops.expr import Axis, AxisVar
from ...loops.ir import Buffer, Load, Reduction, Store
from ...loops.values import identity
from ...schedule.products import Product
from ...schedule.score import extent_of
from ...schedule.substitution import Rebuilder
from ...symbols.size import Dimension, is_same, upper_bound
from ..loop_structure import Pass, Structure
from ..products.dequantised_triton import dot_operands
from .ops import WIDE, cast_text, closed, spread, typed
from .tile import Tile, TileBlock
from .values import TritonValues

__all__ = ["kernel_lines"]

# Additions per lane above which a float sum is compensated (TwoSum): six operations instead of one,
# in a loop that is limited by memory. Eager's threads add about ten values each.
LONG = 32

_JOIN: Mapping[str, str] = {"sum": "{0} + {1}", "prod": "{0} * {1}", "any": "{0} | {1}"} | {
    "all": "{0} & {1}",
    "max": "combine_max({0}, {1})",
    "min": "combine_min({0}, {1})",
}
_FOLD: Mapping[str, str] = {
    "sum": "tl.sum({0}, {axis}{keep})",
    "prod": "tl.reduce({0}, {axis}, combine_prod{keep})",
    "any": "tl.max({0}, {axis}{keep})",
    "all": "tl.min({0}, {axis}{keep})",
    "max": "tl.reduce({0}, {axis}, combine_max{keep})",
    "min": "tl.reduce({0}, {axis}, combine_min{keep})",
}


def kernel_lines(
    kernel: Structure,
    tile: Tile,
    names: Mapping[str, str],
    buffers: Mapping[str, Buffer],
    product: Product | None = None,
) -> list[str]:
    """Return the body of the kernel, not indented. `product`: tensor cores compute its sum."""
    return _Kernel(kernel, tile, names, buffers, product).lines()


class _Kernel(TritonValues):
    """Opens blocks and loops, accumulates reductions, performs stores."""

    def __init__(
        self,
        kernel: Structure,
        tile: Tile,
        names: Mapping[str, str],
        buffers: Mapping[str, Buffer],
        product: Product | None,
    ) -> None:
        super().__init__(kernel, tile, names, buffers)
        self._product = product
        self._numbers = count()
        self._fence = _needs_fence(kernel, buffers)

    def lines(self) -> list[str]:
        if not self.tile.wide:
            for symbol in self.kernel.symbols:
                # Sizes are passed as int64, but 32-bit index arithmetic is faster where offsets
                # fit.
                self.line(f"{symbol.name} = {symbol.name}.to(tl.int32)")
        self._open_outer()
        for part in self.kernel.passes:
            self._pass(part)
        return self.scopes[0].lines

    # -- blocks ----------------------------------------------------------------------------------

    def _open_outer(self) -> None:
        before = ProgramCounts()
        blocks = self.tile.outer
        pid = "tl.program_id(0)" + (".to(tl.int64)" if self.tile.wide else "")
        if len(blocks) > 1:
            self.line(f"pid = {pid}")
            pid = "pid"
        for number, block in reversed(list(enumerate(blocks))):
            start = pid if before.is_one else f"{pid} // {before}"
            before.take(block, self.size_text(block.extent))
            if not all(other.single for other in blocks[:number]):
                start += f" % {ProgramCounts.of(block, self.size_text(block.extent))}"
            if block.size > 1 and not block.single:
                self.open_block(block, start if start == pid else f"({start})", block.size)
            else:
                self.open_block(block, start if block.size == 1 else "", 1)

    def open_block(self, block: TileBlock, origin: str, factor: int) -> None:
        """Define the positions of a block, its mask and its axes, in the innermost scope."""
        points = self.positions(block)
        start = origin if factor == 1 else f"{origin} * {factor}"
        text = " + ".join(part for part in (start, points) if part)
        flat = block.axes[0].name if len(block.axes) == 1 else block.name
        self.line(f"{flat} = {text}")
        if block.ragged:
            self.line(f"{flat}_in = {flat} < {self.size_text(block.extent)}")
            self.scopes[-1].masks[block] = f"{flat}_in"
        self.scopes[-1].flat[block] = flat
        self._split(block.axes, flat)
        self.bind(block.axes)

    def _split(self, axes: tuple[Axis, ...], flat: str) -> None:
        """Define the axes of a row-major position."""
        below: Dimension = 1
        for number, axis in reversed(list(enumerate(axes))):
            text = flat if is_same(below, 1) else f"{flat} // {self.size_text(below)}"
            if number:
                text += f" % {self.size_text(axis.extent)}"
            if text != axis.name:
                self.line(f"{axis.name} = {text}")
            below = below * axis.extent

    # -- passes ----------------------------------------------------------------------------------

    def _pass(self, part: Pass) -> None:
        if not part.axes:
            self._stores(part.stores)
            return
        block = self.tile.inner[part.axes]
        if self._product is not None:
            self._multiplied(self._product, block)
            return
        if not block.single:
            self._looped(part, block)
            return
        if not set(block.axes) <= self.scopes[-1].bound:
            self.open_block(block, "", 1)
        for node in part.reductions:
            self._whole(node, block)
        self._stores(part.stores)

    def _whole(self, node: Reduction, block: TileBlock) -> None:
        """Reduce a tile that holds the whole extent."""
        value = self._entering(node, block)
        if block not in self.blocks_of(node.value) and not block.ragged:
            value = self._broadcast(value, {block, *self.blocks_of(node.value)})
        self._fold(node, block, self.name_of(value), self.scopes[-1].flat[block])

    def _entering(self, node: Reduction, block: TileBlock | None) -> str:
        """Return the value to reduce in the accumulator's dtype; lanes outside the extent are the
        identity.
        """
        source = node.value.dtype
        held = WIDE.get(source, source)
        text = self.use(node.value)
        if held != source:
            text = cast_text(text, source, held)
        if block is not None and block.ragged:
            start = typed(identity(node.op, held), held)
            text = f"tl.where({self.mask_of(block)}, {text}, {start})"
        return text

    def _fold(self, node: Reduction, block: TileBlock, held: str, positions: str) -> None:
        """Combine the lanes along the block and define the result."""
        axis = self.dimension(block)
        keep = ", keep_dims=True" if self.tile.rank > 1 else ""
        name = self._name(node.op)
        if node.op in ("argmax", "argmin"):
            shape = self.shape({block, *self.blocks_of(node.value)})
            positions = f"tl.broadcast_to({positions}, {shape})"
            self.line(
                f"_, {name} = tl.reduce(({held}, {positions}), {axis}, first_{node.op}{keep})"
            )
            self.define(node, f"{name}.to(tl.int64)")
            return
        fold = _FOLD[node.op]
        # tl.max and tl.min ignore NaN: only integers may use them.
        if not accumulator_dtype(node).is_floating_point and node.op in ("max", "min"):
            fold = f"tl.{node.op}({{0}}, {{axis}}{{keep}})"
        text = fold.format(held, axis=axis, keep=keep)
        if (wide := accumulator_dtype(node)) != node.dtype:
            text = cast_text(text, wide, node.dtype)
        self.line(f"{name} = {text}")
        self.define(node, name)

    def _looped(self, part: Pass, block: TileBlock) -> None:
        """Reduce in steps: each lane accumulates, and the lanes are combined after the loop."""
        started = [self._start(node, block, block.count) for node in part.reductions]
        at = f"{block.name}_at"
        steps = f"range(0, {self.size_text(block.extent)}, {block.size})"
        if self.tile.stages:
            steps = f"tl.{steps[:-1]}, num_stages={self.tile.stages})"
        self.open(f"for {at} in {steps}:")
        self.open_block(block, at, 1)
        flat = self.scopes[-1].flat[block]
        for node, (held, extra) in zip(part.reductions, started, strict=True):
            self._join(node, held, extra, self._entering(node, block), flat)
        self._stores(part.stores)
        self.close()
        for node, (held, extra) in zip(part.reductions, started, strict=True):
            self._fold(node, block, self._compensated(node, held, extra), extra)

    def _multiplied(self, product: Product, block: TileBlock) -> None:
        """Sum the products of two operands in steps, by tensor cores."""
        rows, columns = self.tile.outer
        held = self._name("acc")
        self.line(f"{held} = tl.zeros([{rows.size}, {columns.size}], tl.float32)")
        at = f"{block.name}_at"
        self.open(
            f"for {at} in tl.range(0, {self.size_text(block.extent)}, {block.size}, "
            f"num_stages={self.tile.stages}):"
        )
        self.open_block(block, at, 1)
        a, b = dot_operands(product)
        for value in (a, b):
            self.learn(value)
        left, right = self._broadcast(self.use(a), {rows, block}), self.use(b)
        right = self._broadcast(right, {columns, block})
        if block.ragged:  # a scale that is not finite makes NaN of the zeros beyond the end
            zero = typed(0, b.dtype)
            right = f"tl.where({self.mask_of(block)}, {right}, {zero})"
        left = self.name_of(f"tl.reshape({left}, [{rows.size}, {block.size}])")
        right = self.name_of(f"tl.reshape({right}, [{columns.size}, {block.size}])")
        exact = ', input_precision="ieee"' if a.dtype == torch.float32 else ""
        self.line(f"{held} = tl.dot({left}, tl.trans({right}), {held}{exact})")
        self.close()
        self.define(product.total, f"tl.reshape({held}, [{rows.size}, {columns.size}, 1])")

    def _start(self, node: Reduction, block: TileBlock | None, steps: Dimension) -> tuple[str, str]:
        """Define the accumulators; return the values and their positions or rounding errors,
        or "".
        """
        blocks = set(self.blocks_of(node.value)) if block is not None else set()
        shape = self.shape(blocks | {block} if block is not None else self.blocks_of(node))
        dtype = accumulator_dtype(node)
        held, extra = self._name("acc"), ""
        start = typed(identity(node.op, dtype), dtype).replace("[]", shape, 1)
        self.line(f"{held} = {start}")
        if node.op in ("argmax", "argmin"):
            extra = self._name("at")
            self.line(f"{extra} = tl.full({shape}, {2**31 - 1}, {self.position_dtype})")
        elif node.op == "sum" and dtype.is_floating_point and upper_bound(steps) > LONG:
            extra = self._name("lost")
            self.line(f"{extra} = {start}")
        return held, extra

    @property
    def position_dtype(self) -> str:
        return "tl.int64" if self.tile.wide else "tl.int32"

    def _join(self, node: Reduction, held: str, extra: str, value: str, flat: str) -> None:
        """Accumulate the next value of each lane."""
        if extra and node.op == "sum":
            self.line(f"{held}, {extra} = add_kept({held}, {extra}, {value})")
        elif extra:
            self.line(f"{held}, {extra} = first_{node.op}({held}, {extra}, {value}, {flat})")
        else:
            self.line(f"{held} = {_JOIN[node.op].format(held, closed(value))}")

    def _compensated(self, node: Reduction, held: str, extra: str) -> str:
        """Add the rounding error, which is NaN if the sum is infinite."""
        if not extra or node.op != "sum":
            return held
        total = self._name("acc")
        self.line(f"{total} = {held} + {extra}")
        self.line(f"{total} = tl.where({total} == {total}, {total}, {held})")
        return total

    # -- reductions inside a pass ----------------------------------------------------------------

    def nested(self, node: Reduction, depth: int) -> None:
        """Compute a reduction nested in a pass by a loop over the points of its axes."""
        # Its axes get new names: elsewhere they may be blocks of the tile.
        inside = self.scopes[depth + 1 :]
        del self.scopes[depth + 1 :]
        extent = extent_of(node.axes)
        held, extra = self._start(node, None, extent)
        axes = tuple(Axis(self._name("k"), axis.extent) for axis in node.axes)
        bind = {old: AxisVar(new) for old, new in zip(node.axes, axes, strict=True)}
        point = Reduction(node.op, axes, Rebuilder(bind).value(node.value), node.dtype)
        self.learn(point)
        flat = axes[0].name if len(axes) == 1 else self._name("k")
        self.open(f"for {flat}_at in range(0, {self.size_text(extent)}):")
        # A loop variable is an int32, and positions may need 64 bits.
        self.line(f"{flat} = {flat}_at + tl.full([], 0, {self.position_dtype})")
        self._split(axes, flat)
        self.bind(axes)
        self._join(point, held, extra, self._entering(point, None), flat)
        self.close()
        self.define(node, self._result(node, self._compensated(node, held, extra), extra))
        self.scopes.extend(inside)

    def _result(self, node: Reduction, held: str, extra: str) -> str:
        if node.op in ("argmax", "argmin"):
            return f"{extra}.to(tl.int64)"
        if accumulator_dtype(node) == node.dtype:
            return held
        name = self._name(node.op)
        self.line(f"{name} = {cast_text(held, accumulator_dtype(node), node.dtype)}")
        return name

    # -- stores ----------------------------------------------------------------------------------

    def _stores(self, stores: tuple[Store, ...]) -> None:
        """Perform stores after all values are computed: a store may overwrite operands of the
        others.
        """
        ready = [(store, self.use(store.value), self.index(store.index[0])) for store in stores]
        if self._fence or len(stores) > 1:
            ready = [(store, self.name_of(value), offset) for store, value, offset in ready]
        if self._fence and stores:
            # The only explicit barrier between the threads of a program that Triton's language has.
            self.line("tl.debug_barrier()")
        for store, value, offset in ready:
            self._store(store, value, offset)

    def _store(self, store: Store, value: str, offset: str) -> None:
        axes = {*self.kernel.outer, *store.inner}
        blocks = {block for block in self.all_blocks if set(block.axes) & axes}
        name = self.names[store.buffer]
        masks = [mask for block in self.ordered(blocks) if (mask := self.mask_of(block))]
        mask = f", mask={' & '.join(masks)}" if masks else ""
        if store.mode == "add":
            where = self._broadcast(offset, blocks) if self.shape(blocks) != "[]" else offset
            # The default, acq_rel, would add fences, which sums in no particular order do not need.
            self.line(f'tl.atomic_add({name} + {where}, {value}{mask}, sem="relaxed")')
            return
        pointer = name if offset == "0" else f"{name} + {offset}"
        self.line(f"tl.store({pointer}, {value}{mask})")

    def _broadcast(self, text: str, blocks: set[TileBlock]) -> str:
        return spread(text, self.shape(blocks), self.position_dtype)

    def _name(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers)}"


class ProgramCounts:
    """Counts the programs per point of some blocks, as text: a product of block counts."""

    def __init__(self) -> None:
        self._known = 1
        self._texts: list[str] = []

    @property
    def is_one(self) -> bool:
        return self._known == 1 and not self._texts

    def take(self, block: TileBlock, extent: str) -> None:
        """Multiply by another block's count; `extent` is the text of its extent."""
        if isinstance(block.count, int):
            self._known *= block.count
        elif not block.single:
            self._texts.append(extent if block.size == 1 else f"tl.cdiv({extent}, {block.size})")

    @classmethod
    def of(cls, block: TileBlock, extent: str) -> ProgramCounts:
        one = cls()
        one.take(block, extent)
        return one

    def __str__(self) -> str:
        known = [str(self._known)] if self._known != 1 or not self._texts else []
        text = " * ".join([*self._texts, *known])
        return f"({text})" if len(self._texts) + len(known) > 1 else text


def accumulator_dtype(node: Reduction) -> torch.dtype:
    """Return the dtype in which a reduction accumulates."""
    return WIDE.get(node.value.dtype, node.value.dtype)


def _needs_fence(kernel: Structure, buffers: Mapping[str, Buffer]) -> bool:
    """Return whether a thread could overwrite an element before another thread has read it.

    It can if the nest reads its own outputs, or if a pointwise result reuses the memory of an
    operand of the same layout (schedule/memory.py), unless all accesses have one width and so one
    thread layout.
    """
    read = {node.buffer for node in kernel.free if isinstance(node, Load)}
    if read & kernel.written:
        return True
    if len({buffers[name].dtype.itemsize for name in kernel.arguments}) == 1:
        return False
    layouts = {(buffers[n].shape, buffers[n].stride, buffers[n].dtype) for n in read}
    written = {(buffers[n].shape, buffers[n].stride, buffers[n].dtype) for n in kernel.written}
    return bool(layouts & written) and all(not part.axes for part in kernel.passes)
