"""Models floats of numpy that differ from call to call: a learning rate from `np.linspace`.

Input: a scalar of numpy at a Source that varies. Output: a 0-dim array, which is made from the
scalar before the graph runs. Calls of torch treat it as a symbolic float without a hint, calls of
numpy as a scalar. A use of its value (a branch, text, a key) makes it a constant: `Specialize`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ....guards.guard import TypeIs
from ....guards.source import ArrayMemory, Source, describe
from ....spec import TensorSpec
from ....symbols.interval import ANY_FLOAT
from ....symbols.symbolic_numbers import Symbol
from ...wrap import intercepts
from ..base import Args, Kwargs, Machine, Value
from ..contexts.random_streams import drawn_tensor
from ..numbers.arithmetic import Scalar
from ..numbers.number import NumberValue, VaryingValue
from ..objects.constants import ConstantValue
from ..tensors.tensor import TensorValue, record
from .arrays import ArrayValue
from .emulation import ARRAY_SCALARS, np, torch_dtype

__all__ = ["NumpyFloat"]

_CPU = torch.device("cpu")
_FLOATS = tuple(kind for kind in ARRAY_SCALARS if issubclass(kind, np.floating))


@dataclass(frozen=True, slots=True)
class DerivedFloat:
    """The origin of a number that a node computes from the one at `source`."""

    source: Source
    node: str


# VaryingValue comes first in the MRO: `as_constant`, `hash_key` and `refuse` specialise the number
# instead of breaking the graph as an array does.
class NumpyFloat(VaryingValue, ArrayValue):
    """A scalar of numpy; `origin` is its Source or a computation from one.

    Arithmetic with constants gives another NumpyFloat, with other operands an ordinary array.
    """

    __slots__ = ("origin",)

    def __init__(
        self, tensor: TensorValue, kind: type, origin: Source | DerivedFloat, source: Source | None
    ) -> None:
        super().__init__(tensor, kind, source)
        self.origin = origin

    def symbols(self, machine: Machine) -> tuple[Symbol, ...]:
        return (self._symbol(),)

    def truth(self, machine: Machine) -> bool:
        self.refuse(machine, "bool()")

    def operand(self, machine: Machine) -> Value:
        """Return the number as torch treats it: a number without a hint."""
        if self._number is None:
            symbol = self._symbol()
            machine.symbols.add(symbol, None)
            node = record(machine, "to", [self.tensor, machine.constant(torch.float64)])
            assert isinstance(node, TensorValue)
            node.node.meta["python"] = True
            self._number = NumberValue(Scalar(float, symbol, node.node))
        return self._number

    def call_method(self, machine: Machine, name: str, args: Args, kwargs: Kwargs) -> Value:
        is_read = name in ("item", "__float__") and not args and not kwargs
        return (
            self.operand(machine) if is_read else super().call_method(machine, name, args, kwargs)
        )

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        made = super().binary(machine, op, other, reflected=reflected)
        return self._computed(made) if isinstance(other, _OPERANDS) else made

    def unary(self, machine: Machine, op: str) -> Value:
        made = self._computed(super().unary(machine, op))
        assert made is not None
        return made

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if not isinstance(other, TensorValue | ArrayValue):
            # Such a comparison decides a branch as a rule, which data of the graph cannot.
            self.refuse(machine, f"comparison {op}")
        return super().compare(machine, op, other, reflected=reflected)

    def _computed(self, made: Value | None) -> Value | None:
        if not isinstance(made, ArrayValue) or made.kind not in _FLOATS:
            return made
        # If a use needs this number as a constant, the next attempt at the trace has its origin
        # among the constants, and `_is_constant` makes the number at the source one.
        origin = DerivedFloat(self._given, made.tensor.node.name)
        return NumpyFloat(made.tensor, made.kind, origin, None)

    @property
    def _given(self) -> Source:
        return self.origin.source if isinstance(self.origin, DerivedFloat) else self.origin

    def _symbol(self) -> Symbol:
        return Symbol(describe(self._given), float, ANY_FLOAT, self.origin)

    def describe(self) -> str:
        return f"a numpy.{self.kind.__name__} that varies"


_OPERANDS = ConstantValue | NumpyFloat


@intercepts(*_FLOATS)
def _wrap_varying(machine: Machine, obj: Any, source: Source) -> Value | None:
    symbols, kind = machine.symbols, type(obj)
    if source not in (symbols.varying or ()) or _is_constant(machine, source):
        return None
    if (known := symbols.values.get(source)) is not None:
        return known  # type: ignore[no-any-return]
    # A learning rate from np.linspace, as a constant, took a compile for each value, and the frame
    # ran in eager after eight of them.
    machine.guard(TypeIs(source, kind))
    # A graph input needs memory, which a scalar does not expose, so an array is made first.
    drawn = machine.effects.draw(ConstantValue(obj, source), np.asarray, describe(source))
    spec = TensorSpec((), (), torch_dtype(obj.dtype), _CPU)
    tensor = drawn_tensor(machine, drawn.name, ArrayMemory(drawn), spec)
    made = symbols.values[source] = NumpyFloat(tensor, kind, source, source)
    return made


def _is_constant(machine: Machine, source: Source) -> bool:
    """Return whether an earlier attempt needed the value of the number, or of a derived one."""
    known = machine.symbols.constants
    computed = (origin.source for origin in known if isinstance(origin, DerivedFloat))
    return source in known or source in computed
