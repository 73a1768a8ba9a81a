"""Walks kernels: the blocks inside statements, and the values that they read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..lazy_dataclass import replace
from ..loops.ir import Value
from .kernel import (
    Accumulate,
    Argument,
    Call,
    Check,
    Dot,
    For,
    Function,
    If,
    Join,
    Let,
    Parallel,
    Parts,
    Return,
    Set,
    Statement,
    Store,
    Total,
    Trips,
    Whole,
    WholeBlock,
)

__all__ = ["block_of", "blocks_of", "functions_of", "statements", "values_of", "with_blocks"]

_BLOCKS = (For, If, Parallel, Trips, Parts, Whole, WholeBlock, Function)
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
        case Dot(_, a, b):
            return a, b
        case Check(index=index, mask=mask):
            return (index,) if mask is None else (index, mask)
        case If(condition=condition):
            return (condition,)
    return ()
