"""Turns the loop form of a kernel into the linear form: decides where each value is computed, what
it is called, and which values are computed once.

In: a Kernel in the loop form. Out: the linear form. A value goes into the outermost block that
binds all of its axes, so that loop-invariant values are computed before the inner loop; equal
values of a block and of those around it are one variable. An expression of few operations that is
used once needs no variable: it is part of the expression that uses it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count

import torch

from ..lazy_dataclass import dataclass, field, replace
from ..loops.expr import Apply, Axis, Expr, Integer, ValueIndex, add, linear, reapply, rebuild
from ..loops.free_axes import value_axes
from ..loops.ir import (
    AxisVar,
    Cast,
    Compute,
    Constant,
    IndexValue,
    Load,
    Value,
    run_time_values,
    walk,
)
from ..operators.scalar import SCALARS
from ..schedule.substitution import expr_axes
from ..symbols.context import SWAPPED
from ..symbols.expr import Leaf
from .kernel import (
    BEGIN,
    END,
    NATIVE,
    Accumulate,
    Barrier,
    Call,
    Check,
    Divisor,
    Dot,
    Fold,
    For,
    Function,
    If,
    Inside,
    Join,
    Kernel,
    LanesBelow,
    Let,
    LoadTile,
    Open,
    Parallel,
    Partial,
    Parts,
    Program,
    Result,
    Return,
    Scratch,
    Set,
    Start,
    Statement,
    Store,
    Trips,
    Var,
    VarIndex,
    Whole,
)
from .kernel_walk import statements, values_of

__all__ = ["Style", "linearize"]

_LONG = torch.int64
# Comparison -> (positions above the bound for which it still holds, whether it is negated).
_BELOW = {"<": (0, False), ">=": (0, True), "<=": (1, False), ">": (1, True)}


@dataclass(frozen=True, slots=True)
class Style:
    """Says what a language has. `longest`: an expression that is used once and has at most so many
    operations gets no variable. `divisors`: a Divisor for a run-time number of elements.
    `lane_bounds`: a comparison of a lane's position with a bound is a number of lanes. `tiles`:
    several threads store the points of a program, so all values are computed before.
    """

    longest: int = 0
    divisors: bool = False
    lane_bounds: bool = False
    tiles: bool = False


_SCALAR = Style()


def linearize(
    kernel: Kernel, style: Style = _SCALAR, names: Callable[[str], str] | None = None
) -> Kernel:
    """Return the linear form. `names` makes a new name with a prefix."""
    return replace(kernel, body=_Linear(kernel, style, names).body())


@dataclass(slots=True)
class _Known:
    """Holds what a value is in the linear form, and the depth of the block that has computed it."""

    value: Value
    depth: int
    operations: int = 0  # of an expression without a variable
    is_named: bool = False


@dataclass(slots=True)
class _Block:
    """Represents an open block: the axes known in it, its lanes, its statements, its values."""

    bound: frozenset[Axis] = frozenset()
    lane: Axis | None = None
    lanes: int = 1
    made: list[Statement] = field(default_factory=list)
    known: dict[Value, _Known] = field(default_factory=dict)
    checked: dict[tuple[ValueIndex, Value | None], Expr] = field(default_factory=dict)
    divisors: dict[Value, Value] = field(default_factory=dict)


class _Linear:
    """Rewrites the statements of one kernel."""

    def __init__(self, kernel: Kernel, style: Style, names: Callable[[str], str] | None) -> None:
        self.kernel, self.style = kernel, style
        roots = [root for each in statements(kernel.body) for root in _roots(each)]
        nodes = walk(roots)
        self.free = value_axes(nodes)
        for node in nodes:
            if isinstance(node, Inside):  # also where the value is the same for all points
                self.free[node] |= frozenset(node.block.axes)
        self.uses = Counter(part for node in nodes for part in node.operands)
        self.uses.update(root for each in statements(kernel.body) for root in _results(each))
        self.params = {param.name for param in kernel.params}
        self.empty = {param.name for param in kernel.params if param.is_empty}
        # What memory holds may change between two stores of a point.
        self.unchanged = {param.name for param in kernel.params if param.is_constant}
        self.blocks = [_Block()]
        numbers = count()
        self.new_name = names or (lambda prefix: f"{prefix}{next(numbers)}")

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
            fence = [each for each in body[at : at + 1] if isinstance(each, Barrier)]
            stores = [*self.stores_from(body, at + len(fence))]
            if stores:
                self.stores(stores, fence)
            else:
                self.statement(body[at])
            at += max(len(fence) + len(stores), 1)

    def stores_from(self, body: Sequence[Statement], at: int) -> Iterator[Store]:
        """Yield the stores of a point that begin at a statement."""
        for each in body[at:]:
            if not isinstance(each, Store):
                return
            yield each
            if each.buffer not in self.params:  # a scratch row
                return

    def emit(self, *made: Statement) -> None:
        self.blocks[-1].made.extend(made)

    def statement(self, each: Statement) -> None:
        match each:
            case For(kind="vector" | "vector_counted", axes=(lane,), step=int(lanes)):
                self.emit(replace(each, body=self.block(each.body, {lane}, lane, lanes)))
            case For() | Parallel() | Trips() | Parts() | Whole():
                self.emit(replace(each, body=self.block(each.body, _bound_by(each))))
            case If():
                condition = self.use(each.condition)
                self.emit(If(condition, self.block(each.body, ())))
            case Function():
                self.emit(self.function(each))
            case Call():
                args = [self.function(a) if isinstance(a, Function) else a for a in each.args]
                self.emit(replace(each, args=tuple(args)))
            case Let(target, value):
                self.let(target, value)
            case Accumulate(total, value, position):
                used = self.use(value)
                self.emit(Accumulate(total, used, position))
            case Set(var, value):
                self.emit(Set(var, self.use(value)))
            case Join(total, part):
                self.emit(Join(total, self.use(part)))
            case Dot(_, a, b):
                left, right = self.named(self.use(a)), self.named(self.use(b))
                self.emit(replace(each, a=left, b=right))
            case Program(blocks):
                self.blocks[-1].bound |= frozenset(axis for b in blocks for axis in b.axes)
                self.emit(each)
            case Open(block):
                self.blocks[-1].bound |= frozenset(block.axes)
                self.emit(each)
            case Return(value):
                self.emit(Return(self.use(value)))
            case Start() | Scratch() | LoadTile():
                self.emit(each)
            case _:
                raise TypeError(f"no linear form of {type(each).__name__}")

    def block(
        self, body: Sequence[Statement], axes: Iterable[Axis], lane: Axis | None = None,
        lanes: int = 1,
    ) -> tuple[Statement, ...]:  # fmt: skip
        """Return the linear form of a block that binds `axes`."""
        outside = self.blocks[-1]
        if lane is None:
            lane, lanes = outside.lane, outside.lanes
        self.blocks.append(_Block(outside.bound | frozenset(axes), lane, lanes))
        self.run(body)
        return tuple(self.blocks.pop().made)

    def function(self, function: Function) -> Function:
        body = self.block(function.body, function.bound, function.lane, NATIVE)
        return replace(function, body=body)

    def let(self, target: Value, value: Value) -> None:
        """Bind a value of the nest to what the loops make of it."""
        known = _Known(value, self.depth, is_named=True)
        if isinstance(value, Result) and (value.across or not self.style.longest):
            known.is_named = False
            self.give_name(target, known)
        elif isinstance(value, Fold):
            made = replace(value, value=self.named(self.use(value.value)))
            known = _Known(made, self.depth)
            self.give_name(target, known)
        elif isinstance(target, Var):
            self.emit(Let(target, self.expression(value, self.depth)))
            known.value = target
        self.blocks[-1].known[target] = known

    def stores(self, stores: Sequence[Store], fence: Sequence[Barrier]) -> None:
        """Add the stores of a point; `fence`: the barrier before them, if there is one."""
        self.settle(stores)
        ready = [self.store(store) for store in stores]
        if fence or (self.style.tiles and len(stores) > 1):
            ready = [replace(store, value=self.named(store.value)) for store in ready]
        self.emit(*fence, *ready)

    def named(self, value: Value) -> Value:
        """Return a variable of the innermost block for an expression of the linear form."""
        if isinstance(value, (Var, Constant, Result)):
            return value
        var = Var(self.new_name("v"), value.dtype)
        self.emit(Let(var, value))
        return var

    def settle(self, stores: Sequence[Store]) -> None:
        """Load the operands of later stores before the first one writes."""
        # The first store may overwrite them: a mutated input, or a dying operand whose memory is
        # reused (memory.py).
        for store in () if self.style.tiles else stores[1:]:
            for value in (store.value, *run_time_values(store.offset)):
                self.use(value)
                known = self.known(value)
                assert known is not None
                if not known.is_named and self.reads_what_changes(value):
                    self.give_name(value, known)

    def reads_what_changes(self, value: Value) -> bool:
        loads = [node.buffer for node in walk((value,)) if isinstance(node, Load)]
        return not self.unchanged.issuperset(loads)

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
        if not known.is_named and (known.depth < depth or self.needs_name(value, known)):
            self.give_name(value, known)
        return known.value

    def needs_name(self, value: Value, known: _Known) -> bool:
        return self.uses[value] > 1 or known.operations > self.style.longest

    def give_name(self, value: Value, known: _Known) -> None:
        """Compute the value into a variable, in the block at its depth."""
        block = self.blocks[known.depth]
        is_vector = block.lane is not None and block.lane in self.free[value]
        across = isinstance(known.value, Result) and known.value.across
        var = Var(self.new_name("v"), value.dtype, block.lanes if is_vector and not across else 1)
        block.made.append(Let(var, known.value))
        known.value, known.operations, known.is_named = var, 0, True
        block.known[value] = known

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
            self.enter(node)

    def enter(self, node: Value) -> None:
        """Note what a value is whose operands are known, in the block that computes it."""
        if isinstance(node, (Constant, Var)):
            self.blocks[0].known[node] = _Known(node, 0, is_named=True)
            return
        if isinstance(node, (Result, Partial)):
            self.blocks[-1].known[node] = _Known(node, self.depth, is_named=True)
            return
        parts = [known for part in node.operands if (known := self.known(part)) is not None]
        depth = self.home(self.free[node], parts)
        known = _Known(self.expression(node, depth), depth)
        known.operations = 1 + sum(part.operations for part in parts)
        self.blocks[depth].known[node] = known
        if not self.style.longest:
            self.give_name(node, known)

    def home(self, axes: frozenset[Axis], parts: Iterable[_Known]) -> int:
        """Return the outermost block that knows all axes and all parts."""
        depths = range(len(self.blocks))
        depth = next((d for d in depths if axes <= self.blocks[d].bound), self.depth)
        return max([depth, *(part.depth for part in parts)])

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
            case Compute("truediv", (a, b)) if self.style.divisors and _is_count(b):
                pair = self.reach(a, depth), self.divisor(b, depth)
                return Compute("truediv", pair, node.dtype)
            case Compute(op=op, args=args, dtype=dtype):
                below = self.lanes_below(node, depth) if self.style.lane_bounds else None
                if below is not None:
                    return below
                return Compute(op, tuple([self.reach(arg, depth) for arg in args]), dtype)
            case IndexValue(expr=expr, dtype=dtype):
                return IndexValue(self.offset(expr, depth), dtype)
            case Inside(value=value):
                return replace(node, value=self.reach(value, depth))
        raise TypeError(f"no linear form of {type(node).__name__}")

    def divisor(self, count: Value, depth: int) -> Value:
        """Return the variable of a divisor, in the block in which it is computed."""
        # It multiplies by the reciprocal where that is exact, for powers of two: layer norm of rows
        # of 64 takes 1.06 of the static kernel's time, 1.16 with divisions.
        number = self.reach(count, depth)
        known = self.known(count)
        assert known is not None
        block = self.blocks[known.depth]
        if count not in block.divisors:
            var = Var(self.new_name("v"), count.dtype)
            block.made.append(Let(var, Divisor(number, count.dtype)))
            block.divisors[count] = var
        return block.divisors[count]

    def lanes_below(self, node: Compute, depth: int) -> Value | None:
        """Return a comparison of lane positions with a uniform bound as a number of lanes; None for
        other comparisons.
        """
        # As two registers of int64 per side, padding 512 by 64 took 1.6 of the static kernel's
        # time, now 0.96.
        lane = self.blocks[depth].lane
        symbol = SCALARS[node.op].symbol
        if symbol not in _BELOW or lane is None or lane not in self.free[node]:
            return None
        position, bound = node.args
        if not self.counts_lanes(position, lane):
            position, bound, symbol = bound, position, SWAPPED[symbol]
        if not self.counts_lanes(position, lane) or lane in self.free[bound]:
            return None
        assert isinstance(position, IndexValue)
        more, is_negated = _BELOW[symbol]
        first = self.offset(add(position.expr, Integer(-more)), depth)
        below = LanesBelow(self.reach(bound, depth), first)
        return Compute("bitwise_not", (below,), torch.bool) if is_negated else below

    def counts_lanes(self, value: Value, lane: Axis) -> bool:
        """Return whether the value is a position that grows by one from lane to lane."""
        if not isinstance(value, IndexValue) or value.dtype != _LONG:
            return False
        if any(lane in self.free[part] for part in run_time_values(value.expr)):
            return False
        terms = linear(value.expr)[1]
        others = [atom for atom in terms if atom != AxisVar(lane)]
        return terms.get(AxisVar(lane)) == 1 and all(lane not in expr_axes(a) for a in others)

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
        known = self.known(index.value)
        if self.style.tiles and mask is None and known is not None:
            depth = known.depth  # no tile of a program is empty
        block = self.blocks[depth]
        is_vector = block.lane is not None and block.lane in self.free[index.value]
        var = Var(self.new_name("at"), _LONG, block.lanes if is_vector else 1)
        block.made.append(Check(var, value, index.extent, mask))
        made = block.checked[index, mask] = VarIndex(var, index.extent)
        return made


def _bound_by(each: Statement) -> tuple[Axis, ...]:
    match each:
        case For(axes):
            return axes
        case Parts(axis, end):
            return axis, end
        case Parallel():
            return BEGIN, END
    return ()


def _roots(each: Statement) -> tuple[Value, ...]:
    """Return the values that a statement reads, with its run-time indexes."""
    inside = run_time_values(each.offset) if isinstance(each, Store) else ()
    read = values_of(each)
    if isinstance(each, Let) and isinstance(each.value, Fold):
        read = (each.target, each.value.value)
    elif isinstance(each, Let) and not isinstance(each.target, Var):
        read = (each.target,)  # what it is bound to is of the linear form already
    return (*read, *inside)


def _results(each: Statement) -> tuple[Value, ...]:
    """Return what leaves the kernel in a statement; a reduction's value is its operand."""
    return (each.value,) if isinstance(each, (Store, Return)) else ()


def _is_count(value: Value) -> bool:
    """Return whether the value is a run-time number of elements, as a float."""
    return (
        isinstance(value, Cast)
        and value.dtype in (torch.float32, torch.float64)
        and isinstance(value.value, IndexValue)
        and not expr_axes(value.value.expr)
        and not run_time_values(value.value.expr)
    )
