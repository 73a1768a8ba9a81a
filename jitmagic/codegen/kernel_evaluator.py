"""Defines the semantics of the values of the kernel language, for the reference interpreter.

In: what the statements before have left (kernel_interpreter.py): memory, the point of the loops,
open tiles, variables. Out: a value or an offset as a tensor; a tile is a tensor with a dimension
for each block, and every value broadcasts to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import torch

from ..lazy_dataclass import dataclass, field
from ..loops.expr import Add, Apply, AxisVar, Expr, FloorDiv, Mod, Mul, ValueIndex, add, axes_of
from ..loops.ir import Axis, Cast, Compute, Constant, IndexValue, Load, Value
from ..loops.values import identity
from ..operators.scalar import REDUCTIONS, SCALARS
from ..symbols.expr import Integer
from ..symbols.size import Dimension, value_of
from ..symbols.symbolic_numbers import Symbol
from .kernel import (
    BAD,
    INTEGERS,
    Divisor,
    Fold,
    Inside,
    Key,
    LaneCount,
    LanesBelow,
    LoadTile,
    OfKey,
    Ordered,
    Partial,
    Prefix,
    Result,
    TileBlock,
    TileRow,
    VarIndex,
)  # fmt: skip
from .loop_form import position_in

__all__ = ["Evaluator"]

Tensor = torch.Tensor

_SIZED: Mapping[str, Callable[..., Tensor]] = {
    "*": torch.mul,
    "//": torch.floor_divide,
    "%": torch.remainder,
    "min": torch.minimum,
    "max": torch.maximum,
}


@dataclass(slots=True)
class Evaluator:
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
        kept = (at >= 0) & (at < source.numel())  # where the index of a Check is bad
        axes = axes_of(node.index[0])
        for block, mask in self.inside.items():
            kept = kept if axes.isdisjoint(block.axes) else kept & mask
        if node.mask is not None:
            kept = kept & self.value(node.mask)
        return torch.where(kept, source[torch.where(kept, at, 0)], fill)

    # -- indexes -------------------------------------------------------------------------------

    def size(self, extent: Dimension) -> int:
        size: int = value_of(extent, self.sizes)
        return size

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

    # -- blocks --------------------------------------------------------------------------------

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
