"""Makes live tensors graph inputs, whether parameters, buffers, globals, attributes or cells.

Input: a tensor object and its Source. Output: a placeholder of the graph and a TensorMatch guard;
tensor data is never read. Unsupported tensors (subclasses, sparse, quantized, dual, conjugate
views, named, meta) are a graph break with the reason. Eager runs the operation, and the rest of the
frame too if all its tensor arguments are unsupported. Under a transform of torch.func, tensors that
it wraps are inputs with the shape that the program sees.
"""

from __future__ import annotations

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ....compat.tensors import dispatch_keys, is_transformed
from ....devices import is_compiled
from ....graph.wrappers.wrapping import is_wrapper
from ....guards.guard import TensorKind, TypeIs
from ....guards.kinds.tensors import has_forward_gradient
from ....guards.source import Argument, Source, describe
from ....guards.state import is_transformed_call
from ...breaks import GraphBreak, OnlyUnsupportedTensors, TransformedTensor, UnsupportedTensor
from ...input_memory import check_written_inputs
from ...result import BreakReason
from ...wrap import wraps
from ..base import Machine, Value
from ..objects.class_facts import guarded_attribute
from .function_subclasses import is_followed
from .input_specs import guarded_spec, own_symbols
from .subclasses import why_not_taken_apart, wrapper_input
from .tensor import TensorValue

__all__ = ["input_value", "why_not_an_input"]

_CLASSES = (torch.Tensor, torch.nn.Parameter)


def why_not_an_input(tensor: torch.Tensor) -> str | None:
    """Return the reason why a tensor cannot be a graph input; None if it can."""
    if is_wrapper(tensor):
        return why_not_taken_apart(tensor)
    if (why := _why_not_of_class(type(tensor))) is not None:
        return why
    wrapped = is_transformed(tensor)
    if wrapped and not is_transformed_call():
        return "it is wrapped by a function transform that has ended"
    if not wrapped and has_forward_gradient(tensor):
        return "it carries a gradient of forward-mode differentiation"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return f"its layout is {'nested' if tensor.is_nested else tensor.layout}"
    if tensor.is_quantized:
        return "it is quantized"
    if not is_compiled(tensor.device):
        return f"it is on device {tensor.device}"
    if _is_lazy(tensor):
        return "it is a conjugate or negative view, or known to be zero and without memory"
    if any(name is not None for name in getattr(tensor, "names", ())):  # gone since torch 2.13
        return "it has named dimensions"
    return None


def _why_not_of_class(kind: type) -> str | None:
    """Return the reason why a graph has no tensors of a class; None if it can."""
    if kind in _CLASSES:
        return None
    if issubclass(kind, UninitializedParameter | UninitializedBuffer):
        return f"it is of the subclass {kind.__name__}"
    dispatch = kind.__torch_dispatch__  # type: ignore[attr-defined]
    if dispatch is not torch.Tensor.__torch_dispatch__:
        return f"the subclass {kind.__name__} has __torch_dispatch__ but no __tensor_flatten__"
    if not is_followed(kind):
        return f"__torch_function__ of the subclass {kind.__name__} is no class method in Python"
    return None


def _is_lazy(tensor: torch.Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()


def _guard_kind(machine: Machine, obj: torch.Tensor, source: Source) -> None:
    """Guard what makes a tensor unsupported, since the next call may pass a supported one."""
    if type(obj) not in _CLASSES:
        machine.guard(TypeIs(source, type(obj)))
        return
    keys = dispatch_keys(obj).raw_repr()
    machine.guard(TensorKind(source, type(obj), keys, has_forward_gradient(obj)))


def _refusal(machine: Machine, obj: torch.Tensor, what: str) -> BreakReason:
    wrapped = is_transformed(obj)
    if type(obj) in _CLASSES and (wrapped or has_forward_gradient(obj)):
        return TransformedTensor.of(what=what)
    # Such a frame is left to eager as a whole. Broken at each operation, a function of eight had up
    # to nine variants, none of them with a graph.
    if _are_all_refused(machine):
        return OnlyUnsupportedTensors.of(what=what)
    return UnsupportedTensor.of(what=what)


def _are_all_refused(machine: Machine) -> bool:
    """Return whether no tensor argument of the frame can be an input, and guard that.

    False if one is lazy (conjugate, negative or zero): any operation makes it a plain tensor.
    """
    code, args = machine.snapshot.code, machine.snapshot.args
    tensors = [
        (Argument(index, name), arg)
        for index, (name, arg) in enumerate(zip(code.co_varnames, args, strict=False))
        if isinstance(arg, torch.Tensor)
    ]
    if not tensors or any(why_not_an_input(tensor) is None for _, tensor in tensors):
        return False
    if any(type(t) in _CLASSES and _is_lazy(t) for _, t in tensors):
        return False
    for source, tensor in tensors:
        _guard_kind(machine, tensor, source)
    return True


@wraps(torch.Tensor, subclasses=True)
def _wrap_tensor(machine: Machine, obj: torch.Tensor, source: Source) -> Value:
    refused = why_not_an_input(obj)
    if refused is not None:
        _guard_kind(machine, obj, source)
        raise GraphBreak(_refusal(machine, obj, refused))
    if is_wrapper(obj):
        return wrapper_input(machine, obj, source)
    if type(obj) not in _CLASSES:
        guarded_attribute(machine, type(obj), "__torch_function__")
    return input_value(machine, obj, source, type(obj))


def input_value(machine: Machine, obj: torch.Tensor, source: Source, kind: type) -> TensorValue:
    """Add a guarded placeholder for a live tensor; `kind` is its class in the program."""
    spec = guarded_spec(machine, obj, source)
    notes = machine.notes.root
    node = notes.add_input(describe(source), source, spec)
    made = notes.owners[node] = TensorValue(node, kind, obj, source)
    own_symbols(machine, made)
    # The graph may have written to memory that this tensor shares with an earlier input.
    if notes.graph.mutated_inputs:
        check_written_inputs(machine, notes)
    return made
