"""Turns the loop form of a kernel into the linear form: decides where each value is computed, what
it is called, and which values are computed once.

In: a Kernel in the loop form. Out: the linear form. A value goes into the outermost block that
binds all of its axes, so that loop-invariant values are computed before the inner loop; equal
values of a block and of those around it are one variable. An expression of few operations that is
used once needs no variable: it is part of the expression that uses it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from ..lazy_dataclass import dataclass, field, replace
from ..loops.expr import Apply, Axis, Expr, ValueIndex, reapply, rebuild
from ..loops.free_axes import value_axes
from ..loops.ir import (
    Cast,
    Compute,
    Constant,
    IndexValue,
    Load,
    Value,
    run_time_values,
    walk,
)
from ..symbols.expr import Leaf
from .kernel import (
    Accumulate,
    Check,
    For,
    If,
    Kernel,
    Let,
    Result,
    Set,
    Start,
    Statement,
    Store,
    Var,
    VarIndex,
    statements,
    values_of,
)

__all__ = ["linearize"]

_LONG = torch.int64


def linearize(kernel: Kernel, longest: int = 0) -> Kernel:
    """Return the linear form. An expression that is used once and has at most `longest` operations
    gets no variable.
    """
    return replace(kernel, body=_Linear(kernel, longest).body())


@dataclass(slots=True)
class _Known:
    """Holds what a value is in the linear form, and the depth of the block that has computed it."""

    value: Value
    depth: int
    operations: int = 0  # of an expression without a variable


@dataclass(slots=True)
class _Block:
    """Represents an open block: the axes known in it, its statements, its values."""

    bound: frozenset[Axis] = frozenset()
    made: list[Statement] = field(default_factory=list)
    known: dict[Value, _Known] = field(default_factory=dict)
    checked: dict[tuple[ValueIndex, Value | None], Expr] = field(default_factory=dict)


class _Linear:
    """Rewrites the statements of one kernel."""

    def __init__(self, kernel: Kernel, longest: int) -> None:
        self.kernel, self.longest = kernel, longest
        roots = [root for each in statements(kernel.body) for root in _roots(each)]
        nodes = walk(roots)
        self.free = value_axes(nodes)
        self.uses = Counter(part for node in nodes for part in node.operands)
        self.uses.update(roots)
        self.empty = {param.name for param in kernel.params if param.is_empty}
        self.blocks = [_Block()]
        self.count = 0

    @property
    def depth(self) -> int:
        return len(self.blocks) - 1

    def body(self) -> tuple[Statement, ...]:
        self.run(self.kernel.body)
        return tuple(self.blocks[0].made)

    # -- statements ----------------------------------------------------------------------------

    def run(self, body: Sequence[Statement]) -> None:
        """Add statements to the innermost block. Stores in a row are of one point."""
        at = 0
        while at < len(body):
            end = at
            while end < len(body) and isinstance(body[end], Store):
                end += 1
            if end > at:
                self.emit(*[self.store(each) for each in body[at:end] if isinstance(each, Store)])
                at = end
            else:
                self.statement(body[at])
                at += 1

    def emit(self, *made: Statement) -> None:
        self.blocks[-1].made.extend(made)

    def statement(self, each: Statement) -> None:
        match each:
            case For():
                self.emit(replace(each, body=self.block(each.body, each.axes)))
            case If():
                condition = self.use(each.condition)
                self.emit(If(condition, self.block(each.body, ())))
            case Let(target, Result() as value):
                self.give_name(target, _Known(value, self.depth))
            case Let(target, value):
                self.blocks[-1].known[target] = _Known(self.use(value), self.depth)
            case Accumulate(total, value, position):
                used = self.use(value)
                self.emit(Accumulate(total, used, position))
            case Set(var, value):
                self.emit(Set(var, self.use(value)))
            case Start():
                self.emit(each)
            case _:
                raise TypeError(f"no linear form of {type(each).__name__}")

    def block(self, body: Sequence[Statement], axes: Iterable[Axis]) -> tuple[Statement, ...]:
        """Return the linear form of a block that binds `axes`."""
        self.blocks.append(_Block(self.blocks[-1].bound | frozenset(axes)))
        self.run(body)
        return tuple(self.blocks.pop().made)

    def store(self, store: Store) -> Store:
        value = self.use(store.value)
        for part in run_time_values(store.offset):
            self.use(part)
        return replace(store, offset=self.offset(store.offset, self.depth), value=value)

    # -- values --------------------------------------------------------------------------------

    def use(self, value: Value) -> Value:
        """Return what the value is in the innermost block; what is missing is computed."""
        return self.reach(value, self.depth)

    def reach(self, value: Value, depth: int) -> Value:
        """Return what the value is for the block at `depth`."""
        self.compute(value)
        known = self.known(value)
        assert known is not None
        if not isinstance(known.value, (Var, Constant)) and (
            known.depth < depth or self.needs_name(value, known)
        ):
            self.give_name(value, known)
        return known.value

    def needs_name(self, value: Value, known: _Known) -> bool:
        return self.uses[value] > 1 or known.operations > self.longest

    def give_name(self, value: Value, known: _Known) -> None:
        """Compute the value into a variable, in the block at its depth."""
        var = Var(f"v{self.count}", value.dtype)
        self.count += 1
        self.blocks[known.depth].made.append(Let(var, known.value))
        known.value, known.operations = var, 0
        self.blocks[known.depth].known[value] = known

    def known(self, value: Value) -> _Known | None:
        for block in reversed(self.blocks):
            if value in block.known:
                return block.known[value]
        return None

    def compute(self, root: Value) -> None:
        """Compute everything below `root`, operands first."""
        # An explicit stack, because deep graphs would exceed Python's recursion limit.
        stack = [root]
        while stack:
            node = stack[-1]
            if self.known(node) is not None:
                stack.pop()
                continue
            waiting = [part for part in node.operands if self.known(part) is None]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            if isinstance(node, Constant):
                self.blocks[0].known[node] = _Known(node, 0)
                continue
            depth = self.home(self.free[node], node.operands)
            made = self.expression(node, depth)
            operations = 1 + sum(
                known.operations for part in node.operands if (known := self.known(part))
            )
            self.blocks[depth].known[node] = _Known(made, depth, operations)
            if not self.longest:
                self.give_name(node, self.blocks[depth].known[node])

    def home(self, axes: frozenset[Axis], parts: Iterable[Value]) -> int:
        """Return the outermost block that knows all axes and all parts."""
        depths = range(len(self.blocks))
        depth = next((d for d in depths if axes <= self.blocks[d].bound), self.depth)
        return max([depth, *(known.depth for part in parts if (known := self.known(part)))])

    def expression(self, node: Value, depth: int) -> Value:
        """Return the node over what its operands are in the linear form."""
        match node:
            case Load(buffer=buffer) if buffer in self.empty:
                return Constant(node.fill, node.dtype)
            case Load(mask=mask):
                masked = None if mask is None else self.reach(mask, depth)
                offset = self.offset(node.index[0], depth, masked)
                return Load(node.buffer, (offset,), node.dtype, masked, node.fill)
            case Cast(value=value, dtype=dtype):
                return Cast(self.reach(value, depth), dtype)
            case Compute(op=op, args=args, dtype=dtype):
                return Compute(op, tuple([self.reach(arg, depth) for arg in args]), dtype)
            case IndexValue(expr=expr, dtype=dtype):
                return IndexValue(self.offset(expr, depth), dtype)
        raise TypeError(f"no linear form of {type(node).__name__}")

    # -- offsets -------------------------------------------------------------------------------

    def offset(self, expr: Expr, depth: int, mask: Value | None = None) -> Expr:
        """Return the offset with variables in place of its run-time indexes, which are checked in
        the block at `depth` unless `mask` is false.
        """
        if not run_time_values(expr):
            return expr
        return rebuild(expr, lambda leaf: self.leaf(leaf, depth, mask))

    def leaf(self, leaf: Leaf, depth: int, mask: Value | None) -> Expr:
        match leaf:
            case ValueIndex():
                return self.checked(leaf, depth, mask)
            case Apply(args=args):
                return reapply(leaf, [self.offset(part, depth, mask) for part in args])
        return leaf

    def checked(self, index: ValueIndex, depth: int, mask: Value | None) -> Expr:
        """Return the variable that holds a run-time index, checked once."""
        for block in self.blocks[: depth + 1]:
            if (index, mask) in block.checked:
                return block.checked[index, mask]
        value = self.reach(index.value, depth)
        var = Var(f"at{self.count}", _LONG)
        self.count += 1
        self.blocks[depth].made.append(Check(var, value, index.extent, mask))
        made = self.blocks[depth].checked[index, mask] = VarIndex(var, index.extent)
        return made


def _roots(each: Statement) -> tuple[Value, ...]:
    """Return the values that a statement reads, with its run-time indexes."""
    inside = run_time_values(each.offset) if isinstance(each, Store) else ()
    return (*(v for v in values_of(each) if not isinstance(v, Result)), *inside)
