"""Defines the semantics of the kernel language: a slow reference interpreter on tensors of torch.

In: a Kernel of either form, the memory of its buffers as flat tensors, and the values of its sizes.
Out: the buffers are written, and the result is whether a run-time index was out of range. Loops of
every kind run point by point, in order, and so do the programs of a grid; a tile is a tensor with
a dimension for each block, and every value broadcasts to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import product
from math import prod
from types import MappingProxyType

import torch

from ..lazy_dataclass import dataclass, field
from ..loops.expr import Add, Apply, AxisVar, Expr, FloorDiv, Mod, Mul, ValueIndex, add
from ..loops.ir import Axis, Cast, Compute, Constant, IndexValue, Load, Value
from ..loops.values import identity
from ..operators.scalar import REDUCTIONS, SCALARS
from ..symbols.expr import Integer
from ..symbols.size import Dimension, value_of
from ..symbols.symbolic_numbers import Symbol
from .kernel import (
    BAD,
    BEGIN,
    END,
    INTEGERS,
    Accumulate,
    Atomic,
    Barrier,
    Check,
    Divisor,
    Dot,
    Fold,
    For,
    If,
    Inside,
    Join,
    Kernel,
    Key,
    LaneCount,
    LanesBelow,
    Let,
    LoadTile,
    OfKey,
    Open,
    Ordered,
    Parallel,
    Partial,
    Parts,
    Prefix,
    Program,
    Result,
    Scratch,
    Set,
    Start,
    Statement,
    Store,
    TileBlock,
    TileRow,
    Total,
    Trips,
    VarIndex,
    Whole,
    WholeBlock,
)
from .kernel_walk import block_of, statements
from .loop_form import position_in

__all__ = ["interpret"]

Tensor = torch.Tensor
_LONG = torch.int64


def interpret(
    kernel: Kernel,
    memory: Mapping[str, Tensor],
    sizes: Mapping[Symbol, int] = MappingProxyType({}),
) -> bool:
    """Run the kernel on `memory`, a flat tensor per parameter; return whether an index was bad."""
    values: dict[Expr, int] = {symbol: value for symbol, value in sizes.items()}
    blocks = [b for each in statements(kernel.body) for b in _blocks_in(each)]
    state = _State({**memory}, values, {block: n for n, block in enumerate(dict.fromkeys(blocks))})
    state.known[BAD] = torch.zeros((), dtype=BAD.dtype)
    state.run(kernel.body)
    return bool(state.known[BAD])


_SIZED: Mapping[str, Callable[..., Tensor]] = {
    "*": torch.mul,
    "//": torch.floor_divide,
    "%": torch.remainder,
    "min": torch.minimum,
    "max": torch.maximum,
}


def _blocks_in(each: Statement) -> tuple[TileBlock, ...]:
    match each:
        case Program(blocks):
            return blocks
        case Open(block):
            return (block,)
    return ()


@dataclass(slots=True)
class _State:
    """Holds memory, the point of the loops, and values. `known` values are those of the blocks
    that are open; all others are computed anew, since memory may have changed. `dimensions`: those
    of tiles; `inside`: which points of an open tile are inside of its extent.
    """

    memory: dict[str, Tensor]
    sizes: dict[Expr, int]
    dimensions: Mapping[TileBlock, int]
    axes: dict[Axis, Tensor] = field(default_factory=dict)
    known: dict[Value, Tensor] = field(default_factory=dict)
    tiles: dict[str, LoadTile] = field(default_factory=dict)
    inside: dict[TileBlock, Tensor] = field(default_factory=dict)
    starts: dict[TileBlock, Tensor] = field(default_factory=dict)

    def run(self, body: Iterable[Statement]) -> None:
        stores: list[Store] = []
        body = tuple(body)
        for number, statement in enumerate(body):
            if isinstance(statement, Store):  # a point's stores come after all of its values
                stores.append(statement)
                continue
            self.flush(stores)
            if isinstance(statement, Program):
                self.programs(statement, body[number + 1 :])
                return
            self.statement(statement)
        self.flush(stores)

    def programs(self, program: Program, body: Sequence[Statement]) -> None:
        """Run the rest of the kernel for every program of the grid."""
        counts = [range(self.size(block.count)) for block in program.blocks]
        for place in product(*counts):
            outside = dict(self.known)
            for block, number in zip(program.blocks, place, strict=True):
                self.open(block, torch.tensor(number * block.size))
            self.run(body)
            self.leave(outside)

    def open(self, block: TileBlock, start: Tensor) -> None:
        """Bind the axes of a block from a position on."""
        shape = [1] * len(self.dimensions)
        shape[self.dimensions[block]] = block.size
        self.starts[block] = start
        if block.row is not None:
            start = start - torch.remainder(self.offset(block.row), block.unit)
        rest = start + torch.arange(block.size).reshape(shape)
        self.inside[block] = (rest >= 0) & (rest < self.size(block.extent))
        for axis in reversed(block.axes):
            extent = self.size(axis.extent)
            is_first = axis is block.axes[0]
            self.axes[axis] = rest if is_first else torch.remainder(rest, extent)
            rest = torch.div(rest, extent, rounding_mode="floor")

    def flush(self, stores: list[Store]) -> None:
        ready = [(each, self.offset(each.offset), self.value(each.value)) for each in stores]
        for store, offset, value in ready:
            target, axes = self.memory[store.buffer], frozenset(store.axes)
            masks = [m for block, m in self.inside.items() if not axes.isdisjoint(block.axes)]
            parts = torch.broadcast_tensors(offset, value, *masks)
            kept = torch.ones_like(parts[0], dtype=torch.bool)
            for mask in parts[2:]:
                kept &= mask
            at, values = parts[0][kept], parts[1][kept].to(target.dtype)
            target.index_put_((at,), values, accumulate=isinstance(store, Atomic))
        stores.clear()

    def statement(self, statement: Statement) -> None:
        match statement:
            case For():
                self.loop(statement)
            case Open(block, beside=TileBlock() as other):
                self.open(block, self.starts[other])
            case Open(block, start):
                self.open(block, torch.tensor(0) if start is None else self.axes[start])
            case Parallel(units, _, body):
                self.axes |= {BEGIN: torch.tensor(0), END: torch.tensor(self.size(units))}
                self.run(body)
            case Trips(body=body) | Whole(body=body) | WholeBlock(body=body):
                self.run(body)
            case Parts():
                self.parts(statement)
            case If(condition, body):
                if bool(self.value(condition)):
                    outside = dict(self.known)
                    self.run(body)
                    self.leave(outside)
            case Let(target, value) | Set(var=target, value=value):
                self.known[target] = self.value(value)
            case Start(total):
                self.start(total)
            case Accumulate(total, value, _, block) if total.relative is not None:
                kept = torch.tensor(True) if block is None else self.inside[block]
                self.relate(total, self.value(value), kept)
            case Accumulate(total, value, position):
                self.accumulate(total, self.value(value), position)
            case Dot(total, a, b, (_, columns, terms), across):
                products = self.value(a).to(total.var.dtype) * self.value(b).to(total.var.dtype)
                sums = products.sum(self.dimensions[terms], keepdim=True)
                part = sums.transpose(self.dimensions[columns], self.dimensions[across])
                self.join(total, part)
            case Join(total, part):
                self.join(total, self.value(part))
            case Scratch(name, dtype, size):
                count = int(self.offset(size)) if isinstance(size, Expr) else size
                self.memory[name] = torch.empty(count, dtype=dtype)
            case LoadTile(tile):
                self.tiles[tile] = statement
            case Check():
                self.check(statement)
            case Barrier():
                pass
            case _:
                raise TypeError(f"not a statement: {statement!r}")

    def loop(self, loop: For) -> None:
        """Run the body for each point; lanes are run one after the other."""
        outside, open_before = dict(self.known), dict(self.inside)
        extents = [self.size(axis.extent) for axis in loop.axes]
        stop = prod(extents) if loop.stop is None else int(self.offset(loop.stop))
        step = 1
        if loop.kind == "serial":
            step = int(self.offset(loop.step)) if isinstance(loop.step, Expr) else loop.step
        for flat in range(int(self.offset(loop.start)), stop, step):
            rest = flat
            for axis, extent in zip(reversed(loop.axes), reversed(extents), strict=True):
                rest, at = divmod(rest, extent) if len(extents) > 1 else (0, rest)
                self.axes[axis] = torch.tensor(at)
            self.run(loop.body)
            self.leave(outside)
            self.inside = dict(open_before)

    def parts(self, parts: Parts) -> None:
        outside, stop = dict(self.known), int(self.offset(parts.stop))
        size = int(self.offset(parts.size))
        for begin in range(0, max(stop, 1), size):
            end = torch.tensor(min(begin + size, stop))
            self.axes |= {parts.axis: torch.tensor(begin), parts.end: end}
            for total in parts.totals:
                self.start(block_of(total))
            self.run(parts.body)
            for total in parts.totals:
                self.join(total, self.known[block_of(total).var])
            self.leave(outside)

    def leave(self, outside: Mapping[Value, Tensor]) -> None:
        """Forget the values of a block; variables of blocks around it keep their last values."""
        self.known = {value: self.known[value] for value in outside}

    # -- reductions ----------------------------------------------------------------------------

    def start(self, total: Total) -> None:
        dtype = total.var.dtype
        self.known[total.var] = torch.tensor(identity(total.op, total.operand), dtype=dtype)
        if total.at is not None:
            self.known[total.at] = torch.tensor(-1)
        if total.relative is not None:
            self.known[total.relative] = torch.tensor(0, dtype=dtype)
        if total.count is not None:
            self.known[total.count] = torch.tensor(0, dtype=dtype)

    def accumulate(self, total: Total, value: Tensor, position: Expr | None) -> None:
        if total.at is None:
            self.join(total, value)
            return
        assert position is not None
        before, at = self.known[total.var], self.known[total.at]
        better = value > before if total.op == "argmax" else value < before
        better = better | (value.isnan() & ~before.isnan()) | (at < 0)
        self.known[total.var] = torch.where(better, value, before)
        self.known[total.at] = torch.where(better, self.offset(position), at)

    def relate(self, total: Total, value: Tensor, kept: Tensor) -> None:
        """Accumulate a value that is kept, and its share of a sum relative to what was before."""
        assert total.relative is not None
        held, relative = self.known[total.var], self.known[total.relative]
        if total.op == "max":
            rest = value - held
            factor = torch.exp(-rest.abs())
            after = torch.where(rest > 0, relative * factor + 1, relative + factor)
            after = torch.where(value == float("-inf"), relative, after)
        else:
            assert total.count is not None
            count = self.known[total.count]
            rest = (count + 1) * value - (held + value)
            after = relative + rest * rest / (count * (count + 1)).clamp(min=1)
            self.known[total.count] = count + 1
        self.join(total, torch.where(kept, value, identity(total.op, value.dtype)))
        self.known[total.relative] = torch.where(kept, after, relative)

    def join(self, total: Total, part: Tensor) -> None:
        before = self.known[total.var]
        joined = SCALARS[REDUCTIONS[total.op]].reference(before, part.to(before.dtype))
        self.known[total.var] = joined.to(before.dtype)

    def fold(self, fold: Fold) -> Tensor:
        """Combine the points of a block one after the other; after a loop over its steps, all."""
        dimension, block, source = self.dimensions[fold.block], fold.block, fold.value
        value = self.known[source.total.var] if isinstance(source, Result) else self.value(source)
        shape = [1] * len(self.dimensions)
        shape[dimension] = block.size
        kept = self.inside.get(block, torch.ones(shape, dtype=torch.bool))
        value, kept = torch.broadcast_tensors(value, kept)
        if not fold.op.startswith("arg"):
            whole = torch.tensor(identity(fold.op, value.dtype), dtype=value.dtype)
            for part, is_inside in zip(
                value.split(1, dimension), kept.split(1, dimension), strict=True
            ):
                joined = SCALARS[REDUCTIONS[fold.op]].reference(whole, part).to(value.dtype)
                whole = torch.where(is_inside, joined, whole)
            return whole.to(fold.dtype)
        at = self.offset(position_in(block.axes))
        if isinstance(source, Result) and source.total.at is not None:
            at = self.known[source.total.at]
        return _first_best(fold.op, value, at.expand_as(value), kept, dimension)

    def prefix(self, prefix: Prefix) -> Tensor:
        """Combine each point of a block with those before it."""
        dimension, block = self.dimensions[prefix.block], prefix.block
        value = self.value(prefix.value)
        shape = list(value.shape) if value.dim() else [1] * len(self.dimensions)
        shape[dimension] = block.size
        parts = list(value.expand(shape).split(1, dimension))
        for number in range(1, len(parts)):
            before, part = parts[number - 1], parts[number]
            joined = SCALARS[REDUCTIONS[prefix.op]].reference(before, part)
            parts[number] = joined.to(value.dtype)
        return torch.cat(parts, dimension).to(prefix.dtype)

    def ordered(self, node: Ordered) -> Tensor:
        """Put the keys of a block in order, along the dimension of their places."""
        dimension, place = self.dimensions[node.block], self.dimensions[node.places]
        keys = self.value(node.keys)
        shape = list(keys.shape) if keys.dim() else [1] * len(self.dimensions)
        shape[dimension] = node.block.size
        first = keys.expand(shape).sort(dimension, descending=True).values
        return first.narrow(dimension, 0, node.places.size).transpose(dimension, place)

    # -- values --------------------------------------------------------------------------------

    def value(self, node: Value) -> Tensor:
        if node in self.known:
            return self.known[node]
        match node:
            case Constant(value, dtype):
                return torch.tensor(value, dtype=dtype)
            case Load():
                return self.load(node)
            case Cast(value, dtype):
                return self.value(value).to(dtype)
            case Compute(op, args, dtype):
                return SCALARS[op].reference(*map(self.value, args)).to(dtype)
            case IndexValue(expr, dtype):
                return self.offset(expr).to(dtype)
            case Result(total, dtype) if dtype == total.var.dtype and total.tile:
                return self.known[total.var]
            case Result(total, dtype) | Partial(total, dtype):
                return self.known[total.at or total.var].to(dtype)
            case Inside(value, block, fill):
                inside = self.value(value)
                return torch.where(self.inside[block], inside, torch.tensor(fill).to(inside.dtype))
            case LaneCount(block, dtype):
                whole, rest = divmod(self.size(block.extent), block.size)
                lanes = torch.arange(block.size) < rest
                shape = [1] * len(self.dimensions)
                shape[self.dimensions[block]] = block.size
                return (whole + lanes.to(dtype)).reshape(shape)
            case Fold():
                return self.fold(node)
            case Prefix():
                return self.prefix(node)
            case Ordered():
                return self.ordered(node)
            case Key(value, position, op):
                return _key(self.value(value), self.value(position), op == "ascending")
            case OfKey(key, op, "position"):
                return 0x7FFF - ((self.value(key) >> 1) & 0x7FFF)
            case OfKey(key, op, _, dtype):
                return _value_of(self.value(key), op == "ascending", dtype)
            case TileRow(tile, row):
                loaded = self.tiles[tile]
                return self.memory[loaded.buffer][self.offset(add(loaded.offset, row))].clone()
            case Divisor(value):
                return self.value(value)
            case LanesBelow(bound, first):
                return self.offset(first) < self.value(bound)
        raise KeyError(f"{node!r} is used before it is known")

    def load(self, node: Load) -> Tensor:
        source, fill = self.memory[node.buffer], torch.tensor(node.fill, dtype=node.dtype)
        if not source.numel():
            return fill
        at = self.offset(node.index[0])
        kept = (at >= 0) & (at < source.numel())  # points outside of a tile are anywhere
        if node.mask is not None:
            kept = kept & self.value(node.mask)
        return torch.where(kept, source[torch.where(kept, at, 0)], fill)

    # -- indexes -------------------------------------------------------------------------------

    def size(self, extent: Dimension) -> int:
        size: int = value_of(extent, self.sizes)
        return size

    def check(self, check: Check) -> None:
        used = torch.tensor(True) if check.mask is None else self.value(check.mask)
        for mask in self.inside.values():
            used = used & mask
        self.known[check.var] = self.in_range(self.value(check.index), check.extent, used)

    def in_range(self, index: Tensor, extent: Dimension, used: Tensor) -> Tensor:
        size, at = self.size(extent), index.to(torch.int64)
        at = torch.where(at < 0, at + size, at)
        is_bad = (at < 0) | (at >= size)
        if bool((is_bad & used).any()):
            self.known[BAD] = torch.ones((), dtype=BAD.dtype)
        return torch.where(is_bad, 0, at)

    def offset(self, expr: Expr) -> Tensor:
        match expr:
            case Integer(value):
                return torch.tensor(value)
            case AxisVar(axis):
                return self.axes[axis]
            case VarIndex(var):
                return self.known[var].to(torch.int64)
            case ValueIndex(value, extent):
                return self.in_range(self.value(value), extent, torch.tensor(True))
            case Symbol():
                return torch.tensor(self.sizes[expr])
            case Add(a, b):
                return self.offset(a) + self.offset(b)
            case Mul(a, b):
                return self.offset(a) * self.offset(b)
            case FloorDiv(a, b):
                return torch.div(self.offset(a), b, rounding_mode="floor")
            case Mod(a, b):
                return torch.remainder(self.offset(a), b)
            case Apply(op, args):
                parts = [self.offset(part) for part in args]
                if op in INTEGERS:
                    return torch.tensor(INTEGERS[op](*[int(part) for part in parts]))
                return reduce(_SIZED[op], parts)
        raise TypeError(f"not an index expression: {expr!r}")


def _first_best(op: str, value: Tensor, at: Tensor, kept: Tensor, dimension: int) -> Tensor:
    """Return the position of the best value: NaN wins, and the first of equals."""
    rank = value.double().nan_to_num(nan=float("inf"))
    rank = rank if op == "argmax" else torch.where(value.isnan(), rank, -value.double())
    rank = torch.where(kept, rank, float("-inf"))
    best = (rank == rank.amax(dimension, keepdim=True)) & kept
    best &= value.isnan() | ~(value.isnan() & kept).any(dimension, keepdim=True)
    return torch.where(best, at, 2**62).amin(dimension, keepdim=True)


def _key(value: Tensor, position: Tensor, ascending: bool) -> Tensor:
    """Return keys that are greater the earlier a value comes: the value, the position, and whether
    it is -0.0.
    """
    bits, sign = value.to(torch.int64), torch.zeros((), dtype=torch.int64)
    if value.dtype.is_floating_point:
        held = value.float().contiguous()
        bits = held.view(torch.int32).to(torch.int64)
        sign = ((held == 0) & (bits < 0)).to(torch.int64)
        bits = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
        bits = torch.where(held == 0, 0, torch.where(held.isnan(), 0x7FFFFFFF, bits))
    bits = ~bits if ascending else bits
    return (bits << 32) | ((0x7FFF - position) << 1) | sign


def _value_of(key: Tensor, ascending: bool, dtype: torch.dtype) -> Tensor:
    bits = ~(key >> 32) if ascending else key >> 32
    if not dtype.is_floating_point:
        return bits.to(dtype)
    held = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int32).view(torch.float32)
    return torch.where((bits == 0) & ((key & 1) == 1), -held, held).to(dtype)
