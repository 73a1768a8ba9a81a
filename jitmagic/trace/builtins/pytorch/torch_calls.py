"""Torch calls that need more than a node: predicates, plain objects, tensors made of Python data.

Takes realized arguments. Returns constants of the trace where no tensor data is involved
(is_tensor, Size, device, finfo, ...), graph nodes, or breaks with a reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.overrides import (
    has_torch_function,
    has_torch_function_unary,
    has_torch_function_variadic,
    is_tensor_like,
)

from ....compat.modules import lazy_property
from ....compat.tensors import TENSOR_CLASSES, broadcast_size
from ....graph.symbolic.known import known_value
from ....graph.wrappers.wrapping import is_wrapper_class
from ...breaks import (
    Construction,
    GraphBreak,
    RefusedTorchCall,
    TensorItem,
    TorchCallFailed,
    UnsupportedArguments,
)
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.sequences import ListValue, SequenceValue, SizeValue, TupleValue
from ...values.contexts.default_device import default_device
from ...values.contexts.default_dtype import default_dtype
from ...values.numbers.assertions import speculated_list
from ...values.numbers.tensor_numbers import numbers_of
from ...values.numbers.varying_counts import VaryingRows, symbols_in
from ...values.numpy_scalars import np
from ...values.objects.callables import BuiltinValue, name_of
from ...values.objects.classes import ClassValue, constructs
from ...values.objects.constants import ConstantValue, evaluate
from ...values.objects.functions import FunctionValue
from ...values.objects.operators import is_none
from ...values.tensors.subclasses import make_wrapper
from ...values.tensors.tensor import TensorValue, record
from ...wrap import by_identity, intercepts
from ..python.numbers import fold_call
from ..registry import AS_GIVEN, calls, handler_of, handles, handles_named

__all__: list[str] = []


@handles(is_tensor_like)
def _is_tensor_like(machine: Machine, value: Value) -> bool:
    kind = value.python_type(machine)
    # torch asks hasattr(obj, "__torch_function__"), which may run a `__getattr__` of the user's.
    if not isinstance(value, TensorValue) and kind not in (float, int, bool, complex):
        raise GraphBreak(UnsupportedArguments.of(name="is_tensor_like", what=f"a {kind.__name__}"))
    return isinstance(value, TensorValue)


@handles(has_torch_function, has_torch_function_unary, has_torch_function_variadic, lazy=True)
def _has_torch_function(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Return False: tensors with their own `__torch_function__` never become graph inputs.

    The mode of a default device intercepts this call and calls the function again without itself.
    So the rest of the frame runs as if the mode were off. In the root frame that is a break,
    because plain Python after a later break would still see the mode.
    """
    if default_device(machine) is not None and len(machine.frames) == 1:
        why = "the mode of the default device intercepts the call"
        raise GraphBreak(RefusedTorchCall.of(name="torch.overrides.has_torch_function", why=why))
    machine.frames[-1].past_default_device = True
    return machine.constant(False)


@handles(
    torch.jit.is_scripting,  # type: ignore[attr-defined]
    torch.jit.is_tracing,  # type: ignore[attr-defined]
)
@handles_named("torch.onnx", "is_in_onnx_export")
def _other_compilers(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Return False, as in eager: no other compiler is at work."""
    return machine.constant(False)


@handles(torch.Tensor.new)
def _new(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Model `x.new(2, 3)` as `x.new_empty(2, 3)`; a list argument would give its numbers."""
    sizes = [part.realize(machine) for part in args[1:]]
    if len(sizes) == 1 and isinstance(sizes[0], SizeValue):
        sizes = sizes[0].realized(machine)
    if any(size.python_type(machine) is not int for size in sizes):
        raise GraphBreak(UnsupportedArguments.of(name="Tensor.new", what="not sizes"))
    # Recurrent models make their hidden states so; Reformer had 13 graph breaks for it.
    made = TupleValue(sizes or [machine.constant(0)])
    return record(machine, "new_empty", [args[0], made])


@handles(torch.Tensor.unbind, like=lambda self, /, dim=0: None)
@handles(torch.unbind, like=lambda input, dim=0: None)
def _unbind(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Unbind; for a varying dimension, a loop over the parts need not know how many there are."""
    dim = args[1] if len(args) > 1 else machine.constant(0)
    x, dim = args[0], dim.realize(machine)
    if isinstance(x, TensorValue) and isinstance(dim, ConstantValue) and type(dim.value) is int:
        rank = x.meta.dim()
        if -rank <= dim.value < rank:
            count = machine.constant(x.meta.shape[dim.value])
            if symbols := symbols_in(machine, [count]):
                return VaryingRows(x, dim, count, symbols)
    return record(machine, "unbind", args)


@handles(torch.Tensor.tolist)
def _to_list(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Model tolist() of a tensor that is constant, has few numbers, or is speculated."""
    if len(args) == 1 and isinstance(args[0], TensorValue):
        known = known_value(machine.graph, args[0].node)
        if known is not None:
            return machine.constant(known.tolist())
        if (numbers := numbers_of(machine, args[0].node)) is not None:
            return _nested_list(args[0].meta.shape, iter(numbers))
        if (speculated := speculated_list(machine, args[0].node)) is not None:
            return machine.constant(speculated)
    raise GraphBreak(TensorItem.of(what=".tolist()"))


def _nested_list(shape: Sequence[int], numbers: Iterator[Value]) -> Value:
    if not shape:
        return next(numbers)
    return ListValue([_nested_list(shape[1:], numbers) for _ in range(shape[0])])


@handles(broadcast_size)
def _broadcast(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Broadcast two shapes; if they are incompatible, plain Python raises with its own message."""
    if not all(isinstance(arg, SizeValue) for arg in args):
        what = "not two sizes"
        raise GraphBreak(UnsupportedArguments.of(name="torch._C._infer_size", what=what))
    try:
        shape = torch.broadcast_shapes(*(arg.as_constant(machine) for arg in args))
    except RuntimeError as error:
        raise GraphBreak(TorchCallFailed.of(name="torch._C._infer_size", error=error)) from None
    return SizeValue([machine.constant(size) for size in shape])


@handles(torch.Size)
def _size(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    items = args[0].items if args and isinstance(args[0], SequenceValue) else []
    if args and not isinstance(args[0], SequenceValue):
        args[0].refuse(machine, "torch.Size()")
    for item in items:
        if not (item := item.realize(machine)).varies and item.is_constant(machine):
            evaluate(machine, torch.Size, [item.as_constant(machine)])
    return SizeValue(items)


calls({
    torch.jit.annotate: lambda machine, kind, value: value,  # the type is for TorchScript
    torch.is_tensor: lambda machine, obj: isinstance(obj, TensorValue),
})  # fmt: skip
handles(torch.device, like=AS_GIVEN)(
    lambda machine, args, kwargs: fold_call(machine, torch.device, args, kwargs)
)


class NumberLimits(BuiltinValue):
    """The result of torch.finfo(dtype) or torch.iinfo(dtype)."""

    __slots__ = ()

    def python_type(self, machine: Machine) -> type:
        return type(self.obj)

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name in ("bits", "max", "min", "eps", "tiny", "smallest_normal", "resolution", "dtype"):
            return machine.constant(getattr(self.obj, name))
        self.refuse(machine, f"attribute {name!r}")


def _limits(kind: Any, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    dtype = args[0].as_constant(machine) if args else default_dtype(machine)
    try:
        return NumberLimits(kind(dtype))
    except TypeError as error:
        raise GraphBreak(TorchCallFailed.of(name=name_of(kind), error=error)) from None


for _limit in (torch.finfo, torch.iinfo):
    handles(_limit, like=lambda type: None)(partial(_limits, _limit))


intercepts(torch.finfo, torch.iinfo)(by_identity(NumberLimits))


@constructs(
    lambda kind: issubclass(kind, torch.Tensor) and kind is not torch.nn.Parameter,
    before_others=True,
)
def _make_tensor(machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    if cls.live is torch.Tensor and default_device(machine) is None:
        return _make_legacy_tensor(cls.live, machine, args, kwargs)
    if is_wrapper_class(cls.live):
        return make_wrapper(machine, cls.live, args, kwargs)
    why = "it makes a leaf or an uninitialised tensor of a class"
    raise GraphBreak(RefusedTorchCall.of(name=name_of(cls.live), why=why))


def _make_legacy_tensor(kind: Any, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Model `torch.IntTensor([1, 2])` and `torch.Tensor(2, 3)`: from data, or of a shape alone."""
    given = [arg.realize(machine) for arg in args]
    dtype = default_dtype(machine) if kind is torch.Tensor else kind.dtype
    options = {"dtype": machine.constant(dtype), "device": machine.constant("cpu")}
    # A torch.Size is a shape, any other sequence is data: torch.Tensor((2, 3)) has two elements,
    # torch.Tensor(torch.Size((2, 3))) six.
    if len(given) == 1 and not kwargs and type(given[0]) is SizeValue:
        given = given[0].realized(machine)
    if len(given) == 1 and not kwargs and type(given[0]) in (ListValue, TupleValue):
        return record(machine, torch.tensor, given, options)
    if kind is torch.Tensor and len(given) == 1 and not kwargs:
        if isinstance(given[0], TensorValue):
            # torch.Tensor(t) shares the memory of `t`.
            return record(machine, torch.ops.aten.alias.default, given)
        share = handler_of(torch.as_tensor)
        if share is not None and given[0].python_type(machine) is np.ndarray:
            return share(machine, given, options)
    if kwargs or not all(arg.python_type(machine) is int for arg in given):
        what = "arguments other than a list or sizes"
        raise GraphBreak(UnsupportedArguments.of(name=name_of(kind), what=what))
    return record(machine, torch.empty, [TupleValue(given or [machine.constant(0)])], options)


for _kind in TENSOR_CLASSES:
    if not (_kind.is_sparse or _kind.is_cuda):
        handles(_kind)(partial(_make_legacy_tensor, _kind))


@constructs(lambda kind: issubclass(kind, torch.autograd.Function), before_others=True)
def _make_function(machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    why = "it warns that an autograd function is not to be instantiated"
    raise GraphBreak(RefusedTorchCall.of(name=name_of(cls.live), why=why))


# -- torch.nn.Parameter(data) ----------------------------------------------------------------------


_PARAMETER = torch.nn.Parameter


@constructs(lambda kind: kind is _PARAMETER, before_others=True)
def _make_parameter(machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    given = dict(zip(("data", "requires_grad"), args, strict=False)) | dict(kwargs)
    flag = given.pop("requires_grad", machine.constant(True)).realize(machine)
    data = given.pop("data", machine.constant(None)).realize(machine)
    if is_none(data):
        data = record(machine, torch.empty, [machine.constant(0)])
    is_plain = isinstance(data, TensorValue) and data.kind in (torch.Tensor, _PARAMETER)
    if given or len(args) > 2 or not is_plain:
        raise GraphBreak(Construction.of(what="torch.nn.Parameter() of such a value"))
    # A parameter shares the memory of its data but has none of its history.
    made = record(machine, "detach", [data])
    assert isinstance(made, TensorValue)
    made.kind = _PARAMETER
    return made.require_grad(machine, flag)


# -- torch.distributions ---------------------------------------------------------------------------


_lazy: Any = lazy_property


@handles(_lazy)
def _lazy_of_class(machine: Machine, wrapped: Value) -> Value:
    """Return a lazy property read from the class alone, by code that asks for its kind."""
    if not isinstance(wrapped, FunctionValue) or wrapped.live is None:
        wrapped.refuse(machine, "a lazy property")
    return BuiltinValue(_lazy(wrapped.live))


@handles(torch.ops.aten._local_scalar_dense.default)
def _item(machine: Machine, number: Value) -> Value:
    """Return the number in a 0-dim tensor: exported programs write `x.item()` so."""
    known = number.realize(machine)  # a number itself, if the tensor was made of one
    is_tensor = isinstance(known, TensorValue)
    return known.call_method(machine, "item", [], {}) if is_tensor else known
