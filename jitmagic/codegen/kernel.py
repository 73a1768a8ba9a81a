"""Defines the kernel language, which is built from a nest and printed by the renderers.

    Kernel    = name, params, sizes, body.
    Statement = For(axes, body, kind)           a loop over the points of axes, row-major
              | Let(target, value)              target is value from here on, in this block
              | Store(buffer, offset, value)    buffer[offset] = value
              | Atomic(buffer, offset, value)   buffer[offset] += value, as other points may do
              | Start(total) | Accumulate(total, value, position)   a reduction
              | Check(var, index, extent, mask) var = index, counted from the end if it is negative;
                                                one out of range sets BAD, and var is 0
              | Set(var, value) | If(condition, body)   what `expand` makes of the last three.
    Value     = Var(name, dtype) | Result(total, dtype)
              | Load | Constant | IndexValue | Compute | Cast          of loops/ir.py.
    Offset    = an expression of loops/expr.py: elements from the beginning of a buffer.

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

from collections.abc import Callable, Iterable, Iterator

import torch

from ..lazy_dataclass import dataclass, replace
from ..loops.ir import Axis, Expr, Value
from ..symbols.expr import Leaf
from ..symbols.size import Dimension, upper_bound
from ..symbols.symbolic_numbers import Symbol

__all__ = [
    "BAD",
    "Accumulate",
    "Atomic",
    "Check",
    "For",
    "If",
    "Kernel",
    "Let",
    "Param",
    "Result",
    "Set",
    "Start",
    "Statement",
    "Store",
    "Total",
    "Var",
    "VarIndex",
    "blocks_of",
    "statements",
    "values_of",
    "with_bodies",
]


@dataclass(frozen=True, eq=False)
class Var(Value):
    """Names a value that a Let, a Check or an accumulator has defined."""

    name: str
    dtype: torch.dtype


BAD = Var("bad", torch.int32)
"""The kernel's result: 1 if a run-time index was out of range, else 0."""


@dataclass(frozen=True, slots=True)
class Total:
    """Describes an accumulator of `op` (operators/scalar.py's REDUCTIONS) over `axes`, whose values
    have `operand` as dtype. `var` holds what was accumulated, in its own dtype; `at` the position
    of an argmax or argmin; `lost` the rounding error of a compensated sum.
    """

    op: str
    axes: tuple[Axis, ...]
    operand: torch.dtype
    var: Var
    at: Var | None = None
    lost: Var | None = None


@dataclass(frozen=True, eq=False)
class Result(Value):
    """Is what an accumulator holds after its loop, in the dtype of the reduction."""

    total: Total
    dtype: torch.dtype


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
    axes: tuple[Axis, ...]
    body: tuple[Statement, ...]
    kind: str = "serial"


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
class Set(Statement):
    var: Var
    value: Value


@dataclass(frozen=True, slots=True)
class If(Statement):
    condition: Value
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Param:
    """Describes an argument: a pointer to the elements of a buffer. `is_empty`: it has none."""

    name: str
    dtype: torch.dtype
    written: bool
    is_empty: bool = False


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


def blocks_of(statement: Statement) -> tuple[tuple[Statement, ...], ...]:
    """Return the bodies inside a statement."""
    return (statement.body,) if isinstance(statement, (For, If)) else ()


def with_bodies(
    statement: Statement, change: Callable[[tuple[Statement, ...]], tuple[Statement, ...]]
) -> Statement:
    """Return the statement with `change(body)` in place of its body."""
    if isinstance(statement, (For, If)):
        changed: Statement = replace(statement, body=change(statement.body))
        return changed
    return statement


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
        case Check(index=index, mask=mask):
            return (index,) if mask is None else (index, mask)
        case If(condition=condition):
            return (condition,)
    return ()
