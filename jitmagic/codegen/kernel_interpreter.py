"""Defines the semantics of the kernel language: a slow reference interpreter on tensors of torch.

In: a Kernel of either form, the memory of its buffers as flat tensors, and the values of its sizes.
Out: the buffers are written, and the result is whether a run-time index was out of range. Loops of
every kind run point by point, in order, and so do the programs of a grid; a tile is a tensor with
a dimension for each block, and every value broadcasts to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import prod
from types import MappingProxyType

import torch

from ..loops.expr import Expr
from ..loops.ir import Value
from ..loops.values import identity
from ..operators.scalar import REDUCTIONS, SCALARS
from ..symbols.symbolic_numbers import Symbol
from .kernel import (
    BAD,
    BEGIN,
    END,
    Accumulate,
    Atomic,
    Barrier,
    Check,
    Dot,
    For,
    If,
    Join,
    Kernel,
    Let,
    LoadTile,
    Open,
    Parallel,
    Parts,
    Program,
    Scratch,
    Section,
    Set,
    Start,
    Statement,
    Store,
    TileBlock,
    Total,
    Trips,
    Whole,
    WholeBlock,
)
from .kernel_evaluator import Evaluator
from .kernel_walk import block_of, statements

__all__ = ["interpret"]

Tensor = torch.Tensor


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


def _blocks_in(each: Statement) -> tuple[TileBlock, ...]:
    match each:
        case Program(blocks):
            return blocks
        case Open(block):
            return (block,)
    return ()


class _State(Evaluator):
    """Runs the statements of one kernel."""

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
                self.open(block, self.offset(start))
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
            case Dot():
                self.dot(statement)
            case Join(total, part):
                self.join(total, self.value(part))
            case Scratch(name, dtype, size):
                count = int(self.offset(size)) if isinstance(size, Expr) else size
                self.memory[name] = torch.empty(count, dtype=dtype)
            case Section(name, buffer, offset):
                self.memory[name] = self.memory[buffer][int(self.offset(offset)) :]
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

    def check(self, check: Check) -> None:
        used = torch.tensor(True) if check.mask is None else self.value(check.mask)
        for mask in self.inside.values():
            used = used & mask
        self.known[check.var] = self.in_range(self.value(check.index), check.extent, used)

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

    def dot(self, dot: Dot) -> None:
        """Add the products along the terms of the left operand, to which those of the right go."""
        (_, terms), dtype = dot.left, dot.total.var.dtype
        a, b = self.value(dot.a).to(dtype), self.value(dot.b).to(dtype)
        for block, to in zip(dot.right, (terms, dot.across), strict=True):
            b = b.transpose(self.dimensions[block], self.dimensions[to])
        self.join(dot.total, (a * b).sum(self.dimensions[terms], keepdim=True))

    def join(self, total: Total, part: Tensor) -> None:
        before = self.known[total.var]
        joined = SCALARS[REDUCTIONS[total.op]].reference(before, part.to(before.dtype))
        self.known[total.var] = joined.to(before.dtype)
