"""Conversions between torch and numpy, and calls of numpy's functions.

Handles numpy arrays that a frame reads, `tensor.numpy()`, `torch.from_numpy(array)`, and functions
that numpy implements in C or dispatches. An array is an input of the graph that shares its memory,
and arrays and tensors may share one memory (trace/values/numpy/arrays.py). Other calls break.
"""

from __future__ import annotations

import importlib
import math
import types
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any

import torch

from ....graph.node_meta import device_of
from ....guards.guard import TypeIs
from ....guards.live_objects import array_memory
from ....guards.source import ArrayMemory, Source
from ...breaks import GraphBreak, NumpyCall, UnknownCFunction, UnsupportedTensor
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.sequences import ListValue, SequenceValue, TupleValue
from ...values.contexts.default_dtype import default_dtype
from ...values.numbers.number import node_scalar, scalar_of
from ...values.numpy.arrays import ArrayValue, DtypeValue, array_of, emulate
from ...values.numpy.emulation import PARTS, counterpart, torch_dtype
from ...values.numpy_scalars import ARRAY_SCALARS, np
from ...values.objects.callables import BuiltinValue, name_of
from ...values.objects.operators import is_none
from ...values.tensors.tensor import TensorValue, record
from ...values.tensors.tensor_inputs import input_value
from ...wrap import by_identity, intercepts, wraps
from ..python.numbers import fold_call
from ..registry import handles

__all__: list[str] = []

_OPTIONS = {"dtype", "device"}
_MOST_STACKED = 64  # each is a node of the graph


@handles(torch.Tensor.numpy, torch.Tensor.__array__)
def _numpy(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    owner, *settings = args
    assert isinstance(owner, TensorValue)
    if settings or kwargs or np is None:
        owner.refuse(machine, "numpy() with arguments")
    return array_of(machine, owner)


def _makes(kind: type) -> None:
    """Register `np.float32(x)` and similar constructors."""

    @handles(kind)
    def make(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        return fold_call(machine, kind, args, kwargs, name_of(kind))


for _kind in ARRAY_SCALARS:
    _makes(_kind)


@handles(torch.from_numpy)
def _from_numpy(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    # np.float64 scalars are ArrayValues too; from_numpy raises a TypeError for them.
    array = args[0] if len(args) == 1 else None
    if not isinstance(array, ArrayValue) or array.kind is not np.ndarray:
        raise GraphBreak(NumpyCall.of(name="torch.from_numpy", why="its argument is not an array"))
    return _shared(machine, array)


_of_data = lambda data, *rest, **options: None  # noqa: E731


def _shares(convert: Callable[..., torch.Tensor], like: Callable[..., None]) -> None:
    """Register a conversion that shares the array's memory if it can."""

    @handles(convert, like=like)
    def converted(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        args = [arg.as_array(machine) for arg in args]
        if len(args) == 1 and (stacked := _stacked(machine, args[0], kwargs)) is not None:
            return stacked
        if not args or not isinstance(args[0], ArrayValue):
            return record(machine, convert, args, kwargs)
        names = ("dtype", "device")
        changes = {**dict(zip(names, args[1:], strict=False)), **kwargs}
        if len(args) > 3 or not changes.keys() <= set(names):
            raise GraphBreak(NumpyCall.of(name=name_of(convert), why="of its arguments"))
        shared = _shared(machine, args[0])
        return record(machine, "to", [shared], changes) if changes else shared


_shares(torch.as_tensor, _of_data)
_shares(torch.asarray, lambda obj, *rest, **options: None)


def _copies(convert: Callable[..., torch.Tensor]) -> None:
    @handles(convert, like=_of_data)
    def converted(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        args = [arg.as_array(machine) for arg in args]
        is_scalar = args and args[0].python_type(machine) in ARRAY_SCALARS
        is_known = is_scalar and not args[0].varies and args[0].is_constant(machine)
        if is_known and "dtype" not in kwargs:
            # torch.tensor(np.float64(1)) is float64: a scalar of numpy brings its dtype, which a
            # Python number does not.
            dtype = torch_dtype(np.dtype(args[0].python_type(machine)))
            kwargs = {**kwargs, "dtype": machine.constant(dtype)}
            args = [machine.constant(args[0].as_constant(machine).item()), *args[1:]]
        if len(args) == 1 and (stacked := _stacked(machine, args[0], kwargs)) is not None:
            return stacked
        if not args or not isinstance(args[0], ArrayValue):
            return record(machine, convert, args, kwargs)
        if len(args) > 1 or not kwargs.keys() <= {"dtype", "device"}:
            raise GraphBreak(NumpyCall.of(name=name_of(convert), why="of its arguments"))
        # torch.tensor() copies, and its result is contiguous whatever the array's layout.
        order = machine.constant(torch.contiguous_format)
        copy = record(machine, "clone", [args[0].tensor], {"memory_format": order})
        return record(machine, "to", [copy], kwargs) if kwargs else copy


_copies(torch.tensor)


def _stacked(machine: Machine, value: Value, options: Mapping[str, Value]) -> Value | None:
    """Return `torch.tensor(value, **options)` of varying numbers or 0-dim tensors as a stack.

    None if no item is such a number or an item is not a number. A list of sizes only is an ordinary
    argument.
    """
    real = value.realize(machine)
    shape = _shape(machine, real)
    if not shape or not options.keys() <= _OPTIONS:
        return None
    leaves = list(_leaves(machine, real))
    if not any(isinstance(leaf, TensorValue) or node_scalar(leaf) for leaf in leaves):
        return None
    dtypes = [made for leaf in leaves if (made := _dtype_of(machine, leaf)) is not None]
    if len(dtypes) < len(leaves):
        return None
    dtype = options.get("dtype")
    if dtype is None or is_none(dtype):
        dtype = machine.constant(reduce(torch.promote_types, dtypes))
    parts = [_part(machine, leaf, dtype) for leaf in leaves]
    if len(items := [part for part in parts if part is not None]) < len(leaves):
        return None
    # The losses of an epoch, or the returns of an episode: read as numbers they would end the graph
    # at each one.
    stacked = record(machine, torch.stack, [ListValue(items)])
    sizes = TupleValue([machine.constant(size) for size in shape])
    tensor = record(machine, "reshape", [stacked, sizes]) if len(shape) > 1 else stacked
    device = options.get("device")
    if device is not None and not is_none(device):
        tensor = record(machine, "to", [tensor, device])
    return tensor


def _dtype_of(machine: Machine, leaf: Value) -> torch.dtype | None:
    """Return the dtype that torch.tensor infers for an item; None if it is not a number."""
    if isinstance(leaf, TensorValue):
        meta = leaf.meta
        usual = not meta.dim() and device_of(leaf.node).type == "cpu" and not meta.is_complex()
        return meta.dtype if usual and not meta.requires_grad else None
    number = scalar_of(machine, leaf)
    if number is None or leaf.python_type(machine) is bool:
        return None if number is None else torch.bool
    return default_dtype(machine) if number.kind is float else torch.int64


def _part(machine: Machine, leaf: Value, dtype: Value) -> Value | None:
    """Return an item as a tensor, or None if the dtype cannot hold it and eager may raise."""
    if not isinstance(leaf, TensorValue):
        return record(machine, torch.tensor, [leaf], {"dtype": dtype})
    wanted = dtype.as_constant(machine)
    if torch.promote_types(wanted, leaf.meta.dtype) is not wanted:
        return None
    return record(machine, "to", [leaf, dtype])


def _shape(machine: Machine, value: Value) -> tuple[int, ...] | None:
    """Return the shape of nested lists and tuples; None if they are ragged, empty or large."""
    if not isinstance(value, ListValue | TupleValue):
        return ()
    items = [item.realize(machine) for item in value.items]
    first, *others = (_shape(machine, item) for item in items) if items else (None,)
    if first is None or any(other != first for other in others):
        return None
    found = len(items), *first
    return found if math.prod(found) <= _MOST_STACKED else None


def _leaves(machine: Machine, value: Value) -> Iterator[Value]:
    if not isinstance(value, ListValue | TupleValue):
        yield value
        return
    for item in value.items:
        yield from _leaves(machine, item.realize(machine))


def _shared(machine: Machine, array: ArrayValue) -> Value:
    """Return a new tensor over the array's memory; a scalar is copied."""
    # detach() is an alias without history, as torch.from_numpy makes.
    return record(machine, "detach" if array.kind is np.ndarray else "clone", [array.tensor])


class NumpyFunction(BuiltinValue):
    """A function of numpy, in C or Python, known by identity."""

    __slots__ = ()
    obj: Any

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        emulated = counterpart(self.obj)
        is_known = emulated is not None or isinstance(self.obj, np.ufunc)
        if is_known and (number := _number(machine, self.obj, args, kwargs)) is not None:
            return number
        if emulated is None:
            raise GraphBreak(UnknownCFunction.of(name=name_of(self.obj)))
        name = f"numpy.{self.obj.__name__}"
        # A ufunc with a signature, such as np.matmul, combines elements.
        pointwise = isinstance(self.obj, np.ufunc) and self.obj.signature is None and not kwargs
        return emulate(
            machine, name, self.obj, args, kwargs, emulated=emulated, pointwise=pointwise
        )


def _number(machine: Machine, function: Any, args: Args, kwargs: Kwargs) -> Value | None:
    """Evaluate a pure function of constants if the result is a number."""
    given = [one.realize(machine) for one in (*args, *kwargs.values())]
    if not all(one.is_constant(machine) and not _varies(machine, one) for one in given):
        return None
    names = tuple(kwargs)

    def call(*constants: object) -> object:
        named = dict(zip(names, constants[len(args) :], strict=True))
        # numpy warns of a division by zero or an overflow. A constant would lose the warning.
        with np.errstate(all="raise"):
            return function(*constants[: len(args)], **named)

    try:
        result = call(*(one.as_constant(machine) for one in given))
    except (FloatingPointError, TypeError, ValueError):
        return None
    return machine.constant(result) if type(result) in ARRAY_SCALARS else None


def _varies(machine: Machine, value: Value) -> bool:
    """Return whether it is a symbolic number, or a list of such."""
    if not isinstance(value, SequenceValue):
        return value.varies
    return any(_varies(machine, item.realize(machine)) for item in value.items)


@intercepts(types.ModuleType, library="numpy")
def _load_parts(machine: Machine, obj: types.ModuleType, source: Source) -> Value | None:
    """Import submodules such as `np.fft` before any name of numpy is read.

    numpy imports them at first access, for example by the emulation's tables, when a trace may
    already have read that the name is missing.
    """
    if obj is np:
        for part in PARTS:
            importlib.import_module(f"numpy.{part}")
    return None


@intercepts(types.FunctionType, types.BuiltinFunctionType, library="numpy")
def _intercept_function(machine: Machine, obj: object, source: Source) -> Value | None:
    """Model a function of numpy; without an equivalent, Python code is inlined."""
    if not str(obj.__module__).startswith("numpy") or counterpart(obj) is None:
        return None
    return _wrap_function(machine, obj, source)


_wrap_function = by_identity(NumpyFunction)


def _wrap_array(machine: Machine, obj: object, source: Source) -> Value:
    """Make an array an input that shares its memory, so that writes of the graph reach it."""
    machine.guard(TypeIs(source, np.ndarray))
    memory = ArrayMemory(source)
    try:
        tensor = array_memory(obj)
    except (TypeError, ValueError) as error:
        raise GraphBreak(UnsupportedTensor.of(what=f"an array: {error}")) from None
    value = input_value(machine, tensor, memory, torch.Tensor)
    return ArrayValue(value, np.ndarray, source)


if np is not None:
    wraps(np.ufunc, type(np.concatenate))(_wrap_function)
    wraps(np.dtype, subclasses=True)(by_identity(DtypeValue))
    wraps(np.ndarray)(_wrap_array)
