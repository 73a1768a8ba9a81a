"""Rewrites reductions and checked indexes as assignments and conditions, for scalar renderers.

In: the linear form of a kernel whose loops are serial. Out: the same with Let, Set and If in place
of Start, Accumulate, Result and Check, and Store in place of Atomic: loops run on one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..lazy_dataclass import replace
from ..loops.ir import Compute, IndexValue, Load, Value
from ..loops.values import cast, compute, constant, identity, number, where
from ..operators.scalar import REDUCTIONS
from .kernel import (
    BAD,
    Accumulate,
    Atomic,
    Check,
    If,
    Kernel,
    Let,
    Result,
    Set,
    Start,
    Statement,
    Store,
    Total,
    Var,
)
from .kernel_walk import with_blocks

__all__ = ["expand"]

_LONG = torch.int64


def expand(kernel: Kernel) -> Kernel:
    """Return the kernel without reductions and checks."""
    return replace(kernel, body=_block(kernel.body))


def _block(body: Sequence[Statement]) -> tuple[Statement, ...]:
    return tuple(made for statement in body for made in _expanded(statement))


def _expanded(statement: Statement) -> Iterator[Statement]:
    match statement:
        case Start(total):
            yield from _start(total)
        case Accumulate(Total(at=None, lost=None) as total, value):
            yield Set(total.var, _combined(total, value))
        case Accumulate(Total(lost=Var()) as total, value):
            yield from _compensated(total, value)
        case Accumulate(total, value, position):
            assert total.at is not None
            assert position is not None
            found = Set(total.at, IndexValue(position, _LONG))
            yield If(_is_better(total, total.at, value), (Set(total.var, value), found))
        case Let(target, Result() as result):
            yield Let(target, _result(result))
        case Check():
            yield from _checked(statement)
        case Atomic(buffer, offset, value):
            before = Load(buffer, (offset,), value.dtype)
            yield Store(buffer, offset, compute("add", before, value))
        case _:
            yield with_blocks(statement, _block)


def _start(total: Total) -> Iterator[Statement]:
    start = constant(identity(total.op, total.operand), total.var.dtype)
    yield Let(total.var, start)
    if total.lost is not None:
        yield Let(total.lost, start)
    if total.at is not None:
        yield Let(total.at, constant(-1, _LONG))


def _combined(total: Total, value: Value) -> Value:
    """Return the accumulated value with one more; NaN wins in max and min."""
    dtype = total.var.dtype
    if total.op in ("any", "all"):
        return Compute(REDUCTIONS[total.op], (total.var, value), dtype)
    if dtype == torch.bool:  # the largest of bools is `or`
        is_all = bool(identity(total.op, dtype))
        return Compute("logical_and" if is_all else "logical_or", (total.var, value), dtype)
    if total.op in ("sum", "prod"):
        return Compute(REDUCTIONS[total.op], (total.var, cast(value, dtype)), dtype)
    return Compute(REDUCTIONS[total.op], (value, total.var), dtype)


def _is_better(total: Total, at: Var, value: Value) -> Value:
    """Return whether a value replaces the best: NaN wins, and the first of equals."""
    first = compute("lt", at, 0)
    found = compute("gt" if total.op == "argmax" else "lt", value, total.var)
    better = compute("logical_or", first, found)
    if not total.operand.is_floating_point:
        return better
    nan = compute("logical_and", compute("ne", value, value), compute("eq", total.var, total.var))
    return compute("logical_or", better, nan)


def _compensated(total: Total, value: Value) -> Iterator[Statement]:
    """Add with the rounding error kept (Knuth's TwoSum)."""
    acc, lost = total.var, total.lost
    assert lost is not None
    new, taken = Var(f"{acc.name}_new", acc.dtype), Var(f"{acc.name}_taken", acc.dtype)
    rest = compute("sub", acc, compute("sub", new, taken))
    yield Let(new, compute("add", acc, value))
    yield Let(taken, compute("sub", new, acc))
    error = compute("add", rest, compute("sub", value, taken))
    yield Set(lost, compute("add", lost, error))
    yield Set(acc, new)


def _result(result: Result) -> Value:
    total = result.total
    if total.at is not None:
        return total.at
    if total.lost is not None:  # the error term is NaN if the sum is infinite
        whole = compute("add", total.var, total.lost)
        return where(compute("eq", whole, whole), whole, total.var)
    return cast(total.var, result.dtype)


def _checked(check: Check) -> Iterator[Statement]:
    """Count a negative index from the end; one that is out of range is 0, and sets BAD."""
    index, extent = cast(check.index, _LONG), number(check.extent, _LONG)
    from_end = where(compute("lt", index, 0), compute("add", index, extent), index)
    bad: Value = constant(1, BAD.dtype)
    if check.mask is not None:
        bad = where(check.mask, bad, BAD)
    outside = compute("logical_or", compute("lt", check.var, 0), compute("ge", check.var, extent))
    yield Let(check.var, from_end)
    yield If(outside, (Set(check.var, constant(0, _LONG)), Set(BAD, bad)))
