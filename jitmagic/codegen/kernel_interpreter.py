"""Defines the semantics of the kernel language: a slow reference interpreter on tensors of torch.

In: a Kernel of either form, the memory of its buffers as flat tensors, and the values of its sizes.
Out: the buffers are written, and the result is whether a run-time index was out of range. Loops of
every kind run point by point, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from types import MappingProxyType

import torch

from ..lazy_dataclass import dataclass, field
from ..loops.expr import Apply, AxisVar, Expr, ValueIndex, add, reapply, rebuild
from ..loops.ir import Axis, Cast, Compute, Constant, IndexValue, Load, Value, run_time_values
from ..loops.values import identity
from ..operators.scalar import REDUCTIONS, SCALARS
from ..symbols.expr import Integer, Leaf
from ..symbols.size import Dimension, value_of
from ..symbols.symbolic_numbers import Symbol
from .kernel import (
    BAD,
    BEGIN,
    END,
    INTEGERS,
    Accumulate,
    Atomic,
    Check,
    Divisor,
    For,
    If,
    Join,
    Kernel,
    LanesBelow,
    Let,
    LoadTile,
    Parallel,
    Partial,
    Parts,
    Result,
    Scratch,
    Set,
    Start,
    Statement,
    Store,
    TileRow,
    Total,
    Trips,
    VarIndex,
    Whole,
)
from .kernel_walk import block_of

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
    state = _State({**memory}, values)
    state.known[BAD] = torch.zeros((), dtype=BAD.dtype)
    state.run(kernel.body)
    return bool(state.known[BAD])


@dataclass(slots=True)
class _State:
    """Holds memory, the point of the loops, and values. `known` values are those of the blocks
    that are open; all others are computed anew, since memory may have changed.
    """

    memory: dict[str, Tensor]
    sizes: dict[Expr, int]
    axes: dict[Axis, int] = field(default_factory=dict)
    known: dict[Value, Tensor] = field(default_factory=dict)
    tiles: dict[str, LoadTile] = field(default_factory=dict)

    def run(self, body: Iterable[Statement]) -> None:
        stores: list[Store] = []
        for statement in body:
            if isinstance(statement, Store):  # a point's stores come after all of its values
                stores.append(statement)
                continue
            self.flush(stores)
            self.statement(statement)
        self.flush(stores)

    def flush(self, stores: list[Store]) -> None:
        ready = [(each, self.offset(each.offset), self.value(each.value)) for each in stores]
        for store, offset, value in ready:
            target = self.memory[store.buffer]
            if not isinstance(store, Atomic):
                target[offset] = value
            elif target.dtype == torch.bool:
                target[offset] |= value
            else:
                target[offset] += value
        stores.clear()

    def statement(self, statement: Statement) -> None:
        match statement:
            case For():
                self.loop(statement)
            case Parallel(units, _, body):
                self.axes |= {BEGIN: 0, END: self.size(units)}
                self.run(body)
            case Trips(body=body) | Whole(body=body):
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
            case Accumulate(total, value, position):
                self.accumulate(total, self.value(value), position)
            case Join(total, part):
                self.join(total, self.value(part))
            case Scratch(name, dtype, size):
                self.memory[name] = torch.empty(size, dtype=dtype)
            case LoadTile(tile):
                self.tiles[tile] = statement
            case Check():
                self.check(statement)
            case _:
                raise TypeError(f"not a statement: {statement!r}")

    def loop(self, loop: For) -> None:
        """Run the body for each point; lanes are run one after the other."""
        outside = dict(self.known)
        extents = [self.size(axis.extent) for axis in loop.axes]
        stop = prod(extents) if loop.stop is None else self.offset(loop.stop)
        step = 1
        if loop.kind == "serial":
            step = self.offset(loop.step) if isinstance(loop.step, Expr) else loop.step
        for flat in range(self.offset(loop.start), stop, step):
            rest = flat
            for axis, extent in zip(reversed(loop.axes), reversed(extents), strict=True):
                rest, self.axes[axis] = divmod(rest, extent) if len(extents) > 1 else (0, rest)
            self.run(loop.body)
            self.leave(outside)

    def parts(self, parts: Parts) -> None:
        outside, stop = dict(self.known), self.offset(parts.stop)
        size = self.offset(parts.size)
        for begin in range(0, max(stop, 1), size):
            self.axes |= {parts.axis: begin, parts.end: min(begin + size, stop)}
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

    def accumulate(self, total: Total, value: Tensor, position: Expr | None) -> None:
        if total.at is None:
            self.join(total, value)
            return
        before = self.known[total.var]
        assert position is not None
        better = value > before if total.op == "argmax" else value < before
        is_first_nan = bool(value.isnan()) and not bool(before.isnan())
        if self.known[total.at] < 0 or better or is_first_nan:
            self.known[total.var] = value
            self.known[total.at] = torch.tensor(self.offset(position))

    def join(self, total: Total, part: Tensor) -> None:
        before = self.known[total.var]
        joined = SCALARS[REDUCTIONS[total.op]].reference(before, part.to(before.dtype))
        self.known[total.var] = joined.to(before.dtype)

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
                return torch.tensor(self.offset(expr)).to(dtype)
            case Result(total, dtype) | Partial(total, dtype):
                return self.known[total.at or total.var].to(dtype)
            case TileRow(tile, row):
                loaded = self.tiles[tile]
                return self.memory[loaded.buffer][self.offset(add(loaded.offset, row))].clone()
            case Divisor(value):
                return self.value(value)
            case LanesBelow(bound, first):
                return self.offset(first) < self.value(bound)
        raise KeyError(f"{node!r} is used before it is known")

    def load(self, node: Load) -> Tensor:
        source = self.memory[node.buffer]
        if not source.numel() or (node.mask is not None and not bool(self.value(node.mask))):
            return torch.tensor(node.fill, dtype=node.dtype)
        return source[self.offset(node.index[0])].clone()

    # -- indexes -------------------------------------------------------------------------------

    def size(self, extent: Dimension) -> int:
        size: int = value_of(extent, self.sizes)
        return size

    def check(self, check: Check) -> None:
        used = check.mask is None or bool(self.value(check.mask))
        index = self.in_range(self.value(check.index), check.extent, used)
        self.known[check.var] = torch.tensor(index)

    def in_range(self, index: Tensor, extent: Dimension, used: bool = True) -> int:
        size, at = self.size(extent), int(index)
        at = at + size if at < 0 else at
        if 0 <= at < size:
            return at
        if used:
            self.known[BAD] = torch.ones((), dtype=BAD.dtype)
        return 0

    def offset(self, expr: Expr) -> int:
        for value in run_time_values(expr):
            self.value(value)
        made = rebuild(expr, self.leaf)
        assert isinstance(made, Integer)
        return made.value

    def leaf(self, leaf: Leaf) -> Expr:
        match leaf:
            case AxisVar(axis):
                return Integer(self.axes[axis])
            case VarIndex(var):
                return Integer(int(self.known[var]))
            case ValueIndex(value, extent):
                return Integer(self.in_range(self.value(value), extent))
            case Symbol():
                return Integer(self.sizes[leaf])
            case Apply(op, args):
                made = [rebuild(part, self.leaf) for part in args]
                if op in INTEGERS:
                    return Integer(INTEGERS[op](*[part.value for part in made]))  # type: ignore[attr-defined]
                return reapply(leaf, made)
        raise TypeError(f"not an index expression: {leaf!r}")
