"""Models sizes of tensors as ints of the program: `x.shape[0]`, `len(x)`, `x.numel() // 2`.

Input: a Size, the symbolic expression of a dimension that differs from call to call. Output:
another Size for arithmetic, a guarded answer for a comparison (`Context.decide`), a node of the
graph for a torch call (`GraphBuilder.call`). Arithmetic with floats uses a ScalarValue over the
same symbols. A use that needs the int itself (an index, text) raises Specialize: the trace starts
again with a constant in place of the symbol.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from ....symbols.context import Specialize
from ....symbols.expr import Expr, Integer
from ....symbols.polynomial import application
from ....symbols.scalar import OPERATIONS, Number, Symbol, symbols_of
from ....symbols.size import DataSize, Dimension, Size, stride_place
from ...result import Recipe
from ..base import Args, Builder, Kwargs, Machine, Value
from ..objects.constants import COMPARE, ConstantValue
from .scalars import ScalarValue, SymbolicNumber, number_node

__all__ = ["DimensionValue", "dimension_value"]

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip
_INTS = ("__int__", "__index__", "__trunc__", "__floor__", "__ceil__", "__round__")


class DimensionValue(SymbolicNumber):
    """An int of the program that is a Size."""

    __slots__ = ("size",)

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size

    def python_type(self, machine: Machine) -> type:
        return int

    def refuse(self, machine: Machine, what: str) -> NoReturn:
        raise Specialize(symbols_of(self.size.expr), f"{what} of a size, {self.size!r}")

    def truth(self, machine: Machine) -> bool:
        return bool(self.size)

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        number = _number(machine, other)
        if number is None and issubclass(other.python_type(machine), torch.Tensor):
            return None  # the caller tries the tensor's reflected operator next
        if number is None or op not in _BINARY:
            scalar = self.as_scalar(machine)
            return scalar.binary(machine, op, other, reflected=reflected)
        left, right = (number, self.size) if reflected else (self.size, number)
        try:
            return dimension_value(machine, _BINARY[op](left, right))
        except ZeroDivisionError as error:
            raise machine.error(ZeroDivisionError, *error.args) from None

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        number = _number(machine, other)
        if number is not None:
            return machine.constant(bool(COMPARE[op](self.size, number)))
        return self.as_scalar(machine).compare(machine, op, other)

    def unary(self, machine: Machine, op: str) -> Value:
        if op == "~":
            self.refuse(machine, "unary ~")
        return self if op == "+" else dimension_value(machine, -self.size)

    def call_method(self, machine: Machine, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name == "__float__" and not args and not kwargs:
            return self.as_scalar(machine).as_float(machine)
        if args or kwargs or name not in (*_INTS, "__abs__"):
            self.refuse(machine, f".{name}()")
        return self.unary(machine, "-") if name == "__abs__" and self.size < 0 else self

    def as_scalar(self, machine: Machine) -> ScalarValue:
        """Return the size with a node, so that one graph serves all sizes."""
        return ScalarValue(int, self.size.expr, number_node(machine, int, self.size))

    def as_size(self, machine: Machine) -> Size:
        return self.size

    def recipe(self, builder: Builder) -> Recipe:
        """Compute the size from the tensors that the caller has."""
        return self._recipe(builder, self.size.context, self.size.expr)

    def _recipe(self, builder: Builder, context: Any, expr: Expr) -> Recipe:
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
        operands = tuple(self._recipe(builder, context, part) for part in parts)
        return builder.invoke(OPERATIONS[op].python, operands)

    def describe(self) -> str:
        return "a size that varies"


def dimension_value(machine: Machine, size: Dimension) -> Value:
    """Return the value of an int or a Size."""
    return DimensionValue(size) if isinstance(size, Size) else machine.constant(size)


def _number(machine: Machine, value: Value) -> Dimension | None:
    if isinstance(value, DimensionValue):
        return value.size
    if isinstance(value, ConstantValue) and type(value.value) in (int, bool):
        return int(value.as_constant(machine))
    return None
