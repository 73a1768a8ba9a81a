"""Places the values of a kernel: in which block each is computed, and what it is called.

In: the values that statements read, in the order in which they do (linearize.py). Out: expressions
of the linear form, and the statements that compute variables in the blocks that are open. A value
goes into the outermost block that binds all of its axes; equal values of a block and of those
around it are one variable. An expression of few operations that is used once needs no variable.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from itertools import count

import torch

from ..lazy_dataclass import dataclass, field, replace
from ..loops.expr import Apply, Axis, Expr, Integer, ValueIndex, add, linear, reapply, rebuild
from ..loops.ir import AxisVar, Cast, Compute, Constant, IndexValue, Load, Value, run_time_values
from ..operators.scalar import SCALARS
from ..schedule.substitution import expr_axes
from ..symbols.context import SWAPPED
from ..symbols.expr import Leaf
from .kernel import (
    Check,
    Divisor,
    Inside,
    Key,
    LaneCount,
    LanesBelow,
    Let,
    OfKey,
    Partial,
    Result,
    Statement,
    Var,
    VarIndex,
)

__all__ = ["Block", "Known", "LinearValues", "Style"]

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


@dataclass(slots=True)
class Known:
    """Holds what a value is in the linear form, and the depth of the block that has computed it."""

    value: Value
    depth: int
    operations: int = 0  # of an expression without a variable
    is_named: bool = False


@dataclass(slots=True)
class Block:
    """Represents an open block: the axes known in it, its lanes, its statements, its values."""

    bound: frozenset[Axis] = frozenset()
    lane: Axis | None = None
    lanes: int = 1
    made: list[Statement] = field(default_factory=list)
    known: dict[Value, Known] = field(default_factory=dict)
    checked: dict[tuple[ValueIndex, Value | None], Expr] = field(default_factory=dict)
    divisors: dict[Value, Value] = field(default_factory=dict)


class LinearValues:
    """Holds the open blocks, and what values are in them. `free`: the axes of every value; `uses`:
    how often it is used; `empty`: buffers without elements.
    """

    def __init__(
        self,
        style: Style,
        free: Mapping[Value, frozenset[Axis]],
        uses: Mapping[Value, int],
        empty: Container[str],
        names: Callable[[str], str] | None,
    ) -> None:
        self.style, self.free, self.uses, self.empty = style, free, uses, empty
        self.blocks = [Block()]
        numbers = count()
        self.new_name = names or (lambda prefix: f"{prefix}{next(numbers)}")

    @property
    def depth(self) -> int:
        return len(self.blocks) - 1

    def emit(self, *made: Statement) -> None:
        """Add statements to the innermost block."""
        self.blocks[-1].made.extend(made)

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

    def needs_name(self, value: Value, known: Known) -> bool:
        return self.uses[value] > 1 or known.operations > self.style.longest

    def give_name(self, value: Value, known: Known) -> None:
        """Compute the value into a variable, in the block at its depth."""
        block = self.blocks[known.depth]
        is_vector = block.lane is not None and block.lane in self.free[value]
        across = isinstance(known.value, Result) and known.value.across
        var = Var(self.new_name("v"), value.dtype, block.lanes if is_vector and not across else 1)
        block.made.append(Let(var, known.value))
        known.value, known.operations, known.is_named = var, 0, True
        block.known[value] = known

    def known(self, value: Value) -> Known | None:
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
            self.blocks[0].known[node] = Known(node, 0, is_named=True)
            return
        if isinstance(node, (Result, Partial, LaneCount)):
            self.blocks[-1].known[node] = Known(node, self.depth, is_named=True)
            return
        parts = [known for part in node.operands if (known := self.known(part)) is not None]
        depth = self.home(self.free[node], parts)
        known = Known(self.expression(node, depth), depth)
        known.operations = 1 + sum(part.operations for part in parts)
        self.blocks[depth].known[node] = known
        if not self.style.longest:
            self.give_name(node, known)

    def home(self, axes: frozenset[Axis], parts: Iterable[Known]) -> int:
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
            case Compute("philox", (seed, number, IndexValue(expr, wide), *counts), dtype):
                # The printer asks the place itself which lanes share a draw.
                place = IndexValue(self.offset(expr, depth), wide)
                state = self.reach(seed, depth), self.reach(number, depth)
                return Compute("philox", (*state, place, *counts), dtype)
            case Compute(op=op, args=args, dtype=dtype):
                below = self.lanes_below(node, depth) if self.style.lane_bounds else None
                if below is not None:
                    return below
                return type(node)(op, tuple([self.reach(arg, depth) for arg in args]), dtype)
            case IndexValue(expr=expr, dtype=dtype):
                return IndexValue(self.offset(expr, depth), dtype)
            case Inside(value=value):
                return replace(node, value=self.reach(value, depth))
            case Key(value=value, position=position):
                parts = self.reach(value, depth), self.reach(position, depth)
                return Key(*parts, node.op)
            case OfKey(key=key):
                return replace(node, key=self.reach(key, depth))
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


def _is_count(value: Value) -> bool:
    """Return whether the value is a run-time number of elements, as a float."""
    return (
        isinstance(value, Cast)
        and value.dtype in (torch.float32, torch.float64)
        and isinstance(value.value, IndexValue)
        and not expr_axes(value.value.expr)
        and not run_time_values(value.value.expr)
    )
