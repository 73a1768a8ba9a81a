"""Models arrays and scalars of numpy as views of tensors of the graph.

Input: functions, methods and operators of numpy on arrays, live ones or views of tensors. Output:
the tensor operations of torch's emulation of numpy, if emulation_check.py finds that they agree
with numpy. An array has no node of its own: it shares its tensor's memory, so that a write to one
shows in the other. An exit creates a real array over that memory.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ....graph.autocast_mode import OFF
from ....graph.memory import storage_under
from ....graph.node_meta import device_of
from ....graph.symbolic.sym_node import as_dimension, as_dimensions
from ....guards.guard import StateRead
from ....guards.process_readers import numpy_error_handling
from ....guards.source import Source
from ....symbols.size import Size, value_of
from ....torch_types import AnyFunction
from ...breaks import GraphBreak, NumpyCall, UncertainStrides
from ...residual_torch_calls import number_scalar
from ...result import Recipe
from ..base import Args, Builder, Kwargs, Machine, Value
from ..containers.sequences import ListValue, SequenceValue, SliceValue, TupleValue
from ..methods import MethodValue
from ..numbers.number import NumberValue, dimension_value, node_scalar, scalar_of
from ..numbers.tensor_numbers import NUMBERS, number_of
from ..numpy_scalars import ARRAY_SCALARS, np
from ..objects.callables import BuiltinValue
from ..objects.classes import ClassValue
from ..objects.constants import BINARY, COMPARE, UNARY
from ..objects.special_methods import BINARY_METHODS
from ..tensors.tensor import TensorValue, record
from .array_samples import ArraySpec
from .emulation import emulation
from .emulation_check import (
    Call,
    Fact,
    Result,
    SizedCall,
    Slot,
    at_sizes,
    filled,
    judge,
    recorded_constant,
)
from .library_code import Recorder
from .numpy_nodes import NodeRefused, call_numpy, is_of_lapack

__all__ = ["ArrayValue", "DtypeValue", "array_of", "emulate", "guard_error_handling"]

_METADATA = frozenset("shape dtype ndim size itemsize nbytes strides".split())
_CONSTANTS = (bool, int, float, complex, str, type(None), type(Ellipsis))
_INPLACE = {op: getattr(operator, f"i{name}") for op, name in BINARY_METHODS.items()}


class DtypeValue(BuiltinValue):
    """A dtype of numpy; dtypes of numbers are singletons."""

    __slots__ = ()
    obj: Any

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name in ("name", "kind", "char", "str", "itemsize", "type", "num", "byteorder"):
            return machine.constant(getattr(self.obj, name))
        self.refuse(machine, f"attribute {name!r}")

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if not isinstance(other, DtypeValue | ClassValue) or op not in ("==", "!="):
            self.refuse(machine, f"comparison {op}")
        return machine.constant((self.obj == other.identity()) is (op == "=="))


class ArrayValue(Value):
    """An array, or a numpy scalar as a 0-dim tensor; `kind` is the Python class of the object."""

    __slots__ = ("_number", "kind", "tensor")
    holds_data = True

    def __init__(self, tensor: TensorValue, kind: type, source: Source | None = None) -> None:
        super().__init__(source)
        self.tensor = tensor
        self.kind = kind
        self._number: Value | None = None

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name in _METADATA:
            return self._described(machine, name)
        if not hasattr(self.kind, name):
            message = f"'{_full_name(self.kind)}' object has no attribute '{name}'"
            raise machine.error(AttributeError, message)
        if callable(getattr(self.kind, name)):
            return ArrayMethodValue(self, name)
        return emulate(machine, f"ndarray.{name}", operator.attrgetter(name), [self])

    def _described(self, machine: Machine, name: str) -> Value:
        spec = array_spec(machine, self)
        width = spec.dtype.itemsize
        match name:
            case "shape":
                return _sizes(machine, spec.shape)
            case "strides":
                return _sizes(machine, [step * width for step in spec.stride])
            case "size" | "nbytes":
                count = math.prod(spec.shape)
                return dimension_value(machine, count if name == "size" else count * width)
        # An array of the same rank and dtype, without memory, has the same ndim, dtype and
        # itemsize.
        attribute = getattr(torch.empty([0] * len(spec.shape), dtype=spec.dtype).numpy(), name)
        return DtypeValue(attribute) if name == "dtype" else machine.constant(attribute)

    def get_item(self, machine: Machine, key: Value) -> Value:
        return emulate(machine, "ndarray.__getitem__", operator.getitem, [self, key])

    def set_item(self, machine: Machine, key: Value, value: Value) -> None:
        emulate(machine, "ndarray.__setitem__", operator.setitem, [self, key, value])

    def length(self, machine: Machine) -> int:
        if not self.tensor.meta.dim():
            raise machine.error(TypeError, "len() of unsized object")
        return self.tensor.meta.shape[0]  # may be a SymInt, as for a tensor

    def iterate(self, machine: Machine) -> Value:
        if not self.tensor.meta.dim():
            self.refuse(machine, "iteration")
        indices = map(machine.constant, range(self.length(machine)))
        return ListValue([self.get_item(machine, index) for index in indices]).iterate(machine)

    def operand(self, machine: Machine) -> Value:
        """Return a scalar as the Python number that torch treats it as."""
        if self.kind not in ARRAY_SCALARS[1:]:
            return self
        if self._number is None:
            self._number = number_of(machine, self.tensor.node, "item") or self
        return self._number

    def as_index(self, machine: Machine) -> Value:
        """Return a 1-dim integer or mask array as an index tensor. torch treats an array of more
        dimensions as the tuple of its rows, so that one is returned unchanged.
        """
        meta = self.tensor.meta
        is_mask = meta.dtype in (torch.bool, torch.uint8)
        if self.kind is not np.ndarray or meta.dim() != 1 or meta.is_floating_point():
            return self
        wanted = meta.dtype if is_mask else torch.int64
        return record(machine, "to", [self.tensor, machine.constant(wanted)])

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if isinstance(other, TensorValue) and (number := self.operand(machine)) is not self:
            return other.binary(machine, op, number, reflected=not reflected)
        pair = [other, self] if reflected else [self, other]
        return emulate(machine, f"ndarray {op}", BINARY[op], pair, pointwise=op != "@")

    def inplace(self, machine: Machine, op: str, other: Value) -> Value | None:
        # A scalar of numpy has no `__iadd__`: `s += 1` binds a new object, and other names of the
        # old one do not change.
        if self.kind is not np.ndarray:
            return None
        name = f"ndarray {op}="
        return emulate(machine, name, _INPLACE[op], [self, other], pointwise=op != "@")

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if isinstance(other, TensorValue) and self.operand(machine) is not self:
            return None  # the caller tries the tensor's operator next
        return emulate(machine, f"ndarray {op}", COMPARE[op], [self, other], pointwise=True)

    def unary(self, machine: Machine, op: str) -> Value:
        return emulate(machine, f"ndarray {op}", UNARY[op], [self], pointwise=True)

    def truth(self, machine: Machine) -> bool:
        if self.tensor.meta.numel() != 1:
            self.refuse(machine, "bool()")
        return self.tensor.truth(machine)

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        raise machine.error(TypeError, f"'{_full_name(self.kind)}' object is not callable")

    def recipe(self, builder: Builder) -> Recipe:
        make = torch.Tensor.numpy if self.kind is np.ndarray else number_scalar
        return builder.invoke(make, (builder(self.tensor),))

    def parts(self) -> Iterable[Value]:
        return (self.tensor,)

    def describe(self) -> str:
        return f"{self.tensor.describe().removesuffix(' tensor')} {self.kind.__name__}"


class ArrayMethodValue(MethodValue):
    """A method bound to an array."""

    __slots__ = ()
    owner: ArrayValue

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if self.name in NUMBERS and not args and not kwargs:
            number = number_of(machine, self.owner.tensor.node, self.name)
            if number is not None:
                return number
        method = operator.attrgetter(self.name)

        def real(array: object, *positional: object, **named: object) -> Any:
            return method(array)(*positional, **named)

        name = f"ndarray.{self.name}"
        return emulate(
            machine, name, real, [self.owner, *args], kwargs, label=("method", self.name)
        )

    def describe(self) -> str:
        return f"ndarray.{self.name}"


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


# -- calls ---------------------------------------------------------------------------------------


def array_of(machine: Machine, tensor: TensorValue) -> ArrayValue:
    """Return `tensor.numpy()`, or break where eager raises."""
    is_refused = tensor.meta.requires_grad or machine.graph.is_transformed
    if is_refused or device_of(tensor.node).type != "cpu":
        tensor.refuse(machine, "numpy() of a tensor that requires grad or is on a device")
    if type(tensor.meta) is not torch.Tensor or tensor.meta.dtype not in _dtypes():
        tensor.refuse(machine, "numpy()")
    return ArrayValue(tensor, np.ndarray)


def emulate(
    machine: Machine,
    name: str,
    real: AnyFunction,
    args: Args,
    kwargs: Mapping[str, Value] | None = None,
    *,
    emulated: AnyFunction | None = None,
    pointwise: bool = False,
    label: object = None,
) -> Value:
    """Record a call of a numpy function, or of one for arrays of both libraries (an operator).

    Raises GraphBreak if the emulation does not agree with numpy.
    """
    _check_state(machine, name)
    arrays = _Arguments(machine, name)
    positional = tuple(arrays.tree(arg) for arg in args)
    named = {keyword: arrays.tree(value) for keyword, value in (kwargs or {}).items()}
    slots = _placed(arrays.found, [array_spec(machine, array) for array in arrays.found])
    call = Call(real, emulated or real, positional, named, slots, pointwise, label)
    sized = SizedCall(call)
    # The probe runs first: a call that fails it leaves no nodes of the emulation in the graph.
    verdict = judge(sized.now())
    if verdict.outcome != "holds":
        if emulated is not None and is_of_lapack(real):
            try:
                return call_numpy(machine, sized, [*map(_tensor, arrays.found)], ArrayValue)
            except NodeRefused as refused:
                raise _refused(name, str(refused)) from None
        raise _refused(name, str(verdict.reason))
    result, writes = verdict.found
    if writes:
        _check_write(machine, name)
    recorder, made = _record(machine, name, call, arrays.found, sized)
    return _wrapped(machine, recorder, arrays.found, sized, sized.results(result), made)


def _record(
    machine: Machine, name: str, call: Call, arrays: Sequence[Value], sized: SizedCall
) -> tuple[Recorder, Any]:
    recorder = Recorder(machine)
    stand_ins = [
        recorder.stand_in(array)
        if isinstance(array, TensorValue)
        else emulation().ndarray(recorder.stand_in(_tensor(array)))
        for array in arrays
    ]
    args, kwargs = filled((call.args, call.kwargs), stand_ins, recorded_constant)
    try:
        with recorder:
            return recorder, call.emulated(*args, **kwargs)
    except (TypeError, ValueError, RuntimeError, NotImplementedError, AttributeError) as error:
        why = f"torch's equivalent needs its data ({type(error).__name__}: {error})"
        # Symbolic sizes may be the cause: the trace starts over with constants before it breaks.
        sized.check(False, why)
        raise _refused(name, why) from None
    except GraphBreak as broken:
        sized.check(False, broken.reason.message)
        raise


def _wrapped(
    machine: Machine,
    recorder: Recorder,
    arrays: Sequence[Value],
    sized: SizedCall,
    results: Sequence[Any],
    emulated: Any,
) -> Value:
    """Return the Values of the results, which must match the probe's at each size tuple."""
    result = results[0]
    sized.check(len({type(one) for one in results}) == 1, "results of several kinds")
    if isinstance(result, tuple | list):
        sized.check(len({len(one) for one in results}) == 1, "the number of results")
        columns = zip(zip(*results, strict=True), emulated, strict=True)
        items = [_wrapped(machine, recorder, arrays, sized, *column) for column in columns]
        return ListValue(items) if isinstance(result, list) else TupleValue(items)
    if isinstance(result, Fact):
        return _fact(machine, sized, [one.value for one in results], emulated)
    assert isinstance(result, Result)
    kinds = {(one.same, one.spec.kind, one.spec.dtype) for one in results}
    sized.check(len(kinds) == 1, "the kind of the result")
    if result.same is not None:
        return arrays[result.same]
    tensor = recorder.value_of(getattr(emulated, "tensor", emulated))
    if tensor.node in machine.graph.unknown_strides and result.spec.is_contiguous:
        made = record(machine, "contiguous", [tensor])
        assert isinstance(made, TensorValue)
        tensor = made
    spec = array_spec(machine, tensor)
    shapes = [at_sizes(spec, known).shape for known in sized.size_tuples]
    if spec.dtype != result.spec.dtype or shapes != [one.spec.shape for one in results]:
        sized.check(False, "the shape of the result")
        raise _refused("numpy", "its result differs from the probe's")
    return tensor if result.spec.kind is torch.Tensor else ArrayValue(tensor, result.spec.kind)


def _fact(machine: Machine, sized: SizedCall, values: Sequence[object], emulated: object) -> Value:
    """Return the value of a result that is a constant or a size."""
    size = as_dimension(emulated)
    if isinstance(size, Size):
        sizes = [value_of(size, dict(known)) for known in sized.size_tuples]
        sized.check(sizes == list(values), "the size that is returned")
        return dimension_value(machine, size)
    sized.check(all(value == values[0] for value in values), "the number that is returned")
    is_dtype = isinstance(values[0], np.dtype)
    return DtypeValue(values[0]) if is_dtype else machine.constant(values[0])


def _sizes(machine: Machine, sizes: Iterable[Any]) -> Value:
    return TupleValue([dimension_value(machine, size) for size in sizes])


class _Arguments:
    """Converts the arguments of a call for the probe: each array to a Slot, constants unchanged."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine, self.name = machine, name
        self.found: list[Value] = []

    def tree(self, value: Value) -> Any:
        machine = self.machine
        value = value.realize(machine).as_array(machine)
        if isinstance(value, ArrayValue | TensorValue):
            if value not in self.found:
                self.found.append(value)
            return Slot(self.found.index(value))
        if isinstance(value, SliceValue):
            return slice(*(self.tree(part) for part in value.items))
        if isinstance(value, SequenceValue) and value.python_type(machine) in _SEQUENCES:
            if (array := _of_floats(machine, value)) is not None:
                return self.tree(array)
            items = [self.tree(item) for item in value.items]
            return items if isinstance(value, ListValue) else tuple(items)
        if isinstance(value, DtypeValue):
            return value.obj
        if isinstance(value, NumberValue) and value.scalar.is_size:
            return value.scalar.form
        if isinstance(value, ClassValue) and issubclass(value.live, (*_CONSTANTS, np.generic)):
            return value.live
        if value.is_constant(machine):
            constant = value.as_constant(machine)
            if type(constant) in (*_CONSTANTS, *ARRAY_SCALARS):
                return constant
        raise _refused(self.name, f"an argument of type {value.describe()}")


_SEQUENCES = (tuple, list, torch.Size)


def _of_floats(machine: Machine, value: SequenceValue) -> Value | None:
    """Return the array that numpy makes of a sequence of floats, some varying; None for others."""
    items = [item.realize(machine) for item in value.items]
    numbers = [scalar_of(machine, item) for item in items]
    # np.mean(losses[-10:]) with a loss that the graph computes was a graph break and a variant for
    # each number; as an array it takes two variants.
    if not any(map(node_scalar, items)):
        return None
    nodes: list[Value] = []
    for number in numbers:
        if number is None or number.kind is not float:
            return None
        nodes.append(TensorValue(number.argument(machine, full=True)))
    made = record(machine, torch.stack, [ListValue(nodes)])
    assert isinstance(made, TensorValue)
    return ArrayValue(made, np.ndarray)


def array_spec(machine: Machine, value: Value) -> ArraySpec:
    """Return the spec of an array for the probe. Raises GraphBreak if it cannot be an array."""
    graph = machine.graph
    tensor = _tensor(value)
    # numpy lays out results as their operands (order "K"), so the probe needs their strides.
    if tensor.meta.dim() and tensor.node in graph.unknown_strides:
        raise GraphBreak(UncertainStrides.of(what="an array"))
    if device_of(tensor.node).type != "cpu" or tensor.meta.requires_grad:
        tensor.refuse(machine, "use as an array")
    meta = tensor.meta
    kind = torch.Tensor if value is tensor else value.python_type(machine)
    return ArraySpec(as_dimensions(meta.shape), as_dimensions(meta.stride()), meta.dtype, kind)


def _placed(arrays: Sequence[Value], specs: Sequence[ArraySpec]) -> tuple[ArraySpec, ...]:
    """Return the specs, with a storage index and an offset for arrays that share memory."""
    storages = [storage_under(_tensor(storage).meta) for storage in arrays]
    groups = list(dict.fromkeys(storages))
    return tuple(
        replace(
            spec,
            storage=groups.index(storage),
            offset=as_dimension(_tensor(array).meta.storage_offset()),
        )
        # A write to one array shows in another, and torch raises for writes that numpy buffers
        # (`a[1:] += a[:-1]`): the probe must see the overlap.
        if storages.count(storage) > 1
        else spec
        for array, spec, storage in zip(arrays, specs, storages, strict=True)
    )


def _tensor(value: Value) -> TensorValue:
    tensor = value.tensor if isinstance(value, ArrayValue) else value
    assert isinstance(tensor, TensorValue)
    return tensor


def _check_state(machine: Machine, name: str) -> None:
    # The emulation computes with torch's calls, some of which autocast runs in 16 bits; numpy
    # knows nothing of autocast.
    if machine.graph.autocast != OFF:
        raise _refused(name, "autocast is on")
    guard_error_handling(machine, name)


def guard_error_handling(machine: Machine, name: str) -> None:
    """Guard numpy's handling of floating-point errors; break where it runs code or raises."""
    handling = numpy_error_handling()
    machine.guard(StateRead(numpy_error_handling, handling))
    if not set(handling) <= {"warn", "ignore"}:
        raise _refused(name, "np.errstate is set to more than a warning")


def _check_write(machine: Machine, name: str) -> None:
    """Break if autograd records here, since it does not see numpy's writes."""
    if machine.graph.differentiates:
        raise _refused(name, "it writes to memory without autograd, which records here")


def _refused(name: str, why: str) -> GraphBreak:
    return GraphBreak(NumpyCall.of(name=name, why=why))


def _dtypes() -> frozenset[torch.dtype]:
    return frozenset(
        (
            torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
            torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128,
        )
    )  # fmt: skip
