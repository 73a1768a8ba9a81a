"""Defines the values of the kernel language, beside those of loops/ir.py; see kernel.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ..lazy_dataclass import dataclass
from ..loops.ir import Axis, Compute, Expr, Value
from ..symbols.expr import Leaf, leaves
from ..symbols.size import Dimension, Size, is_same, upper_bound

__all__ = [
    "BAD", "BEGIN", "END", "INTEGERS", "NATIVE", "Approximate", "Divisor", "Fold", "Inside", "Key",
    "LaneCount", "LanesBelow", "OfKey", "Ordered", "Partial", "Prefix", "Result",
    "Statement", "TileBlock", "TileRow", "Total", "Var", "VarIndex", "next_power", "variables_in",
]  # fmt: skip


class Statement:
    """Is the base of the statements."""

    __slots__ = ()


@dataclass(frozen=True, eq=False)
class Var(Value):
    """Names a value that a Let, a Check or an accumulator has defined. `lanes`: those of a vector,
    1 for a scalar, NATIVE for as many as the header files choose.
    """

    name: str
    dtype: torch.dtype
    lanes: int = 1


NATIVE = 0
BAD = Var("bad", torch.int32)
"""The kernel's result: 1 if a run-time index was out of range, else 0."""
BEGIN, END = Axis("begin", 1 << 62), Axis("end", 1 << 62)
"""The range of units that one thread of a Parallel runs."""
INTEGERS: Mapping[str, Callable[..., int]] = {
    "least_of": min,
    "opaque": int,
    "rows_of_block": lambda most, steps: most // steps if 0 < steps < most else 1,
    "wide_block": lambda stop, width: width,  # cpp/blocks.py takes more for longer sums
}
"""Functions of sizes in the bounds of loops, beside those of symbols/."""


@dataclass(frozen=True, slots=True)
class Total:
    """Describes an accumulator of `op` (operators/scalar.py's REDUCTIONS) over `axes`, whose values
    have `operand` as dtype. `var` holds what was accumulated, in its own dtype; `at` the position
    of an argmax or argmin; `lost` the rounding error of a compensated sum. `relative` is beside a
    max the sum of exp(x - var) over the values x so far, without those that are -inf; beside a sum
    that of the squares of their differences from their mean, and then `count` is the number of
    steps so far. `group`: as many neighbouring values of a max share one lane.

    On vectors var has lanes of its own, each of which accumulates. `method` is how: "plain",
    "blocks" for a sum of Joins with compensation, "ordered" for a product in ATen's order, "dot"
    for a Dot, or "scan" if it is read at each point of its loop.
    `one_block`: `(stop, size)` if stop <= size says at run time that there is a single block.
    `wide`: blocks and lanes of float32 are added in float64. `tile`: the axes of a tile of
    accumulators.
    """

    op: str
    axes: tuple[Axis, ...]
    operand: torch.dtype
    var: Var
    at: Var | None = None
    lost: Var | None = None
    method: str = "plain"
    one_block: tuple[Expr, Expr] | None = None
    wide: bool = False
    tile: tuple[Axis, ...] = ()
    relative: Var | None = None
    count: Var | None = None
    group: int = 1


@dataclass(frozen=True, eq=False)
class Result(Value):
    """Is what an accumulator holds after its loop, in the dtype of the reduction. `across`: its
    lanes are combined into one value.
    """

    total: Total
    dtype: torch.dtype
    across: bool = False


@dataclass(frozen=True, eq=False)
class Partial(Value):
    """Is what an accumulator holds after a part of its loop, to be joined with other parts."""

    total: Total
    dtype: torch.dtype
    across: bool = False


@dataclass(frozen=True, eq=False)
class TileRow(Value):
    """Is a row of a tile: a vector."""

    tile: str
    row: Expr
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Approximate(Compute):
    """Is an operation that may err by a few units in the last place, if that is faster."""


@dataclass(frozen=True, eq=False)
class Divisor(Value):
    """Is a number by which a kernel divides often."""

    value: Value
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class LanesBelow(Value):
    """Says of each lane whether its position is below a bound; `first` is that of the first."""

    bound: Value
    first: Expr
    dtype: torch.dtype = torch.bool

    @property
    def operands(self) -> tuple[Value, ...]:
        return (self.bound,)


@dataclass(frozen=True, slots=True, eq=False)
class VarIndex(Leaf):
    """Is an integer variable in an offset: 0 <= var < extent."""

    var: Var
    extent: int

    @property
    def limits(self) -> tuple[int, int]:
        return 0, max(upper_bound(self.extent) - 1, 0)

    @property
    def rank(self) -> tuple[int, str, int]:
        return 3, self.var.name, upper_bound(self.extent)


def variables_in(expr: Expr) -> tuple[Var, ...]:
    """Return the variables in an offset."""
    return tuple(leaf.var for leaf in leaves(expr) if isinstance(leaf, VarIndex))


def next_power(n: int) -> int:
    """Return the smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True, slots=True)
class TileBlock:
    """Covers `size` neighbouring points (a power of two) of the row-major space of `axes`. `fits`:
    a dynamic extent is assumed to be no larger. `group`: blocks are visited in groups of so many
    points, the last of which may run past the extent.

    `row`: the place in memory of the first point, where most accesses are. The first block then
    begins before it, at a multiple of `unit`, so that accesses of several elements are aligned.
    """

    name: str
    axes: tuple[Axis, ...]
    extent: Dimension
    size: int
    fits: bool = False
    row: Expr | None = None
    unit: int = 1
    group: int = 1

    @property
    def reach(self) -> Dimension:
        """Return the extent with the most points before it."""
        return self.extent + (self.unit - 1)

    @property
    def count(self) -> Dimension:
        """Return the number of blocks that cover the extent."""
        return -(-self.reach // self.size)

    @property
    def single(self) -> bool:
        """Return whether one block covers the extent in every call."""
        return self.fits or (not isinstance(self.extent, Size) and self.count == 1)

    @property
    def ragged(self) -> bool:
        """Return whether the last block may run past the extent."""
        return self.row is not None or not is_same(self.extent % max(self.size, self.group), 0)


@dataclass(frozen=True, eq=False)
class Inside(Value):
    """Is a value with `fill` in place of points outside of the block's extent."""

    value: Value
    block: TileBlock
    fill: bool | int | float
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class LaneCount(Value):
    """Is the number of points that each lane of a block takes in a loop over its extent."""

    block: TileBlock
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Fold(Value):
    """Combines the points of a block by a reduction, which keeps the dimension with size 1."""

    op: str
    value: Value
    block: TileBlock
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Prefix(Value):
    """Combines each point of a block with those before it in the block, as a scan does."""

    op: str
    value: Value
    block: TileBlock
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Key(Value):
    """Is an int64 that is greater the earlier a value comes in an order; `position` decides
    between equal values.
    """

    value: Value
    position: Value
    op: str
    dtype: torch.dtype = torch.int64

    @property
    def operands(self) -> tuple[Value, ...]:
        return (self.value, self.position)


@dataclass(frozen=True, eq=False)
class Ordered(Value):
    """Is the keys of a block in order: the first ones, as many as `places` has points."""

    keys: Value
    block: TileBlock
    places: TileBlock
    dtype: torch.dtype = torch.int64

    @property
    def operands(self) -> tuple[Value, ...]:
        return (self.keys,)


@dataclass(frozen=True, eq=False)
class OfKey(Value):
    """Is the value or the position (`part`) that a key was made of, in the order `op`."""

    key: Value
    op: str
    part: str
    dtype: torch.dtype

    @property
    def operands(self) -> tuple[Value, ...]:
        return (self.key,)
