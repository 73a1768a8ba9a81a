"""Models the numbers of the program that differ from call to call.

Input: an int, float or integer of numpy at a source in `Machine.varying`, the size of a tensor, a
number read from a tensor. Output: a NumberValue, whose `scalar` (arithmetic.py) says how the graph
computes it, and whose `kind` is its class. Operations on it give other NumberValues, or constants
where ranges and guards fix the answer:

    int, float      Python's arithmetic
    bool            may be stored, returned, asserted and branched on; nothing else
    numpy integer   arithmetic that numpy does in int64 without wrapping around; torch takes it as
                    an int in sizes, indices and arithmetic

An int computed from arguments and sizes is a size where a call takes one. A use that needs the
value itself (a key, an attribute) raises Specialize: the trace starts again with a constant.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, NoReturn

import torch

from ....guards.guard import InRange, TypeIs
from ....guards.source import Drawn, IntOf, Source, describe
from ....symbols.context import Specialize
from ....symbols.expr import Expr, Integer
from ....symbols.interval import ANY_FLOAT, INT64, Interval
from ....symbols.polynomial import application
from ....symbols.size import DataSize, Dimension, Size, stride_place
from ....symbols.symbolic_numbers import OPERATIONS, Number, Symbol, symbols_of
from ...result import Recipe
from ...wrap import intercepts
from ..base import Args, Builder, Kwargs, Machine, Value
from ..methods import MethodValue
from ..numpy.emulation import ARRAY_SCALARS, np
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
    "node_scalar",
    "number_value",
    "scalar_of",
    "unknown_number",
    "varying_number",
]

_INTEGERS = tuple(kind for kind in ARRAY_SCALARS[1:] if issubclass(kind, np.integer))
_INT64: Any = None if np is None else np.int64
_UNARY = {"-": "neg", "~": "invert"}
_OF_NUMPY = ("+", "-", "*", "//", "%")  # ranges exclude that int64 wraps around
# Special methods, which float(), int(), abs() or round() call, and the operations that they are.
_METHODS = {
    "__float__": "float", "__int__": "trunc", "__trunc__": "trunc", "__floor__": "floor",
    "__ceil__": "ceil", "__round__": "round", "__abs__": "abs", "__index__": "trunc",
}  # fmt: skip
_METHODS_OF_NUMPY = ("item", "__int__", "__index__", "__trunc__", "__float__", "__abs__")
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
    """A number of class `kind` (int, float, bool, or an integer of numpy)."""

    __slots__ = ("_plain", "kind", "scalar")

    def __init__(
        self, scalar: Scalar, kind: type | None = None, source: Source | None = None
    ) -> None:
        super().__init__(scalar.source if kind is None else source)
        self.scalar, self.kind = scalar, scalar.kind if kind is None else kind
        self._plain: NumberValue | None = None

    def python_type(self, machine: Machine) -> type:
        return self.kind

    @property
    def is_plain(self) -> bool:
        """True for an int or float of Python."""
        return self.kind is int or self.kind is float

    @property
    def is_numpy(self) -> bool:
        """True for an integer of numpy, whose scalar is an int."""
        return self.kind is not self.scalar.kind

    def symbols(self, machine: Machine) -> Iterable[Symbol]:
        return symbols_of(self.scalar.expr)

    def as_constant(self, machine: Machine) -> Any:
        # A comparison becomes the constant True or False under a guard of the comparison alone. To
        # specialise its operands would take a variant for each number.
        if self.kind is bool and not isinstance(self.scalar.expr, Symbol):
            return truth(machine, self.scalar)
        return super().as_constant(machine)

    def operand(self, machine: Machine) -> Value:
        return self._as_python()

    as_index = format_operand = operand

    def _as_python(self) -> NumberValue:
        """Return an integer of numpy as an int, which torch treats it as."""
        if self.is_numpy and self._plain is None:
            self._plain = NumberValue(self.scalar)
        return self._plain or self

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
        operand = self._other(machine, other)
        if operand is None:
            is_tensor = issubclass(other.python_type(machine), torch.Tensor)
            if is_tensor or (self.is_plain and other.varies):
                return None  # the caller tries the reflected operator of the other operand next
            self.refuse(machine, f"{op} with {other.describe()}")
        left, right = (operand, self.scalar) if reflected else (self.scalar, operand)
        if not self.is_plain:
            if op not in _OF_NUMPY or self.kind is not _INT64:
                self.refuse(machine, f"{op} with {other.describe()}")
            if op in ("//", "%") and not (isinstance(right.form, int) and right.form):
                self.refuse(machine, f"{op} by a number that may be 0")  # numpy only warns
        return self._result(machine, binary(machine, op, left, right))

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        operand = self._other(machine, other)
        if operand is None:
            if not self.is_numpy and _is_unlike_numbers(machine, other):
                return None
            self.refuse(machine, f"{op} with {other.describe()}")
        answer = compared(machine, op, self.scalar, operand)
        if not self.is_numpy:
            return NumberValue(answer) if isinstance(answer, Scalar) else machine.constant(answer)
        if isinstance(answer, Scalar):
            self.refuse(machine, f"{op} with {other.describe()}")
        # Not True: numpy's comparison returns np.bool_, and `(np.int64(3) == 3) is True` is False.
        return machine.constant(np.bool_(answer))

    def _other(self, machine: Machine, other: Value) -> Scalar | None:
        """Return the other operand; None if the arithmetic is not that of two such numbers."""
        if self.is_plain:
            return scalar_of(machine, other)
        if self.kind is bool:
            return None
        kind = other.python_type(machine)
        if kind is int:
            return scalar_of(machine, other)
        if kind is not self.kind:
            return None
        if isinstance(other, NumberValue):
            return other.scalar
        number = isinstance(other, ConstantValue) and other.as_constant(machine).item()
        return constant_scalar(number) if type(number) is int else None

    def unary(self, machine: Machine, op: str) -> Value:
        if not self.is_plain and (op == "~" or self.kind is not _INT64):
            self.refuse(machine, f"unary {op}")
        if op == "~" and self.kind is float:
            self.refuse(machine, "unary ~")
        return self if op == "+" else self.apply(machine, _UNARY[op])

    def apply(self, machine: Machine, op: str) -> Value:
        """Apply an operation of one operand, by its name in OPERATIONS."""
        return self._result(machine, unary(machine, op, self.scalar))

    def _result(self, machine: Machine, made: Scalar) -> Value:
        if made is self.scalar:
            return self
        return NumberValue(made, self.kind) if self.is_numpy else number_value(machine, made)

    def get_attr(self, machine: Machine, name: str) -> Value:
        if not self._has_method(name):
            self.refuse(machine, f"attribute {name!r}")
        return MethodValue(self, name)

    def _has_method(self, name: str) -> bool:
        if self.is_numpy:
            return name in _METHODS_OF_NUMPY
        return self.is_plain and name in _METHODS and hasattr(self.kind, name)

    def call_method(self, machine: Machine, name: str, args: Args, kwargs: Kwargs) -> Value:
        """Return the result of a special method that float(), int(), abs() or round() calls."""
        # abs(np.int8(-128)) is -128: numpy wraps around in the narrow type, the scalar is an int64.
        may_wrap = name == "__abs__" and self.is_numpy and self.kind is not _INT64
        if args or kwargs or may_wrap or not self._has_method(name):
            self.refuse(machine, f".{name}()")
        if name == "__float__":
            made = self.scalar.as_float(machine)
            return self if made is self.scalar else number_value(machine, made)
        if name == "__abs__" or self.is_plain:
            return self.apply(machine, _METHODS[name])
        return self.operand(machine)

    # -- exits -----------------------------------------------------------------------------------

    def recipe(self, builder: Builder) -> Recipe:
        if self.is_numpy:
            return builder.invoke(self.kind, (builder(self._as_python()),))
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
        if self.is_numpy:
            return f"a numpy.{self.kind.__name__} that varies"
        return "a size that varies" if self.scalar.is_size else self.scalar.describe()


def _is_unlike_numbers(machine: Machine, other: Value) -> bool:
    """Return whether a comparison of a number with the value is NotImplemented.

    So it is for types that equal no number, and for tensors, whose reflected operator comes next.
    Subclasses of numbers, and classes with an `__eq__`, may equal one.
    """
    kind = other.python_type(machine)
    return kind in _UNLIKE or issubclass(kind, torch.Tensor)


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


def unknown_number(
    machine: Machine, origin: Hashable, source: Drawn, kind: type, limits: Interval | None = None
) -> NumberValue:
    """Return a number computed before the graph runs: its symbol has limits but no hint."""
    limits = limits or (INT64 if kind is int else ANY_FLOAT)
    symbol = Symbol(f"{source.name}()", kind, limits, origin)
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


@intercepts(*_INTEGERS)
def _wrap_numpy_integer(machine: Machine, obj: Any, source: Source) -> Value | None:
    symbols, number = machine.symbols, IntOf(source)
    if not {source, number} & (symbols.varying or frozenset()) or number in symbols.constants:
        return None
    # Seven lengths from an array took seven compiles as constants, and two as symbols.
    machine.guard(TypeIs(source, type(obj)))
    made = varying_number(machine, obj.item(), number)
    return None if made is None else NumberValue(made.scalar, type(obj), source)
