"""Checks kernels: what every pass must leave true of the kernel language.

In: a Kernel of the linear form. Raises VerifyError with the first rule that is broken:
  - a variable is defined once, before its uses, in a block around them; only a variable of a Let,
    an accumulator or BAD is set;
  - an axis is bound by one loop around its uses;
  - offsets hold axes, sizes and variables, as which run-time indexes are checked; buffers are
    parameters or sections of them, and those stored to are written; a stored value has the dtype
    of its buffer;
  - a product is over blocks that are open;
  - operands of a scalar operation have one dtype, which the operation takes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..errors import VerifyError
from ..loops.expr import Axis, AxisVar, Expr, Symbol, ValueIndex, leaves
from ..loops.ir import Compute, IndexValue, Load, Value, walk
from ..operators.scalar import SCALARS
from .kernel import (
    BAD,
    BEGIN,
    END,
    Accumulate,
    Barrier,
    Call,
    Check,
    Dot,
    For,
    Function,
    If,
    Join,
    Kernel,
    Let,
    LoadTile,
    Open,
    Parallel,
    Param,
    Partial,
    Parts,
    Program,
    Result,
    Return,
    Scratch,
    Section,
    Set,
    Start,
    Statement,
    Store,
    TileRow,
    Total,
    Trips,
    Var,
    VarIndex,
    Whole,
    WholeBlock,
)
from .kernel_walk import block_of, functions_of, values_of

__all__ = ["verify_kernel"]


def verify_kernel(kernel: Kernel) -> Kernel:
    """Return the kernel if it follows the rules. Raises VerifyError."""
    _Verifier(kernel).block(kernel.body, frozenset({BAD}), frozenset())
    return kernel


class _Verifier:
    """Walks the statements with the variables and axes that are known."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.params = {param.name: param for param in kernel.params}
        self.tiles: set[str] = set()
        self.defined: set[Var] = set()

    def block(
        self, body: Iterable[Statement], known: frozenset[Var], axes: frozenset[Axis]
    ) -> None:
        for statement in body:
            for value in values_of(statement):
                self.value(value, known, axes, statement)
            match statement:
                case Program(blocks):
                    axes |= frozenset(axis for block in blocks for axis in block.axes)
                case Open(block, start):
                    self.offset(start, known, axes, statement)
                    axes |= frozenset(block.axes)
                case Let(Var() as var) | Check(var):
                    known |= self.define((var,), statement)
                case Start(total):
                    known |= self.define(_variables(total), statement)
                case Accumulate(total) | Join(total):
                    self.require(total.var in known, "no Start", statement)
                case Dot(total, _, _, left, right, across):
                    self.require(total.var in known, "no Start", statement)
                    over = {axis for block in (*left, *right, across) for axis in block.axes}
                    self.require(over <= axes, "a block that is not open", statement)
                case Set(var):
                    self.require(var in known, f"{var.name} is not defined", statement)
                case Scratch(name, dtype):
                    self.params[name] = Param(name, dtype, written=True)
                case Section(name, buffer, offset):
                    self.require(buffer in self.params, f"no parameter {buffer}", statement)
                    self.offset(offset, known, axes, statement)
                    self.params[name] = self.params[buffer]
                case Store():
                    self.store(statement, known, axes)
                case LoadTile(tile, buffer=buffer, offset=offset):
                    self.require(buffer in self.params, f"no parameter {buffer}", statement)
                    self.offset(offset, known, axes, statement)
                    self.tiles.add(tile)
                case Return() | Barrier():
                    pass
                case _:
                    self.inside(statement, known, axes)

    def inside(self, statement: Statement, known: frozenset[Var], axes: frozenset[Axis]) -> None:
        """Check a statement that has blocks."""
        match statement:
            case For(bound, body):
                self.require(axes.isdisjoint(bound), "an axis is bound twice", statement)
                for end in (statement.start, statement.stop):
                    if end is not None:
                        self.offset(end, known, axes, statement)
                self.block(body, known, axes | frozenset(bound))
            case Parallel(body=body):
                self.block(body, known, axes | {BEGIN, END})
            case Parts(axis, end, totals=totals, body=body):
                parts = frozenset(block_of(total).var for total in totals)
                self.block(body, known | parts, axes | {axis, end})
            case If(body=body) | Trips(body=body) | Whole(body=body) | WholeBlock(body=body):
                self.block(body, known, axes)
            case Function(given=given, bound=bound, body=body):
                self.block(body, known | ({given} if given else set()), axes | bound)
            case Call(args=args):
                self.block(functions_of(args), known, axes)
            case _:
                self.require(False, "not a statement of the linear form", statement)

    def define(self, made: tuple[Var, ...], statement: Statement) -> frozenset[Var]:
        self.require(self.defined.isdisjoint(made), "a variable is defined twice", statement)
        self.defined.update(made)
        return frozenset(made)

    def store(self, store: Store, known: frozenset[Var], axes: frozenset[Axis]) -> None:
        param = self.params.get(store.buffer)
        is_written = param is not None and param.written
        self.require(is_written, "a store into no written parameter", store)
        assert param is not None
        self.require(param.dtype == store.value.dtype, "a stored value of another dtype", store)
        self.offset(store.offset, known, axes, store)

    def value(
        self, root: Value, known: frozenset[Var], axes: frozenset[Axis], at: Statement
    ) -> None:
        for node in walk((root,)):
            match node:
                case Var(name):
                    self.require(node in known, f"{name} is not defined", at)
                case Load(buffer, (offset,)):
                    self.require(buffer in self.params, f"no parameter {buffer}", at)
                    self.offset(offset, known, axes, at)
                case IndexValue(expr):
                    self.offset(expr, known, axes, at)
                case Compute(op, args):
                    self.operands(op, [arg.dtype for arg in args], at)
                case Result(total) | Partial(total):
                    self.require(total.var in known, "no Start", at)
                case TileRow(tile):
                    self.require(tile in self.tiles, f"no tile {tile}", at)

    def operands(self, op: str, dtypes: list[torch.dtype], at: Statement) -> None:
        if SCALARS[op].conditional:
            self.require(dtypes[0] == torch.bool, f"{op} chooses by no bool", at)
            dtypes = dtypes[1:]
        self.require(len(set(dtypes)) <= 1, f"{op} of {dtypes}", at)

    def offset(
        self, expr: Expr, known: frozenset[Var], axes: frozenset[Axis], at: Statement
    ) -> None:
        for leaf in leaves(expr):
            match leaf:
                case AxisVar(axis):
                    self.require(axis in axes, f"axis {axis.name} is not bound", at)
                case VarIndex(var):
                    self.require(var in known, f"{var.name} is not defined", at)
                case Symbol():
                    self.require(leaf in self.kernel.sizes, f"no size {leaf.name}", at)
                case ValueIndex():
                    self.require(False, "a run-time index that is not checked", at)

    def require(self, holds: bool, rule: str, at: Statement) -> None:
        if not holds:
            raise VerifyError(f"kernel {self.kernel.name}: {rule} in {at!r}")


def _variables(total: Total) -> tuple[Var, ...]:
    variables = (total.var, total.at, total.lost, total.relative, total.count)
    return tuple(var for var in variables if var is not None)
