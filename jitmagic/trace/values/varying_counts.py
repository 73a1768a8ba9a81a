"""What has a number of items that varies: `range(n)`, the rows of a tensor.

Comes in: sizes and ints that are symbols. Goes out: iterators that only Python can advance, at the
head of a loop (rolled.py); whoever wants anything else of it specialises. The test of a `while`
loop counts too, round by round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import torch

from ...symbols.context import Specialize
from ...symbols.scalar import Symbol, symbols_of
from ..breaks import GraphBreak, RolledLoop
from ..result import Recipe
from ..rolled import rounds_vary
from .base import Builder, Machine, Value
from .iterators import IteratorValue
from .scalars import SymbolicNumber

__all__ = ["VaryingIterator", "VaryingRange", "VaryingRows", "place_of_test", "symbols_in"]


def symbols_in(machine: Machine, values: Iterable[Value]) -> tuple[Symbol, ...]:
    """The symbols of numbers among these."""
    numbers = [value for value in values if isinstance(value, SymbolicNumber)]
    scalars = [scalar for one in numbers if (scalar := one.as_scalar(machine)) is not None]
    return tuple(symbol for scalar in scalars for symbol in symbols_of(scalar.expr))


def place_of_test(machine: Any, symbol: Symbol) -> tuple[int, int] | None:
    """The instruction of the root frame that asks for a number, and the step that this is, where
    that may be the test of a `while` loop: no `for` loop is running. The second round of one that
    is to be rolled breaks.
    """
    root = machine.root
    if machine.frame is not root or any(isinstance(one, IteratorValue) for one in root.stack):
        return None
    at, step = root.at, machine.step
    if machine.loops.may_roll and machine.symbols.rounds.get((symbol, at), set()) - {step}:
        raise GraphBreak(RolledLoop.of(what=symbol.name))
    return at, step


class VaryingRange(Value):
    """A range, one of whose bounds is a symbol."""

    __slots__ = ("bounds", "symbols")

    def __init__(self, bounds: Sequence[Value], symbols: tuple[Symbol, ...]) -> None:
        super().__init__()
        self.bounds = tuple(bounds)
        self.symbols = symbols

    def python_type(self, machine: Machine) -> type:
        return range

    def refuse(self, machine: Machine, what: str) -> NoReturn:
        raise Specialize(self.symbols, f"{what} of a range of a size that varies")

    def iterate(self, machine: Machine) -> Value:
        return VaryingIterator(iter, self, type(iter(range(0))), self.symbols, "range")

    def backwards(self, machine: Machine) -> Value:
        """reversed() of it."""
        return VaryingIterator(reversed, self, type(iter(range(0))), self.symbols, "range")

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(range, tuple(builder(bound) for bound in self.bounds))

    def parts(self) -> Iterable[Value]:
        return self.bounds


class VaryingRows(Value):
    """`tensor.unbind(dim)`, of which there are `count`."""

    __slots__ = ("count", "dim", "symbols", "tensor")

    def __init__(
        self, tensor: Value, dim: Value, count: Value, symbols: tuple[Symbol, ...]
    ) -> None:
        super().__init__()
        self.tensor, self.dim, self.count, self.symbols = tensor, dim, count, symbols

    def python_type(self, machine: Machine) -> type:
        return tuple

    def refuse(self, machine: Machine, what: str) -> NoReturn:
        raise Specialize(self.symbols, f"{what} of as many tensors as a size that varies")

    def counted(self, machine: Machine) -> Value:
        return self.count

    def iterate(self, machine: Machine) -> Value:
        return VaryingIterator(iter, self, type(iter(())), self.symbols, "parts of a tensor")

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(torch.unbind, (builder(self.tensor), builder(self.dim)))

    def parts(self) -> Iterable[Value]:
        return (self.tensor,)


class VaryingIterator(IteratorValue):
    """`begin(over)`, of which nothing was taken yet."""

    __slots__ = ("begin", "over", "symbols", "what")

    def __init__(
        self,
        begin: Callable[[Any], Any],
        over: Value,
        kind: type,
        symbols: tuple[Symbol, ...],
        what: str,
    ) -> None:
        super().__init__(kind)
        self.begin, self.over, self.symbols, self.what = begin, over, symbols, what

    def next(self, machine: Machine) -> Value | None:
        rounds_vary(machine, self.symbols, self.what)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(self.begin, (builder(self.over),))

    def parts(self) -> Iterable[Value]:
        return (self.over,)
