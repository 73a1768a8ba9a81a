"""Models integers of numpy that differ from call to call: an item of an array, of `np.random`.

Input: an integer of numpy at a Source that varies. Output: a symbol like that of an int (`IntOf`):
torch treats it as an int in sizes, indices and arithmetic. Arithmetic with ints gives numbers of
numpy. An operation that may wrap around in a dtype other than int64, or gives a float, makes it a
constant: `Specialize`.
"""

from __future__ import annotations

from typing import Any, NoReturn

from ....guards.guard import TypeIs
from ....guards.source import IntOf, Source
from ...result import Recipe
from ...wrap import intercepts
from ..base import Args, Builder, Kwargs, Machine, Value
from ..numbers.scalars import SymbolicNumber, varying_number
from ..objects.constants import ConstantValue
from ..objects.operators import binary, compare
from ..tensors.tensor import TensorValue
from .emulation import ARRAY_SCALARS, np

__all__ = ["NumpyInt"]

_INTEGERS = tuple(kind for kind in ARRAY_SCALARS if issubclass(kind, np.integer))
_EXACT = ("+", "-", "*", "//", "%")  # ranges exclude that int64 wraps around
_READ = ("item", "__int__", "__index__", "__trunc__")
_METHODS = (*_READ, "__float__", "__abs__")


class NumpyInt(SymbolicNumber):
    """An integer of numpy of class `kind`; `number` is its value as an int."""

    __slots__ = ("kind", "number")

    def __init__(self, kind: type, number: Value, source: Source | None = None) -> None:
        super().__init__(source)
        self.kind, self.number = kind, number

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def operand(self, machine: Machine) -> Value:
        return self.number

    def as_index(self, machine: Machine) -> Value:
        return self.number

    def format_operand(self, machine: Machine) -> Value:
        return self.number

    def truth(self, machine: Machine) -> bool:
        return self.number.truth(machine)

    def call_method(self, machine: Machine, name: str, args: Args, kwargs: Kwargs) -> Value:
        is_exact = name != "__abs__" or self.kind is np.int64
        if args or kwargs or name not in _METHODS or not is_exact:
            self.refuse(machine, f".{name}()")
        if name in _READ:
            return self.number
        made = self.number.call_method(machine, name, [], {})
        return NumpyInt(self.kind, made) if name == "__abs__" else made

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name not in _METHODS:
            self.refuse(machine, f"attribute {name!r}")
        return _Method(self, name)

    def as_size(self, machine: Machine) -> Any:
        return self.number.as_size(machine) if isinstance(self.number, SymbolicNumber) else None

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if isinstance(other, TensorValue):
            return other.binary(machine, op, self.number, reflected=not reflected)
        number = self._int(machine, other)
        if number is None or op not in _EXACT or self.kind is not np.int64:
            self.refuse(machine, f"{op} with {other.describe()}")
        left, right = (number, self.number) if reflected else (self.number, number)
        if op in ("//", "%") and not (isinstance(right, ConstantValue) and right.truth(machine)):
            self.refuse(machine, f"{op} by a number that may be 0")  # numpy only warns
        return NumpyInt(self.kind, binary(machine, op, left, right))

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        number = self._int(machine, other)
        answer = None if number is None else compare(machine, op, self.number, number)
        if not isinstance(answer, ConstantValue):
            self.refuse(machine, f"{op} with {other.describe()}")
        return machine.constant(np.bool_(answer.as_constant(machine)))

    def unary(self, machine: Machine, op: str) -> Value:
        if op == "~" or self.kind is not np.int64:
            self.refuse(machine, f"unary {op}")
        return NumpyInt(self.kind, self.number.unary(machine, op))

    def _int(self, machine: Machine, other: Value) -> Value | None:
        """Return the other operand as an int if numpy computes in int64 with it, else None."""
        if isinstance(other, NumpyInt) and other.kind is self.kind:
            return other.number
        kind = other.python_type(machine)
        if isinstance(other, ConstantValue) and kind is self.kind:
            return machine.constant(other.as_constant(machine).item())
        return other if kind is int else None

    def refuse(self, machine: Machine, what: str) -> NoReturn:
        self.number.refuse(machine, what)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(self.kind, (builder(self.number),))

    def describe(self) -> str:
        return f"a numpy.{self.kind.__name__} that varies"


class _Method(Value):
    """A bound method like `n.item`."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: NumpyInt, name: str) -> None:
        super().__init__()
        self.owner, self.name = owner, name

    def python_type(self, machine: Machine) -> type:
        return type(getattr(self.owner.kind(0), self.name))

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        return self.owner.call_method(machine, self.name, args, kwargs)


@intercepts(*_INTEGERS)
def _wrap_varying(machine: Machine, obj: object, source: Source) -> Value | None:
    symbols, number = machine.symbols, IntOf(source)
    if not {source, number} & (symbols.varying or frozenset()) or number in symbols.constants:
        return None
    # Seven lengths from an array took seven compiles as constants, and two as symbols.
    machine.guard(TypeIs(source, type(obj)))
    made = varying_number(machine, obj.item(), number)  # type: ignore[attr-defined]
    return None if made is None else NumpyInt(type(obj), made, source)
