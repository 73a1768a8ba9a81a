"""Python ints whose value is data: what a recompile found to vary, and arithmetic on it.

Comes in: an int at a source named in `Machine.varying`. Goes out: 0-dim int64 nodes of the graph,
or, where Python makes floats of ints, FloatValues (numbers.py). Python's ints are unbounded: each
has bounds, guarded where it enters the graph, and an operation is followed only if they keep its
result within 64 bits, its conversion to a float exact and errors out. Comparisons are followed as
for floats. Whatever else is done with such an int breaks, and pipeline.py makes it a constant.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from ...graph.builder import GraphBuilder
from ...guards.guard import InRange, TypeIs
from ...guards.source import Source, describe
from ...spec import TensorSpec
from ..result import GraphInput, Recipe
from ..wrap import intercepts
from .base import Args, Builder, Kwargs, Machine, Value
from .constants import COMPARE, ConstantValue
from .numbers import EXACT, FloatValue, is_unlike_numbers

__all__ = ["IntValue"]

_SCALAR = TensorSpec((), (), torch.int64, torch.device("cpu"))
_LARGEST = 2**63 - 1
# An int's bounds: those that hold its value. The inner ones leave room for powers and exponents,
# the outer ones for products. Zero stays a constant: programs branch on it and divide by it.
_BOUNDS = ((1, 1023), (1024, 2**31 - 1), (-1023, -1), (-(2**31), -1024))
_LONGEST_POWER = 62


class _Range(NamedTuple):
    low: int
    high: int

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    def ends(self, other: _Range, op: Callable[[int, int], int]) -> _Range:
        """Of an operation that is monotonic in each operand."""
        found = [op(a, b) for a in self for b in other]
        return _Range(min(found), max(found))


class IntValue(Value):
    """An int between `low` and `high`; `node` is its value in the graph, 0-dim int64."""

    __slots__ = ("live", "node", "range")
    varies = True

    def __init__(
        self, node: Node, bounds: _Range, source: Source | None = None, live: int | None = None
    ) -> None:
        super().__init__(source)
        self.node, self.live, self.range = node, live, bounds

    def python_type(self, machine: Machine) -> type:
        return int

    def truth(self, machine: Machine) -> bool:
        if not self.range.excludes_zero:
            self.refuse(machine, "bool()")
        return True

    def lies_within(self, machine: Machine, low: int, high: int) -> bool:
        """Whether it does, guarded where the bounds alone do not say so."""
        if self.live is not None and low <= self.live <= high:
            self._narrow(machine, low, high)
        return low <= self.range.low and self.range.high <= high

    def _narrow(self, machine: Machine, low: int, high: int) -> None:
        assert self.source is not None
        narrowed = _Range(max(low, self.range.low), min(high, self.range.high))
        if narrowed != self.range:
            self.range = narrowed
            machine.guard(InRange(self.source, *narrowed))

    # -- operators -------------------------------------------------------------------------------

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if isinstance(other, FloatValue):
            return self._as_float_with(machine, op, other, reflected)
        if not _is_number(other):
            if not issubclass(other.python_type(machine), torch.Tensor):
                self.refuse(machine, f"{op} with {other.describe()}")
            return None  # the tensor is asked next
        if isinstance(other, ConstantValue) and isinstance(other.value, float):
            return self._as_float_with(machine, op, other, reflected)
        left, right = (other, self) if reflected else (self, other)
        operands = _Operand.of(machine, left), _Operand.of(machine, right)
        if op == "/" or (op == "**" and operands[1].range.high < 0):
            return self._as_float_with(machine, op, other, reflected)
        if op == "**":
            return self._power(machine, *operands)
        return self._integer(machine, op, *operands)

    def _as_float_with(
        self, machine: Machine, op: str, other: Value, reflected: bool
    ) -> Value | None:
        if op not in ("+", "-", "*", "/", "**"):
            self.refuse(machine, f"{op} with a float")
        mine = self.as_float(machine)
        theirs = other.as_float(machine) if isinstance(other, IntValue) else other
        return mine.binary(machine, op, theirs, reflected=reflected)

    def as_float(self, machine: Machine) -> FloatValue:
        """`float(self)`, which has to be exact."""
        if not self.lies_within(machine, -EXACT, EXACT):
            self.refuse(machine, "float()")
        node = machine.graph.call("to", [self.node, torch.float64], {}, machine.lines())
        return FloatValue(node, (float(self.range.low), float(self.range.high)), exact=True)

    def _integer(self, machine: Machine, op: str, left: _Operand, right: _Operand) -> Value:
        rule = _RULES.get(op)
        made = None if rule is None else rule(left.range, right.range)
        if made is None or max(made.high, -made.low) > _LARGEST:
            self.refuse(machine, f"{op} whose result may not fit")
        args = [left.argument(machine, full=op in ("//", "%")), right.argument(machine)]
        return IntValue(machine.graph.call(_NODES[op], args, {}, machine.lines()), made)

    def _power(self, machine: Machine, base: _Operand, exponent: _Operand) -> Value:
        """Repeated products; of a constant base, only where the exponent's bounds allow them."""
        times = exponent.range.low
        if exponent.value is not None or not 0 <= times == exponent.range.high <= _LONGEST_POWER:
            self.refuse(machine, "** with an exponent that varies")
        result: Value = machine.constant(1)
        for _ in range(times):
            result = self if isinstance(result, ConstantValue) else self._times(machine, result)
        return result

    def _times(self, machine: Machine, other: Value) -> Value:
        return self._integer(machine, "*", _Operand.of(machine, other), _Operand.of(machine, self))

    def unary(self, machine: Machine, op: str) -> Value:
        if op == "+":
            return self
        low, high = self.range
        bounds = _Range(-high, -low) if op == "-" else _Range(~high, ~low)
        target = operator.neg if op == "-" else operator.invert
        return IntValue(machine.graph.call(target, [self.node], {}, machine.lines()), bounds)

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        """Decided by the bounds, or for an argument of the program by the side on which it lies."""
        limits = _limits(machine, other)
        if limits is None:
            return None if is_unlike_numbers(machine, other) else self.refuse(machine, op)
        for low, high in _SIDES[op](*limits):
            if low <= self.range.low and self.range.high <= high:
                break
            if limits[0] == limits[1] and self.live is not None and low <= self.live <= high:
                self._narrow(machine, low, high)
                break
        else:
            self.refuse(machine, f"comparison {op}")
        return machine.constant(COMPARE[op](self.range.low, limits[0]))

    # -- the rest --------------------------------------------------------------------------------

    def call_method(self, machine: Machine, name: str, args: Args, kwargs: Kwargs) -> Value:
        """What `float(i)`, `int(i)` and `abs(i)` ask for."""
        if name == "__float__" and not args and not kwargs:
            return self.as_float(machine)
        if name in ("__int__", "__trunc__", "__floor__", "__ceil__") and not args and not kwargs:
            return self
        if name == "__abs__" and not args and self.range.excludes_zero:
            return self if self.range.low > 0 else self.unary(machine, "-")
        self.refuse(machine, f".{name}()")

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(torch.Tensor.item, (builder.output(self, self.node),))

    def describe(self) -> str:
        return "int computed from one that varies" if self.source is None else "int that varies"


def _at_least(first: float, last: float) -> Sequence[_Range]:
    return _Range(-_LARGEST, math.ceil(first) - 1), _Range(math.ceil(last), _LARGEST)


def _more_than(first: float, last: float) -> Sequence[_Range]:
    return _Range(-_LARGEST, math.floor(first)), _Range(math.floor(last) + 1, _LARGEST)


def _equal_to(first: float, last: float) -> Sequence[_Range]:
    """Less, more, or just that."""
    less, more = _at_least(first, last)[0], _more_than(first, last)[1]
    return less, more, _Range(math.ceil(last), math.floor(first))


# The ints for which a comparison with what lies between two limits has one answer.
_SIDES: Mapping[str, Callable[[float, float], Sequence[_Range]]] = {
    "<": _at_least, ">=": _at_least, ">": _more_than, "<=": _more_than,
    "==": _equal_to, "!=": _equal_to,
}  # fmt: skip


class _Operand(NamedTuple):
    """One side of an operation of two ints: its bounds and the varying value; None: a constant."""

    range: _Range
    value: IntValue | None

    @classmethod
    def of(cls, machine: Machine, value: Value) -> _Operand:
        if isinstance(value, IntValue):
            return cls(value.range, value)
        number = int(value.as_constant(machine))
        if abs(number) > _LARGEST:
            value.refuse(machine, "arithmetic beyond 64 bits")
        return cls(_Range(number, number), None)

    def argument(self, machine: Machine, full: bool = False) -> Any:
        """Of a node; full: as a tensor, for operations that do not take a number here."""
        if self.value is not None:
            return self.value.node
        if not full:
            return self.range.low
        args, kwargs = [(), self.range.low], {"dtype": torch.int64}
        return machine.graph.call(torch.full, args, kwargs, machine.lines())


def _is_number(value: Value) -> bool:
    if isinstance(value, ConstantValue):
        return isinstance(value.value, bool | int | float)
    return isinstance(value, IntValue)


def _limits(machine: Machine, other: Value) -> tuple[float, float] | None:
    """The bounds of what an int is compared with (nan has none); None: no number."""
    if isinstance(other, IntValue):
        return other.range
    if isinstance(other, FloatValue):
        return other.low, other.high
    if not _is_number(other):
        return None
    number = other.as_constant(machine)
    if isinstance(number, float) and not math.isfinite(number):
        other.refuse(machine, "comparison with an int that varies")
    return number, number


# -- bounds ----------------------------------------------------------------------------------------


def _divided(left: _Range, right: _Range) -> _Range | None:
    return left.ends(right, operator.floordiv) if right.excludes_zero else None


def _remaining(left: _Range, right: _Range) -> _Range | None:
    """The remainder has the sign of the divisor."""
    if not right.excludes_zero:
        return None
    if right.high < 0:
        return _Range(right.low + 1, 0)
    return _Range(0, right.high - 1 if left.low < 0 else min(left.high, right.high - 1))


def _shifted(op: Callable[[int, int], int]) -> Callable[[_Range, _Range], _Range | None]:
    def bounds(left: _Range, right: _Range) -> _Range | None:
        return left.ends(right, op) if right.low >= 0 and right.high < 63 else None

    return bounds


def _masked(left: _Range, right: _Range) -> _Range | None:
    """&, |, ^ of numbers that have no sign."""
    if left.low < 0 or right.low < 0:
        return None
    return _Range(0, (1 << max(left.high, right.high).bit_length()) - 1)


_RULES: Mapping[str, Callable[[_Range, _Range], _Range | None]] = {
    "+": lambda left, right: left.ends(right, operator.add),
    "-": lambda left, right: left.ends(right, operator.sub),
    "*": lambda left, right: left.ends(right, operator.mul),
    "//": _divided,
    "%": _remaining,
    "<<": _shifted(operator.lshift),
    ">>": _shifted(operator.rshift),
    "&": _masked,
    "|": _masked,
    "^": _masked,
}
_NODES: Mapping[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv,
    "%": operator.mod, "<<": operator.lshift, ">>": operator.rshift,
    "&": operator.and_, "|": operator.or_, "^": operator.xor,
}  # fmt: skip


# -- where they come from --------------------------------------------------------------------------


@intercepts(int)
def _wrap_varying(machine: Machine, obj: int, source: Source) -> Value | None:
    """An int that differs from call to call becomes an input of the graph."""
    if source not in (machine.varying or ()):
        return None
    bounds = next((_Range(*b) for b in _BOUNDS if b[0] <= obj <= b[1]), None)
    if bounds is None:
        return None
    machine.guard(TypeIs(source, int), InRange(source, *bounds))
    graph: GraphBuilder = machine.graph.root
    node = graph.placeholder(describe(source), _SCALAR)
    graph.inputs[node] = GraphInput(node.name, source, _SCALAR, is_number=True)
    return IntValue(node, bounds, source, obj)
