"""Leaves pure functions of varying numbers to Python, after the graph has run: text, rounding.

Input: a pure function (format, %, str.join, round) and its arguments, some of which vary. Output: a
ResidualCall, which can be stored, returned, printed or logged, so that a log line costs neither a
graph break nor a variant for each number. If the program does arithmetic with a float result and
all arguments are inputs, Python computes it before the graph runs; its symbol has no hint. A use
that needs the value while tracing (a key, a name, a comparison) specialises, as for the numbers
themselves (number.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

from ....symbols.expr import Expr
from ....symbols.interval import Interval
from ....symbols.symbolic_numbers import Symbol, evaluate, symbols_of
from ...breaks import GraphBreak, UnsupportedOperation
from ...result import Recipe
from ..base import Builder, Machine, Value
from ..objects.constants import BINARY, ConstantMethodValue, fold, folds_late
from .number import (
    NumberValue,
    VaryingValue,
    drawn_number,
    is_next_draw_constant,
    node_scalar,
)
from .precomputed_scalars import precompute_call

__all__ = ["ResidualCall"]

Examples = Mapping[type, tuple[object, ...]]
_LARGEST = 1e300
_ARITHMETIC = ("+", "-", "*", "/")
# Examples on which the function is tried: it must return the same type for all of them.
_FINITE: Examples = {float: (0.5, -_LARGEST, 0.0), int: (1, -(2**40), 0), str: ("text",)}
_ANY: Examples = {**_FINITE, float: (*_FINITE[float], math.inf, math.nan)}


class ResidualCall(VaryingValue):
    """The result of `function(*args)`, which never raises, whatever the varying arguments are."""

    __slots__ = ("_number", "args", "function", "kind")

    def __init__(self, kind: type, function: Callable[..., object], args: Sequence[Value]) -> None:
        super().__init__()
        self.kind, self.function, self.args = kind, function, tuple(args)
        self._number: NumberValue | None = None

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def get_attr(self, machine: Machine, name: str) -> Value:
        # tqdm's set_postfix strips the text of a loss, which made a variant for each loss.
        if self.kind is str and not name.startswith("_") and hasattr(str, name):
            return ConstantMethodValue(self, name)  # methods of str are left to Python as well
        self.refuse(machine, f".{name}")

    def operand(self, machine: Machine) -> Value:
        # round(v, 1) of a varying float was a variant for each value (6 for 6 values, now 2).
        if self._number is None and self.kind is float:
            self._number = _early(machine, self)
        return self if self._number is None else self._number

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if (number := self.operand(machine)) is not self:
            return number.binary(machine, op, other, reflected=reflected)
        both = {self.kind, other.python_type(machine)}
        if (op == "+" and both == {str}) or (op in _ARITHMETIC and both <= {float, int}):
            return fold(machine, BINARY[op], *((other, self) if reflected else (self, other)))
        self.refuse(machine, op)

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        self.refuse(machine, f"comparison {op}")

    def unary(self, machine: Machine, op: str) -> Value:
        if (number := self.operand(machine)) is not self:
            return number.unary(machine, op)
        self.refuse(machine, f"unary {op}")

    def refuse(self, machine: Machine, what: str) -> NoReturn:
        if not self.symbols(machine) or self.waits():  # it exists only after the graph has run
            raise GraphBreak(UnsupportedOperation.of(what=what, types=self.describe()))
        super().refuse(machine, what)

    def waits(self) -> bool:
        """Return whether an argument is known only after the graph has run, so that specialising
        the other arguments would not help.
        """
        return any(isinstance(part, ResidualCall) and part.waits() for part in self.args)

    def symbols(self, machine: Machine) -> list[Symbol]:
        """Return the symbols of all numbers among the arguments."""
        found: dict[Symbol, None] = {}
        for part in _leaves(machine, self.args):
            if isinstance(part, ResidualCall):
                found.update(dict.fromkeys(part.symbols(machine)))
            elif (number := node_scalar(part)) is not None:
                found.update(dict.fromkeys(symbols_of(number.expr)))
        return list(found)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(self.function, tuple(builder(arg) for arg in self.args))

    def parts(self) -> Iterable[Value]:
        return self.args

    def describe(self) -> str:
        of = next((arg.describe() for arg in self.args if arg.varies), "numbers that vary")
        return f"a {self.kind.__name__} made of {of}"


def _early(machine: Machine, value: ResidualCall) -> NumberValue | None:
    """Return the number, computed before the graph; None if it depends on results of the graph."""
    args = [arg.realize(machine) for arg in value.args]
    numbers = [node_scalar(arg) for arg in args]
    if any(arg.varies and number is None for arg, number in zip(args, numbers, strict=True)):
        return None
    exprs = [None if number is None else number.expr for number in numbers]
    known = [None if arg.varies else arg.as_constant(machine) for arg in args]

    def perform(numbers: tuple[object, ...]) -> object:
        values: dict[Expr, object] = dict(zip(symbols, numbers, strict=True))
        pairs = zip(exprs, known, strict=True)
        return value.function(*(one if e is None else evaluate(e, values) for e, one in pairs))

    symbols = value.symbols(machine)
    if is_next_draw_constant(machine):
        return None
    source = precompute_call(
        machine, "number", [e for e in exprs if e is not None], symbols, perform
    )
    return None if source is None else drawn_number(machine, source, float)


@folds_late
def _after_graph(
    machine: Machine, function: Callable[..., object], args: Sequence[Value]
) -> ResidualCall | None:
    """Return the call; None if it might raise, gives another type, or needs more than numbers."""
    leaves = list(_leaves(machine, args))
    varying = [leaf for leaf in leaves if leaf.varies]
    numbers = [number for leaf in varying if (number := node_scalar(leaf)) is not None]
    if len(numbers) < sum(not isinstance(leaf, ResidualCall) for leaf in varying):
        return None
    kind = _kind(machine, function, args, _ANY)
    if kind is None and (kind := _kind(machine, function, args, _FINITE)) is not None:
        for number in numbers:  # "%d" raises for nan and infinities
            number.keep_within(machine, Interval(-_LARGEST, _LARGEST), "its text")
    return ResidualCall(kind, function, args) if kind in (str, float) else None


def _kind(
    machine: Machine, function: Callable[..., object], args: Sequence[Value], examples: Examples
) -> type | None:
    """Return the type of the result; None if an example raises or the types differ."""
    kinds = set()
    for turn in range(max(map(len, examples.values()))):
        try:
            made = function(*(_example(machine, arg, examples, turn) for arg in args))
        except GraphBreak:
            raise
        except Exception:  # a pure function raises only what user code would see
            return None
        kinds.add(type(made))
    return kinds.pop() if len(kinds) == 1 else None


def _leaves(machine: Machine, args: Iterable[Value]) -> Iterator[Value]:
    for arg in args:
        value = arg.realize(machine)
        if value.python_type(machine) is tuple and not isinstance(value, ResidualCall):
            yield from _leaves(machine, value.parts())
        else:
            yield value


def _example(machine: Machine, value: Value, examples: Examples, turn: int) -> object:
    value = value.realize(machine)
    if isinstance(value, NumberValue | ResidualCall):
        found = examples[value.kind]
        return found[turn % len(found)]
    if value.python_type(machine) is tuple and any(v.varies for v in _leaves(machine, [value])):
        return tuple(_example(machine, item, examples, turn) for item in value.parts())
    return value.as_constant(machine)
