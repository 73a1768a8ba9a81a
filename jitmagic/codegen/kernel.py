"""Defines the kernel language, which is built from a nest and printed by the renderers.

    Kernel    = name, params, sizes, body.
    Statement = For(axes, body, kind, start, stop, step)   a loop over points of axes, row-major
              | Parallel(units, grain, body)    body for ranges [BEGIN, END) of units, on threads
              | Let(target, value)              target is value from here on, in this block
              | Store(buffer, offset, value)    buffer[offset] = value
              | Atomic(buffer, offset, value)   buffer[offset] += value, as other points may do
              | Scratch(name, dtype, size)      memory of the kernel, loaded and stored like buffers
              | Start(total) | Accumulate(total, value, position) | Join(total, part)   a reduction
              | Check(var, index, extent, mask) var = index, counted from the end if it is negative;
                                                one out of range sets BAD, and var is 0
              | Trips(name, axis, most, body)   body, compiled once more for few steps of a loop
              | Parts(axis, size, stop, body)   a loop over parts, of which there is most often one
              | LoadTile(tile, buffer, offset)  a transposed square of a buffer, in registers
              | Whole(body)                     body, compiled once more for full vectors
              | Function(name, axes, body) | Call(function, args)   a product, an attention
              | Return(value)                   the result of a function that a Call takes
              | Set(var, value) | If(condition, body)   what `expand` makes of reductions.
    Value     = Var(name, dtype) | Result(total, dtype) | Partial(total, dtype)
              | TileRow(tile, row, dtype) | Divisor(value) | LanesBelow(bound, first)
              | Load | Constant | IndexValue | Compute | Cast          of loops/ir.py.
    Offset    = an expression of loops/expr.py: elements from the beginning of a buffer.

A For of kind "vector" computes `step` points at once: a value that varies along its axis is a
vector, whose lanes after the last point are neither read, stored nor accumulated.

A kernel has two forms. In the loop form values are as in the nest: a Let may bind a Reduction, and
an offset holds run-time indexes (ValueIndex). The passes that choose loops work on this form.
`linearize` then decides once where each value is computed and what it is called: in the linear
form an operand is a Var, a Constant or an expression that nothing else uses, and an offset holds
variables (VarIndex) in place of run-time indexes. Renderers print the linear form. Either form runs
in the reference interpreter (kernel_interpreter.py), so that a wrong answer is bisected to a pass.

Statements run in order. A value read by a statement is computed before its block's next statement;
stores of a point come after all of its values, because one may overwrite an operand of another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from ..lazy_dataclass import dataclass, replace
from ..loops.ir import Axis, Expr, Integer, Value
from ..symbols.expr import Leaf
from ..symbols.size import Dimension, Size, upper_bound
from ..symbols.symbolic_numbers import Symbol

__all__ = [
    "BAD",
    "BEGIN",
    "END",
    "INTEGERS",
    "NATIVE",
    "Accumulate",
    "Argument",
    "Atomic",
    "Call",
    "Check",
    "Divisor",
    "For",
    "Function",
    "Grain",
    "Group",
    "If",
    "Join",
    "Kernel",
    "LanesBelow",
    "Let",
    "LoadTile",
    "Parallel",
    "Param",
    "Partial",
    "Parts",
    "Pointer",
    "Result",
    "Return",
    "Scratch",
    "Set",
    "Start",
    "Statement",
    "Store",
    "TileRow",
    "Total",
    "Trips",
    "Var",
    "VarIndex",
    "Whole",
    "block_of",
    "blocks_of",
    "functions_of",
    "statements",
    "values_of",
    "with_blocks",
]  # fmt: skip


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
    of an argmax or argmin; `lost` the rounding error of a compensated sum.

    On vectors var has lanes of its own, each of which accumulates. `method` is how: "plain",
    "blocks" for a sum of Joins with compensation, or "ordered" for a product in ATen's order.
    `one_block`: `(stop, size)` if stop <= size says at run time that there is a single block.
    `wide`: blocks and lanes of float32 are added in float64.
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
class Divisor(Value):
    """Is a number by which a kernel divides often."""

    value: Value
    dtype: torch.dtype

    @property
    def operands(self) -> tuple[Value, ...]:
        return (self.value,)


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


class Statement:
    """Is the base of the statements."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class For(Statement):
    """Loops from `start` to `stop`, by default over all points. Several axes with a start count
    flat positions. `trips`: the name of the Trips around it that knows its number of steps.
    """

    axes: tuple[Axis, ...]
    body: tuple[Statement, ...]
    kind: str = "serial"  # or "vector"; "vector_counted": lanes are not compiled twice
    start: Expr = Integer(0)
    stop: Expr | None = None
    step: int | Expr = 1
    trips: str = ""
    most: Dimension | None = None  # points between start and stop, if these are not all


@dataclass(frozen=True, slots=True)
class Grain:
    """Computes the least units of a task at run time: all if the work, `each` per unit, is at most
    `least`, else about `piece` of work.
    """

    each: Dimension
    least: int
    piece: int
    threads: int


@dataclass(frozen=True, slots=True)
class Parallel(Statement):
    units: Dimension
    grain: int | Grain
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Trips(Statement):
    """Tests a dynamic trip count once, around the loops that it names. `most`: the steps of
    `width` points for which body is compiled once more; `twice`: whether it is.
    """

    name: str
    axis: Axis
    width: int
    most: int
    body: tuple[Statement, ...]
    twice: bool = True


@dataclass(frozen=True, slots=True)
class Parts(Statement):
    """Runs body for [axis, axis_end) in [0, stop); `totals` begin a new block between two parts."""

    axis: Axis
    end: Axis
    size: Expr
    stop: Expr
    totals: tuple[Total, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Let(Statement):
    target: Value
    value: Value


@dataclass(frozen=True, slots=True)
class Start(Statement):
    total: Total


@dataclass(frozen=True, slots=True)
class Accumulate(Statement):
    total: Total
    value: Value
    position: Expr | None = None


@dataclass(frozen=True, slots=True)
class Join(Statement):
    """Adds the result of another part of the loop, in order."""

    total: Total
    part: Value


@dataclass(frozen=True, slots=True)
class Scratch(Statement):
    """Declares memory of `size` elements, each of `lanes` values. `parts_of`: they are Partials of
    that accumulator, which all threads of the kernel write.
    """

    name: str
    dtype: torch.dtype
    size: int
    lanes: int = 1
    parts_of: Total | None = None


@dataclass(frozen=True, slots=True)
class LoadTile(Statement):
    """Loads `rows` rows of `lane`'s lanes, contiguous along the rows; lanes are `step` apart."""

    tile: str
    dtype: torch.dtype
    width: int
    buffer: str
    offset: Expr
    step: int | Expr
    rows: Expr
    counted: bool = False  # inside a loop of kind "vector_counted"


@dataclass(frozen=True, slots=True)
class Whole(Statement):
    """Compiles the body once more for vectors all of whose lanes are inside."""

    dtype: torch.dtype
    width: int
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Store(Statement):
    buffer: str
    offset: Expr
    value: Value


@dataclass(frozen=True, slots=True)
class Atomic(Store):
    """Adds to an element; on bools it is `or`."""


@dataclass(frozen=True, slots=True)
class Check(Statement):
    var: Var
    index: Value
    extent: Dimension
    mask: Value | None = None  # where it is false, the index is not used and not checked


@dataclass(frozen=True, slots=True)
class Pointer:
    """Is the address of an element."""

    buffer: str
    offset: Expr


@dataclass(frozen=True, slots=True)
class Group:
    """Groups arguments: `name(args)` of the header files, or a record without a name."""

    args: tuple[Argument, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Function(Statement):
    """Is a function that a Call takes; as a statement it is one that a Call names. Its parameters
    are `given`, the positions of `axes` (None: a position that it does not use), and the number of
    valid lanes along `lane`. It ends with a Return, or returns nothing.
    """

    name: str
    given: Var | None
    axes: tuple[Axis | None, ...]
    lane: Axis
    body: tuple[Statement, ...]
    count: str = "int64_t n"

    @property
    def bound(self) -> frozenset[Axis]:
        return frozenset(axis for axis in self.axes if axis is not None) | {self.lane}


Argument = int | float | str | Size | Expr | Pointer | Group | Function


@dataclass(frozen=True, slots=True)
class Call(Statement):
    """Calls a function of the header files; `constants` are arguments at compile time."""

    function: str
    args: tuple[Argument, ...]
    header: str
    constants: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True)
class Return(Statement):
    value: Value


@dataclass(frozen=True, slots=True)
class Set(Statement):
    var: Var
    value: Value


@dataclass(frozen=True, slots=True)
class If(Statement):
    condition: Value
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Param:
    """Describes an argument: a pointer to the elements of a buffer. `is_empty`: it has none;
    `is_constant`: no store of the kernel changes its memory, which temporaries share.
    """

    name: str
    dtype: torch.dtype
    written: bool
    is_empty: bool = False
    is_constant: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """Describes one function. `sizes` are the symbols of its dynamic sizes, one more argument;
    `origins` the ATen nodes that it computes.
    """

    name: str
    params: tuple[Param, ...]
    sizes: tuple[Symbol, ...]
    body: tuple[Statement, ...]
    origins: tuple[str, ...] = ()


_BLOCKS = (For, If, Parallel, Trips, Parts, Whole, Function)
Change = Callable[[tuple[Statement, ...]], tuple[Statement, ...]]


def blocks_of(statement: Statement) -> tuple[tuple[Statement, ...], ...]:
    """Return the bodies inside a statement."""
    if isinstance(statement, Call):
        return tuple(function.body for function in functions_of(statement.args))
    return (statement.body,) if isinstance(statement, _BLOCKS) else ()


def with_blocks(statement: Statement, change: Change) -> Statement:
    """Return the statement with `change(body)` in place of each body."""
    if isinstance(statement, Call):
        args = [
            replace(arg, body=change(arg.body)) if isinstance(arg, Function) else arg
            for arg in statement.args
        ]
        called: Statement = replace(statement, args=tuple(args))
        return called
    if isinstance(statement, _BLOCKS):
        changed: Statement = replace(statement, body=change(statement.body))
        return changed
    return statement


def block_of(total: Total) -> Total:
    """Return the accumulator of one part of a total that takes Parts."""
    return replace(total, var=replace(total.var, name=f"{total.var.name}.block"))


def functions_of(args: Iterable[Argument]) -> list[Function]:
    """Return the functions among the arguments of a Call."""
    return [arg for arg in args if isinstance(arg, Function)]


def statements(body: Iterable[Statement]) -> Iterator[Statement]:
    """Yield all statements, outer ones before those inside."""
    for statement in body:
        yield statement
        for block in blocks_of(statement):
            yield from statements(block)


def values_of(statement: Statement) -> tuple[Value, ...]:
    """Return the values that a statement itself reads, in the order in which it does."""
    match statement:
        case Let(value=value) | Accumulate(value=value) | Set(value=value) | Store(value=value):
            return (value,)
        case Return(value) | Join(part=value):
            return (value,)
        case Check(index=index, mask=mask):
            return (index,) if mask is None else (index, mask)
        case If(condition=condition):
            return (condition,)
    return ()
