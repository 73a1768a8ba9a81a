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
              | Program(blocks) | Open(block)   axes are tiles of points from here on, in this block
              | Section(name, buffer, offset)   a buffer from an element on, which may be far
              | Dot(total, a, b)                a product of two tiles, on tensor cores
              | Barrier()                       the threads of a program wait for each other
              | LoadTile(tile, buffer, offset)  a transposed square of a buffer, in registers
              | Whole(body)                     body, compiled once more for full vectors
              | WholeBlock(block, body)         the same for tiles of an open block
              | Function(name, axes, body) | Call(function, args)   a product, an attention
              | Return(value)                   the result of a function that a Call takes
              | Set(var, value)                 var is value from here on, also after a loop
              | If(condition, body).
    Value     = Var(name, dtype) | Result(total, dtype) | Partial(total, dtype)
              | TileRow(tile, row, dtype) | Divisor(value) | LanesBelow(bound, first)
              | Inside(value, block, fill) | Fold(op, value, block) | Prefix(op, value, block)
              | LaneCount(block)
              | Key(value, position) | Ordered(keys, block, places) | OfKey(key, part)
              | Approximate(op, args)
              | Load | Constant | IndexValue | Compute | Cast          of loops/ir.py.
    Offset    = an expression of loops/expr.py: elements from the beginning of a buffer.

A For of kind "vector" computes `step` points at once: a value that varies along its axis is a
vector, whose lanes after the last point are neither read, stored nor accumulated.

A For of kind "block", for the block interpreter, computes a block of points of its last axis at
once. The interpreter chooses the grain of a Parallel itself.

On a GPU a value that varies along the axes of an open TileBlock is a tile of its points. Points
outside of the extent are neither read, so that a Load is its `fill`, nor stored; Inside replaces
their values where they would count, Fold combines the points of a block, and Prefix each point with
those before it.

A scan is an accumulator whose Result is read inside of its loop, after each Accumulate; in a tile
it is a Prefix, joined with the accumulator of the blocks before. A row in order is Ordered keys.

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

import torch

from ..lazy_dataclass import dataclass
from ..loops.ir import Axis, Expr, Integer, Value
from ..symbols.size import Dimension, Size
from ..symbols.symbolic_numbers import Symbol
from .kernel_tiles import Barrier, Dot, Open, Program, Section, WholeBlock
from .kernel_values import (
    BAD,
    BEGIN,
    END,
    INTEGERS,
    NATIVE,
    Approximate,
    Divisor,
    Fold,
    Inside,
    Key,
    LaneCount,
    LanesBelow,
    OfKey,
    Ordered,
    Partial,
    Prefix,
    Result,
    Statement,
    TileBlock,
    TileRow,
    Total,
    Var,
    VarIndex,
)

__all__ = [
    "BAD", "BEGIN", "END", "INTEGERS", "NATIVE", "Accumulate", "Approximate", "Argument", "Atomic",
    "Barrier", "Call", "Check", "Divisor", "Dot", "Fold", "For", "Function", "Grain", "Group", "If",
    "Inside", "Join", "Kernel", "Key", "LaneCount", "LanesBelow", "Let", "LoadTile", "OfKey",
    "Open", "Ordered", "Parallel", "Param", "Partial", "Parts", "Pointer", "Prefix", "Program",
    "Result", "Return", "Scratch", "Section", "Set", "Start", "Statement", "Store", "TileBlock",
    "TileRow", "Total", "Trips", "Var", "VarIndex", "Whole", "WholeBlock",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class For(Statement):
    """Loops from `start` to `stop`, by default over all points. Several axes with a start count
    flat positions. `trips`: the name of the Trips around it that knows its number of steps.
    """

    axes: tuple[Axis, ...]
    body: tuple[Statement, ...]
    kind: str = "serial"  # or "vector", "block"; "vector_counted": lanes are not compiled twice
    start: Expr = Integer(0)
    stop: Expr | None = None
    step: int | Expr = 1
    trips: str = ""
    stages: int = 0  # iterations whose loads are in flight on a GPU; 0: the compiler's choice
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
    """Accumulates a value. `position`: that of an argmax or argmin; `block`: a value outside of it
    does not count.
    """

    total: Total
    value: Value
    position: Expr | None = None
    block: TileBlock | None = None


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
    size: int | Expr
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
    """Sets an element for each point of the loops around it, and of `axes` in a tile."""

    buffer: str
    offset: Expr
    value: Value
    axes: tuple[Axis, ...] = ()


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

    @property
    def argument_dtypes(self) -> tuple[torch.dtype, ...]:
        """Return the dtypes of the arguments; dynamic sizes are one more, so that one kernel serves
        all of them: compiling for each size took 0.25 to 1.7 s.
        """
        dtypes = tuple([param.dtype for param in self.params])
        return (*dtypes, torch.int64) if self.sizes else dtypes
