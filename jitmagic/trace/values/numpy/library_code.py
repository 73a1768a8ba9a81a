"""Records the torch calls of library code by running it, instead of tracing its bytecode.

Input: the tensors of the trace that the code takes. Output: their meta tensors as stand-ins; a
torch call on one is recorded as if the program had made it. This is valid only for code whose
Python steps no user can observe: the emulation of numpy, C++ operators composed of others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ....compat.operators import OpOverload, OpOverloadPacket
from ....graph.symbolic.sym_node import as_dimension, as_torch
from ...breaks import GraphBreak, RefusedTorchCall
from ..base import Machine, ObservedError, Value
from ..containers.sequences import ListValue, SequenceValue, SliceValue, TupleValue
from ..numbers.number import NumberValue, dimension_value
from ..objects.operators import binary, compare
from ..objects.special_methods import BINARY_METHODS, COMPARE_METHODS, UNARY_METHODS
from ..tensors.tensor import TensorValue, record
from ..tensors.tensor_members import TensorMethodValue
from ..tensors.torch_function import torch_function

__all__ = ["Recorder"]

_BINARY = {f"__{name}__": op for op, name in BINARY_METHODS.items()}
_REFLECTED = {f"__r{name}__": op for op, name in BINARY_METHODS.items()}
_COMPARE = {f"__{name}__": op for op, name in COMPARE_METHODS.items()}
_UNARY = {f"__{name}__": op for op, name in UNARY_METHODS.items()}


# A TorchDispatchMode would see ATen calls. At this level the calls are those that a program could
# make, and `record` applies its guards and refusals to them.
class Recorder(TorchFunctionMode):
    """A TorchFunctionMode that turns calls of torch's functions and methods into graph nodes."""

    def __init__(self, machine: Machine, name: str = "numpy") -> None:
        super().__init__()
        self._machine, self._name = machine, name
        self._values: dict[int, tuple[torch.Tensor, TensorValue]] = {}

    def stand_in(self, value: TensorValue) -> torch.Tensor:
        """Return the stand-in that the library's code gets for a tensor of the trace."""
        meta = value.meta
        # The entry holds the meta tensor as well, so that no other tensor gets its id.
        self._values[id(meta)] = meta, value
        return meta

    def value_of(self, tensor: torch.Tensor) -> TensorValue:
        """Return the tensor of the trace for a stand-in."""
        if id(tensor) not in self._values:
            self._refuse("a tensor that was not computed from its arguments")
        return self._values[id(tensor)][1]

    def __torch_function__(
        self, func: object, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = [self._value(arg) for arg in args]
        named = {name: self._value(arg) for name, arg in (kwargs or {}).items()}
        try:
            return self._object(self._call(func, given, named).realize(self._machine))
        except ObservedError as observed:
            # The error is a value of the trace; an `except` clause of the library wants a real one.
            self._refuse(f"an error, {observed.error.python_type(self._machine).__name__}")

    def _call(self, func: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        machine, name = self._machine, func.__name__
        # `x.shape` arrives as `Tensor.shape.__get__`, a method of the getset descriptor.
        if name == "__get__":
            return args[0].get_attr(machine, func.__self__.__name__)
        if isinstance(func, OpOverload | OpOverloadPacket):
            return record(machine, func, args, kwargs)
        if getattr(torch.Tensor, name, None) is not func:
            function = torch_function(func)
            return self._refuse(name) if function is None else function.call(machine, args, kwargs)
        if name == "__len__":
            return machine.constant(args[0].length(machine))
        if name == "__bool__":
            return machine.constant(args[0].truth(machine))
        if name in _UNARY:
            return args[0].unary(machine, _UNARY[name])
        if name in _COMPARE:
            return compare(machine, _COMPARE[name], *args)
        if name in _BINARY:
            # Through the operators of the tracer, so that NotImplemented leads to the reflected
            # method.
            return binary(machine, _BINARY[name], *args)
        if name in _REFLECTED:
            return binary(machine, _REFLECTED[name], args[1], args[0])
        owner = args[0]
        assert isinstance(owner, TensorValue)
        return TensorMethodValue(owner, name).call(machine, args[1:], kwargs)

    def _value(self, obj: Any) -> Value:
        if isinstance(obj, torch.Tensor):
            return self.value_of(obj)
        if type(obj) is slice:
            return SliceValue([self._value(one) for one in (obj.start, obj.stop, obj.step)])
        if type(obj) in (tuple, list):
            items = [self._value(one) for one in obj]
            return ListValue(items) if type(obj) is list else TupleValue(items)
        if isinstance(obj, torch.SymInt):
            return dimension_value(self._machine, as_dimension(obj))
        return self._machine.constant(obj)

    def _object(self, value: Value) -> Any:
        value = value.realize(self._machine)
        if isinstance(value, TensorValue):
            return self.stand_in(value)
        if isinstance(value, SequenceValue):
            items = [self._object(item) for item in value.items]
            kind: Callable[[Any], Any] = value.python_type(self._machine)
            return kind(items)
        if isinstance(value, NumberValue) and value.scalar.is_size:
            return as_torch(value.scalar.form)
        if not value.is_constant(self._machine):
            self._refuse(value.describe())
        return value.as_constant(self._machine)

    def _refuse(self, what: str) -> Any:
        why = f"the library's own code meets {what}"
        raise GraphBreak(RefusedTorchCall.of(name=self._name, why=why))
