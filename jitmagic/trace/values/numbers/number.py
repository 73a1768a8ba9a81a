"""Models the numbers of the program that differ from call to call.

Input: an int or float at a source in `Machine.varying`, the size of a tensor, a number read from a
tensor. Output: a NumberValue, whose `scalar` (arithmetic.py) says how the graph computes it, and
whose `kind` is its class. Operations on it give other NumberValues, or constants where ranges and
guards fix the answer:

    int, float      Python's arithmetic
    bool            may be stored, returned, asserted and branched on; nothing else
    of numpy        NumpyNumber, a subclass in numpy/numbers.py

An int computed from arguments and sizes is a size where a call takes one. A use that needs the
value itself (a key, an attribute) raises Specialize: the trace starts again with a constant.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import torch

from ....guards.guard import InRange, TypeIs
from ....guards.source import Drawn, Source, describe
from ....symbols.context import Specialize
from ....symbols.expr import Expr, Integer
from ....symbols.interval import ANY_FLOAT, INT64, Interval
from ....symbols.polynomial import application
from ....symbols.size import DataSize, Dimension, Size, stride_place
from ....symbols.symbolic_numbers import OPERATIONS, Number, Symbol, symbols_of
from ...result import Recipe
from ...varying.origins import DrawnNumber
from ...wrap import intercepts
from ..base import Args, Builder, Kwargs, Machine, Value
from ..methods import MethodValue
from ..numpy_scalars import ARRAY_SCALARS
from ..objects.constants import ConstantValue
from .arithmetic import (
    Scalar,
    binary,
    compared,
    constant_scalar,
    scalar_input,
    size_scalar,
    truth,
    unary,
)

__all__ = [
    "NumberValue",
    "VaryingValue",
    "dimension_value",
    "drawn_number",
    "is_next_draw_constant",
    "node_scalar",
    "number_value",
    "scalar_of",
    "varying_number",
]

_UNARY = {"-": "neg", "~": "invert"}
# Special methods, which float(), int(), abs() or round() call, and the operations that they are.
_METHODS = {
    "__float__": "float", "__int__": "trunc", "__trunc__": "trunc", "__floor__": "floor",
    "__ceil__": "ceil", "__round__": "round", "__abs__": "abs", "__index__": "trunc",
}  # fmt: skip
_UNLIKE = (type(None), str, bytes, tuple, list, dict, set, frozenset, torch.dtype, torch.device)


class VaryingValue(Value):
    """A value that differs from call to call; a use that needs a constant raises Specialize."""

    __slots__ = ()
    varies = True

    def symbols(self, machine: Machine) -> Iterable[Symbol]:
        """Return the symbols on which the value depends."""
        raise NotImplementedError

    def is_constant(self, machine: Machine) -> bool:
        """Return True: `as_constant` restarts the trace with a constant (Specialize)."""
        return True

    def as_constant(self, machine: Machine) -> Any:
        self.refuse(machine, "its value")

    def hash_key(self, machine: Machine) -> object:
        self.refuse(machine, "hash()")

    def refuse(self, machine: Machine, what: str) -> NoReturn:
        raise Specialize(self.symbols(machine), f"{what} of {self.describe()}")


class NumberValue(VaryingValue):
    """A number of class `kind`: int, float or bool."""

    __slots__ = ("kind", "scalar")

    def __init__(self, scalar: Scalar) -> None:
        super().__init__(scalar.source)
        self.scalar, self.kind = scalar, scalar.kind

    def python_type(self, machine: Machine) -> type:
        return self.kind

    @property
    def is_plain(self) -> bool:
        """True for an int or float of Python."""
        return self.kind is int or self.kind is float

    def symbols(self, machine: Machine) -> Iterable[Symbol]:
        return symbols_of(self.scalar.expr)

    def as_constant(self, machine: Machine) -> Any:
        # A comparison becomes the constant True or False under a guard of the comparison alone. To
        # specialise its operands would take a variant for each number.
        if self.kind is bool and not isinstance(self.scalar.expr, Symbol):
            return truth(machine, self.scalar)
        return super().as_constant(machine)

    def as_size(self, machine: Machine) -> Any:
        return self.scalar.as_size(machine)

    def as_sourced_int(self, machine: Machine) -> tuple[int, Source] | None:
        symbol = self.scalar.expr
        if self.kind is not int or not isinstance(symbol, Symbol):
            return None
        if not isinstance(symbol.origin, Source) or isinstance(symbol.origin, Drawn):
            return None
        return int(machine.symbols.value_of(symbol)), symbol.origin

    def truth(self, machine: Machine) -> bool:
        return truth(machine, self.scalar)

    # -- operators -------------------------------------------------------------------------------

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        operand = scalar_of(machine, other) if self.is_plain else None
        if operand is None:
            is_tensor = issubclass(other.python_type(machine), torch.Tensor)
            if is_tensor or (self.is_plain and other.varies):
                return None  # the caller tries the reflected operator of the other operand next
            self.refuse(machine, f"{op} with {other.describe()}")
        left, right = (operand, self.scalar) if reflected else (self.scalar, operand)
        return self._result(machine, binary(machine, op, left, right))

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        operand = scalar_of(machine, other) if self.is_plain else None
        if operand is None:
            if _is_unlike_numbers(machine, other):
                return None
            self.refuse(machine, f"{op} with {other.describe()}")
        answer = compared(machine, op, self.scalar, operand)
        return NumberValue(answer) if isinstance(answer, Scalar) else machine.constant(answer)

    def unary(self, machine: Machine, op: str) -> Value:
        if not self.is_plain or (op == "~" and self.kind is float):
            self.refuse(machine, f"unary {op}")
        return self if op == "+" else self.apply(machine, _UNARY[op])

    def apply(self, machine: Machine, op: str) -> Value:
        """Apply an operation of one operand, by its name in OPERATIONS."""
        return self._result(machine, unary(machine, op, self.scalar))

    def _result(self, machine: Machine, made: Scalar) -> Value:
        return self if made is self.scalar else number_value(machine, made)

    def get_attr(self, machine: Machine, name: str) -> Value:
        if not self._has_method(name):
            self.refuse(machine, f"attribute {name!r}")
        return MethodValue(self, name)

    def _has_method(self, name: str) -> bool:
        return self.is_plain and name in _METHODS and hasattr(self.kind, name)

    def call_method(self, machine: Machine, name: str, args: Args, kwargs: Kwargs) -> Value:
        """Return the result of a special method that float(), int(), abs() or round() calls."""
        if args or kwargs or not self._has_method(name):
            self.refuse(machine, f".{name}()")
        if name == "__float__":
            return self._result(machine, self.scalar.as_float(machine))
        return self.apply(machine, _METHODS[name])

    # -- exits -----------------------------------------------------------------------------------

    def recipe(self, builder: Builder) -> Recipe:
        form = self.scalar.form
        if isinstance(form, Size):
            return self._size_recipe(builder, form.context, form.expr)
        return builder.invoke(torch.Tensor.item, (builder.output(self, form),))

    def _size_recipe(self, builder: Builder, context: Any, expr: Expr) -> Recipe:
        """Compute the size from the tensors that the caller has."""
        if isinstance(expr, Integer | Number):
            return builder.constant(expr.value)
        if isinstance(expr, Symbol) and isinstance(expr.origin, DataSize):
            node, dim = context.results[expr]
            result = builder.output(self, node)
            if dim < 0:  # the tensor holds the size as a number
                return builder.invoke(torch.Tensor.item, (result,))
            return builder.invoke(torch.Tensor.size, (result, builder.constant(dim)))
        if isinstance(expr, Symbol) and expr not in context.owners:
            return builder(context.values[expr.origin])
        if isinstance(expr, Symbol):
            tensor, position = context.owners[expr]
            read = torch.Tensor.size if position >= 0 else torch.Tensor.stride
            dim = position if position >= 0 else stride_place(position)
            return builder.invoke(read, (builder(tensor), builder.constant(dim)))
        op, parts = application(expr)
        operands = tuple(self._size_recipe(builder, context, part) for part in parts)
        return builder.invoke(OPERATIONS[op].python, operands)

    def refuse(self, machine: Machine, what: str) -> NoReturn:
        self.scalar.refuse(what)

    def describe(self) -> str:
        return "a size that varies" if self.scalar.is_size else self.scalar.describe()


def _is_unlike_numbers(machine: Machine, other: Value) -> bool:
    """Return whether a comparison of a number with the value is NotImplemented.

    So it is for types that equal no number, and for tensors and numbers of numpy that vary, whose
    reflected operator comes next. Bools, subclasses of numbers, and classes with an `__eq__`, may
    equal one.
    """
    kind = other.python_type(machine)
    is_of_numpy = other.varies and kind in ARRAY_SCALARS
    return is_of_numpy or kind in _UNLIKE or issubclass(kind, torch.Tensor)


# -- conversions -----------------------------------------------------------------------------------


def number_value(machine: Machine, scalar: Scalar) -> Value:
    """Return the int, float or bool as a value, a constant if it is one."""
    is_constant = isinstance(scalar.form, int | float)
    return machine.constant(scalar.form) if is_constant else NumberValue(scalar)


def dimension_value(machine: Machine, size: Dimension) -> Value:
    """Return the value of an int or a Size."""
    return number_value(machine, size_scalar(size))


def scalar_of(machine: Machine, value: Value) -> Scalar | None:
    """Return an int, float or constant bool of Python as a scalar; None for any other value."""
    if isinstance(value, NumberValue):
        return value.scalar if value.is_plain else None
    if not isinstance(value, ConstantValue) or type(value.value) not in (bool, int, float):
        return None
    return constant_scalar(value.as_constant(machine))


def node_scalar(value: Value) -> Scalar | None:
    """Return an int or float of Python that a node of the graph computes, else None."""
    if not isinstance(value, NumberValue) or not value.is_plain or value.scalar.is_size:
        return None
    return value.scalar


# -- where they come from --------------------------------------------------------------------------


def is_next_draw_constant(machine: Machine) -> bool:
    """Return whether an earlier attempt needed the value of the number that is drawn next."""
    return DrawnNumber(machine.effects.drawn) in machine.symbols.constants


def drawn_number(
    machine: Machine, source: Drawn, kind: type, limits: Interval | None = None
) -> NumberValue:
    """Return a number computed before the graph runs: its symbol has limits but no hint."""
    limits = limits or (INT64 if kind is int else ANY_FLOAT)
    symbol = Symbol(f"{source.name}()", kind, limits, DrawnNumber(source.index))
    machine.symbols.add(symbol, None)
    node = scalar_input(machine, source.name, source, kind)
    return NumberValue(Scalar(kind, symbol, node, source))


@intercepts(int, float)
def _wrap_varying(machine: Machine, obj: float, source: Source) -> Value | None:
    """Make a number that differs from call to call an input of the graph."""
    symbols = machine.symbols
    if source not in (symbols.varying or ()) or source in symbols.constants:
        return None
    return varying_number(machine, obj, source)


def varying_number(machine: Machine, obj: float, source: Source) -> NumberValue | None:
    """Return the float or int as an input of the graph; None if an int exceeds 64 bits."""
    symbols, kind = machine.symbols, type(obj)
    limits = INT64 if kind is int else ANY_FLOAT
    if not limits.has(obj):
        return None
    if (known := symbols.values.get(source)) is not None:
        return known  # type: ignore[no-any-return]
    machine.guard(TypeIs(source, kind))
    if kind is int:  # Python's ints are unbounded, the node's are int64
        machine.guard(InRange(source, *limits[:2]))
    node = scalar_input(machine, describe(source), source, kind)
    symbol = Symbol(describe(source), kind, limits, source)
    symbols.add(symbol, obj)
    if kind is int:
        machine.graph.root.sizes.add_number(node, symbol)
    # One value per source: two reads of an attribute are one input and one symbol, so that ranges
    # proved of the first read hold for the second.
    made = symbols.values[source] = NumberValue(Scalar(kind, symbol, node, source))
    return made
