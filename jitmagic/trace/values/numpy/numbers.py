"""Models ints and floats of numpy that differ from call to call: a learning rate from np.linspace.

Input: a scalar of numpy at a source that varies. Output: a NumpyNumber, whose `scalar` is that of a
Python number, read from the scalar at each call. torch treats it as that number. Its arithmetic is
Python's where numpy computes the same: in int64 without wrapping around, in float64, and in float32
if computed in double and rounded once, which is exact. Any other operation of a float is that of a
0-dim array (arrays.py); any other one of an int makes it a constant: `Specialize`.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch

from ....guards.guard import TypeIs
from ....guards.source import NumberOf, Source
from ....symbols.symbolic_numbers import apply
from ...result import Recipe
from ...wrap import intercepts
from ..base import Args, Builder, Kwargs, Machine, Value
from ..methods import MethodValue
from ..numbers.arithmetic import Scalar, binary, compared, constant_scalar, python_node
from ..numbers.number import NumberValue, varying_number
from ..numpy_scalars import ARRAY_SCALARS, np
from ..objects.constants import BINARY, ConstantValue
from ..tensors.tensor import TensorValue, record
from .arrays import ArrayValue, guard_error_handling

__all__ = ["NumpyNumber"]

_KINDS = ARRAY_SCALARS[1:]
_INT64: Any
_INT64, _FLOAT32, _FLOAT64 = (None,) * 3 if np is None else (np.int64, np.float32, np.float64)
_OPERATIONS = {  # by the class of their result: those that Python's arithmetic computes
    _INT64: ("+", "-", "*", "//", "%"),  # ranges exclude that int64 wraps around
    _FLOAT64: ("+", "-", "*", "/", "//", "%", "**"),
    _FLOAT32: ("+", "-", "*", "/", "%", "**"),  # numpy rounds three times for //
}
_CONVERSIONS = ("item", "__int__", "__index__", "__trunc__", "__float__")
_ROUNDING = ("__floor__", "__ceil__", "__round__")


class NumpyNumber(NumberValue):
    """A number of numpy; `kind` is its class, `number` the Python number that torch takes."""

    __slots__ = ("_array", "number")

    def __init__(self, scalar: Scalar, kind: type, source: Source | None = None) -> None:
        super().__init__(scalar)
        self.source, self.kind, self.number = source, kind, NumberValue(scalar)
        self._array: ArrayValue | None = None

    @property
    def is_float(self) -> bool:
        return self.scalar.kind is float

    def operand(self, machine: Machine) -> Value:
        return self.number

    as_index = format_operand = operand

    def as_array(self, machine: Machine) -> Value:
        if not self.is_float:
            return self
        if self._array is None:
            tensor: Value = TensorValue(self.scalar.argument(machine, full=True))
            if self.kind is _FLOAT32:
                tensor = record(machine, "to", [tensor, machine.constant(torch.float32)])
            assert isinstance(tensor, TensorValue)
            self._array = ArrayValue(tensor, self.kind)
        return self._array

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if issubclass(other.python_type(machine), torch.Tensor):
            return None
        kinds = self.kind, other.python_type(machine)
        kind = _result_kind(op, *(kinds[::-1] if reflected else kinds))
        operand = self._other(machine, other, kind) if op in _OPERATIONS.get(kind, ()) else None
        if kind is None or operand is None:
            array = self._array_for(machine, f"{op} with {other.describe()}")
            return array.binary(machine, op, other, reflected=reflected)
        left, right = (operand, self.scalar) if reflected else (self.scalar, operand)
        if kind is _INT64:
            if op in ("//", "%") and not (isinstance(right.form, int) and right.form):
                self.refuse(machine, f"{op} by a number that may be 0")  # numpy only warns
            return NumpyNumber(binary(machine, op, left, right), kind)
        guard_error_handling(machine, f"numpy.{self.kind.__name__} {op}")
        made = binary(machine, op, left.as_float(machine), right.as_float(machine))
        return NumpyNumber(_as_single(machine, made) if kind is _FLOAT32 else made, kind)

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if issubclass(other.python_type(machine), torch.Tensor):
            return None
        if isinstance(other, ArrayValue):
            return self._array_for(machine, op).compare(machine, op, other)
        common = _result_kind("+", self.kind, other.python_type(machine))
        if (operand := self._other(machine, other, common)) is None:
            self.refuse(machine, f"{op} with {other.describe()}")
        left, right = self.scalar, operand
        if common in (_FLOAT32, _FLOAT64):  # numpy rounds an int first, Python compares exactly
            left, right = left.as_float(machine), right.as_float(machine)
        answer = compared(machine, op, left, right)
        if isinstance(answer, Scalar):
            self.refuse(machine, f"{op} with {other.describe()}")
        # Not True: numpy's comparison returns np.bool_, and `(np.int64(3) == 3) is True` is False.
        return machine.constant(np.bool_(answer))

    def _array_for(self, machine: Machine, what: str) -> Value:
        """Return the array that computes an operation; an int becomes a constant."""
        if not self.is_float:
            self.refuse(machine, what)
        return self.as_array(machine)

    def _other(self, machine: Machine, other: Value, common: type | None) -> Scalar | None:
        """Return the other operand in the common class; None if it is not exact or no number."""
        if isinstance(other, NumberValue):
            # numpy rounds a Python number to float32 first, which may overflow.
            rounds = common is _FLOAT32 and not isinstance(other, NumpyNumber)
            return None if rounds or other.kind is bool else other.scalar
        if common is None or not isinstance(other, ConstantValue):
            return None
        number = other.as_constant(machine)
        number = number.item() if type(number) in ARRAY_SCALARS else number
        if type(number) not in (bool, int, float):
            return None
        if common is not _FLOAT32:
            return constant_scalar(number)
        rounded = torch.tensor(number, dtype=torch.float64).to(torch.float32).item()
        return constant_scalar(rounded) if math.isinf(rounded) <= math.isinf(number) else None

    def unary(self, machine: Machine, op: str) -> Value:
        if op == "~" or self.kind not in _OPERATIONS:
            self.refuse(machine, f"unary {op}")
        return self if op == "+" else self.apply(machine, "neg")

    def _result(self, machine: Machine, made: Scalar) -> Value:
        return self if made is self.scalar else NumpyNumber(made, self.kind)

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name in (*_CONVERSIONS, "__abs__") and hasattr(self.kind, name):
            return MethodValue(self, name)
        return self._array_for(machine, f"attribute {name!r}").get_attr(machine, name)

    def call_method(self, machine: Machine, name: str, args: Args, kwargs: Kwargs) -> Value:
        # abs(np.int8(-128)) is -128: numpy wraps around in the narrow type, the scalar is an int64.
        if name == "__abs__" and self.kind in _OPERATIONS:
            return self.apply(machine, "abs")
        is_known = hasattr(self.kind, name) if name in _CONVERSIONS else self.is_float
        if not args and not kwargs and name in (*_CONVERSIONS, *_ROUNDING) and is_known:
            return self.number if name == "item" else self.number.call_method(machine, name, [], {})
        if name in _CONVERSIONS:
            self.refuse(machine, f".{name}()")
        return self.get_attr(machine, name).call(machine, args, kwargs)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(self.kind, (builder(self.number),))

    def describe(self) -> str:
        return f"a numpy.{self.kind.__name__} that varies"


@cache
def _result_kind(op: str, left: type, right: type) -> type | None:
    """Return the class of a result, which depends on numpy's version; None for no numbers."""
    if op not in _OPERATIONS[_FLOAT64] or not {left, right} <= {bool, int, float, *_KINDS}:
        return None
    return type(BINARY[op](left(1), right(1)))


def _as_single(machine: Machine, number: Scalar) -> Scalar:
    node = python_node(machine, "to", number.argument(machine, full=True), torch.float32)
    node = python_node(machine, "to", node, torch.float64)
    return Scalar(float, apply("single", float, number.expr), node)


@intercepts(*_KINDS)
def _wrap_varying(machine: Machine, obj: Any, source: Source) -> Value | None:
    symbols, number = machine.symbols, NumberOf(source)
    if not {source, number} & (symbols.varying or frozenset()) or number in symbols.constants:
        return None
    # Seven lengths from an array, or rates from np.linspace, took seven compiles as constants, and
    # two as symbols.
    machine.guard(TypeIs(source, type(obj)))
    made = varying_number(machine, obj.item(), number)
    return None if made is None else NumpyNumber(made.scalar, type(obj), source)
