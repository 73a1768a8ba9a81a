"""Makes live wrapper subclasses of torch.Tensor graph inputs.

Input: an instance of a class with `__tensor_flatten__` and its Source. Output: a TensorValue whose
node makes the wrapper of its inner tensors, which are inputs of the graph with guards of their own.
Guards compare the wrapper's class, metadata, sizes and flags, and the methods of its class. The
class's `__torch_dispatch__` runs when the graph is traced: what it reads apart from its arguments
has no guard, and what it prints or counts happens then.

The inner tensors of a wrapper that requires grad are inputs whose gradients are parts of the
wrapper's gradient (`GraphInput.wrapper`).
"""

from __future__ import annotations

import types
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch.fx import Node

from ....compat.distributed import wait
from ....compat.tensors import dispatch_keys, is_transformed
from ....graph.distributed.objects import is_marked_async
from ....graph.node_meta import spec_on
from ....graph.wrappers.nodes import rewrap
from ....graph.wrappers.wrapping import (
    Gradients,
    Layout,
    Rewrap,
    differentiable,
    is_wrapper,
    placed_facts,
    shards_of,
)
from ....guards.guard import FieldsEqual, FlattensTo, Guard, TensorKind, TypeIs
from ....guards.kinds.tensors import has_forward_gradient
from ....guards.source import InstanceDict, SlotAttr, Source, TypeOf, describe
from ....spec import TensorSpec
from ....symbols.context import Specialize
from ....symbols.interval import INT64, Interval
from ....symbols.size import Size, hint_of
from ....symbols.symbolic_numbers import Symbol, symbols_of
from ...breaks import GraphBreak, RefusedTorchCall, UnsupportedAttribute, UnsupportedTensor
from ...residual_torch_calls import bump_version
from ...result import Perform, Recipe, WrapperPart
from ..base import Args, Builder, Kwargs, Machine, Value
from ..containers.mappings import entries_of_live
from ..objects.callables import BuiltinValue
from ..objects.class_facts import attribute_of_class, guard_not_shadowed, guarded_attribute
from ..objects.classes import bind
from ..objects.opaque import WithoutOperators
from .function_subclasses import is_followed
from .input_specs import guarded_spec, own_symbols
from .tensor import TensorValue, record
from .tensor_class import is_library_method

__all__ = [
    "library_method", "make_wrapper", "why_not_taken_apart", "wrapper_attribute", "wrapper_input",
]  # fmt: skip

_METHODS = (
    "__torch_dispatch__",
    "__torch_function__",
    "__tensor_flatten__",
    "__tensor_unflatten__",
)

_FLAGS = ("requires_grad", "is_leaf")  # of a nested tensor, whose sizes TensorMatch cannot read
_CONSTANTS = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size)


def why_not_taken_apart(tensor: torch.Tensor) -> str | None:
    """Return the reason why a wrapper cannot be a graph input; None if it can."""
    kind = type(tensor).__name__
    if not is_followed(type(tensor)):
        return f"__torch_function__ of {kind} is no class method in Python"
    if is_transformed(tensor) or has_forward_gradient(tensor):
        return f"a {kind} is wrapped by a function transform or carries a tangent"
    if tensor.layout not in (torch.strided, torch.jagged):
        return f"the layout of a {kind} is {tensor.layout}"
    try:
        first, second = Layout.of(tensor), Layout.of(tensor)
        if not first.equals(second):
            return f"the metadata of a {kind} cannot be compared"
        inner = first.inner(tensor)
    except Exception as error:  # user code may raise anything
        return f"{kind}.__tensor_flatten__() raises {type(error).__name__}: {error}"
    if any(one.device != tensor.device for one in inner):
        return f"the inner tensors of a {kind} are on other devices"
    return _why_no_gradient(tensor, inner)


def _why_no_gradient(tensor: torch.Tensor, inner: tuple[torch.Tensor, ...]) -> str | None:
    kind = type(tensor).__name__
    # That of a DTensor has the flag of the tensor that was distributed. It has no effect there:
    # all calls on it run below autograd.
    is_without_effect = tensor.requires_grad and placed_facts(tensor) is not None
    if any(one.requires_grad for one in inner) and not is_without_effect:
        return f"an inner tensor of a {kind} requires grad"
    if not tensor.requires_grad:
        return None
    if not any(differentiable(inner)):
        return f"a {kind} requires grad, and no inner tensor is one of floats"
    reasons = [why_not_taken_apart(one) for one in inner if is_wrapper(one)]
    return next((why for why in reasons if why is not None), None)


def wrapper_input(machine: Machine, obj: torch.Tensor, source: Source) -> TensorValue:
    """Add the inner tensors of a wrapper as graph inputs; return the wrapper around them."""
    node = _wrapper_node(machine, obj, source, None)
    made = machine.notes.root.owners[node] = TensorValue(node, type(obj), obj, source)
    machine.at_exit(partial(_count_writes, made, made.meta._version))
    return made


def _wrapper_node(
    machine: Machine, obj: torch.Tensor, source: Source, parent: WrapperPart | None
) -> Node:
    """Return the node of a wrapper; `parent`: the part of another one's gradient that is its."""
    kind, layout = type(obj), Layout.of(obj)
    machine.guard(TypeIs(source, kind))
    for name in _METHODS:
        guarded_attribute(machine, kind, name)
    machine.guard(_metadata(obj, source, layout))
    target = Rewrap(layout, Gradients())
    parts = [WrapperPart(source, number, target, parent) for number in range(len(layout.names))]
    inner = [_inner_node(machine, obj, part) for part in parts]
    notes = machine.notes.root
    # After the inner tensors: a size that varies as one of theirs does shares its symbol.
    spec = _guarded_spec(machine, obj, source, inner)
    read = notes.graph.sizes.inputs
    if unread := [symbol for symbol in _symbols_of(spec) if symbol not in read]:
        raise Specialize(unread, f"a size of a {kind.__name__} that no inner tensor has")
    return rewrap(notes.graph, target, inner, spec)


def _metadata(obj: Any, source: Source, layout: Layout) -> Guard:
    """Return the guard on what a wrapper names besides tensors. A DTensor's is checked natively,
    and without its sizes, which are compared as those of other tensors.
    """
    if (placed := placed_facts(obj)) is not None:
        return FieldsEqual(source, *placed)
    named, context = obj.__tensor_flatten__()
    facts = tuple((name, getattr(obj, name)) for name in _FLAGS if obj.is_nested)
    return FlattensTo(source, tuple(named), _snapshot(context), (*layout.others, *facts))


def _guarded_spec(
    machine: Machine, obj: torch.Tensor, source: Source, inner: list[Node]
) -> TensorSpec:
    if not obj.is_nested:
        return guarded_spec(machine, obj, source, _computed_sizes(obj, inner))
    machine.guard(TensorKind(source, type(obj), dispatch_keys(obj).raw_repr(), False))
    spec: TensorSpec = spec_on(obj, obj.device)
    return spec


def _computed_sizes(obj: torch.Tensor, inner: list[Node]) -> dict[int, Size]:
    """Return the sizes that follow from an inner tensor's symbolic ones, by dimension: multiples,
    and for a DTensor a multiple and a remainder.

    Of n parts of a dimension, all have the size ceil(size / n), apart from the last one: on each
    rank, size - n * part is the same for all sizes that leave one remainder. So there are n
    variants at most, and on all ranks the same ones, unless a part before the last is not full.
    """
    found: dict[int, Size] = {}
    shards = shards_of(obj)
    for shape in (node.meta["spec"].shape for node in inner):
        for dim, (size, part) in enumerate(zip(obj.shape, shape, strict=False)):
            if not isinstance(part, Size):
                continue
            count = shards.get(dim, size // hint_of(part))
            computed = part * count + (size - hint_of(part) * count) * (dim in shards)
            is_own = dim in shards or size > hint_of(part)
            if is_own and isinstance(computed, Size) and size == hint_of(computed):
                found.setdefault(dim, computed)
    return found


def _divided(machine: Machine, obj: torch.Tensor, source: Source) -> dict[int, Interval]:
    """Return the divided dimensions of a DTensor that vary. Those of its part vary too: 5 and 6
    rows are 3 rows each of the first rank.
    """
    shards = shards_of(obj)
    varying = machine.symbols.varying_dims(source, obj) if shards else {}
    return {dim: INT64 for dim in varying if dim in shards}


def _snapshot(metadata: Any) -> Any:
    """Return metadata with new containers, so that one that is changed in place differs."""
    if isinstance(metadata, dict):
        return {key: _snapshot(value) for key, value in metadata.items()}
    if type(metadata) in (list, tuple):
        return type(metadata)(map(_snapshot, metadata))
    return set(metadata) if isinstance(metadata, set) else metadata


def _count_writes(wrapper: TensorValue, version: int, builder: Builder) -> None:
    """Count in-place writes on the wrapper too: the graph writes to its inner tensors alone."""
    count = wrapper.meta._version - version
    if count:
        bump = builder.constant(bump_version), (builder(wrapper), builder.constant(count))
        builder.effect(Perform(*bump))


def _inner_node(machine: Machine, obj: Any, part: WrapperPart) -> Node:
    """Return the graph input for an inner tensor."""
    name = part.rewrap.layout.names[part.number]
    value = _attribute(machine, obj, part.source, name)
    if value.source is not None and (varying := _divided(machine, obj, part.source)):
        machine.symbols.implied[value.source] = varying
    is_part = differentiable(part.rewrap.layout.inner(obj))[part.number]
    if is_part and (obj.requires_grad or part.parent is not None):
        tensor, path = getattr(obj, name), value.source
        assert path is not None
        if is_wrapper(tensor):
            return _wrapper_node(machine, tensor, path, part)
        return _gradient_input(machine, tensor, path, part, obj.is_leaf)
    inner = value.realize(machine)
    if not isinstance(inner, TensorValue):
        raise GraphBreak(UnsupportedTensor.of(what=f"the inner tensor {name!r} is unknown"))
    node: Node = inner.node
    return node


def _symbols_of(spec: TensorSpec) -> dict[Symbol, None]:
    numbers: tuple[Any, ...] = (*spec.shape, *spec.stride)
    sizes = [size for size in numbers if isinstance(size, Size)]
    return dict.fromkeys(symbol for size in sizes for symbol in symbols_of(size.expr))


def _attribute(machine: Machine, obj: Any, source: Source, name: str) -> Value:
    """Return an attribute in the `__dict__` or a slot of a wrapper, not inspected yet."""
    kind = type(obj)
    raw = attribute_of_class(kind, name)
    if isinstance(raw, types.MemberDescriptorType):
        guard_not_shadowed(machine, kind, name, raw)
        return machine.lazy(getattr(obj, name), SlotAttr(source, name))
    if isinstance(raw, property):
        cls = machine.class_of(kind, TypeOf(source))
        found, value = cls.find(machine, name)
        made: Value = bind(machine, found, value, _OpenWrapper(obj, source), cls, name)
        return made
    table = entries_of_live(machine, obj.__dict__, InstanceDict(source))
    if name not in obj.__dict__ or (found := table.store.get(name)) is None:
        what = f"the inner tensor {name!r} of a {kind.__name__} is computed by a property"
        raise GraphBreak(UnsupportedTensor.of(what=what))
    guard_not_shadowed(machine, kind, name, raw)
    return found


class _OpenWrapper(WithoutOperators):
    """A wrapper that is being taken apart: the argument of its properties."""

    __slots__ = ("obj",)

    def __init__(self, obj: object, source: Source) -> None:
        super().__init__(source)
        self.obj = obj

    def python_type(self, machine: Machine) -> type:
        return type(self.obj)

    def get_attr(self, machine: Machine, name: str) -> Value:
        assert self.source is not None
        return _attribute(machine, self.obj, self.source, name)


def make_wrapper(machine: Machine, kind: type, args: Args, kwargs: Kwargs) -> Value:
    """Record the construction of a wrapper; `__new__` and `__init__` run as `__torch_dispatch__`
    does.
    """
    for name in ("__new__", "__init__", *_METHODS):
        guarded_attribute(machine, kind, name)
    made = record(machine, kind, args, kwargs)
    wrapper = made.meta if isinstance(made, TensorValue) else None
    why = None if wrapper is None else why_not_taken_apart(wrapper)
    if wrapper is None or wrapper.requires_grad or why is not None:
        why = why or "it makes a leaf that requires grad"
        raise GraphBreak(RefusedTorchCall.of(name=kind.__name__, why=why))
    return made


class LibraryMethod(BuiltinValue):
    """A method of a wrapper subclass of torch's own, such as DTensor.to_local, bound to a tensor.

    It is one node: like `__torch_dispatch__`, it runs when the graph is traced.
    """

    __slots__ = ("owner",)
    obj: Any

    def __init__(self, owner: TensorValue, function: object) -> None:
        super().__init__(function)
        self.owner = owner

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        return record(machine, self.obj, [self.owner, *args], kwargs)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(MethodType, (builder.constant(self.obj), builder(self.owner)))


def library_method(machine: Machine, tensor: TensorValue, name: str) -> Value | None:
    """Return a method that torch defines on the tensor's wrapper class; None if there is none."""
    raw = attribute_of_class(tensor.kind, name)
    if is_marked_async(tensor.meta) and is_library_method(tensor.kind, raw):
        if name not in ("wait", "trigger_wait"):
            raise GraphBreak(UnsupportedAttribute.of(name=name, type=tensor.kind.__name__))
        raw = wait()  # the graph has no wrapper, whose inner tensor the method reads
        return LibraryMethod(tensor, raw)
    return LibraryMethod(tensor, raw) if is_library_method(tensor.kind, raw) else None


def wrapper_attribute(machine: Machine, tensor: TensorValue, name: str) -> Value | None:
    """Return an attribute of a wrapper that the graph computes; None if it has none."""
    wrapper = tensor.meta
    if not is_wrapper(wrapper) or tensor.live is not None:
        return None
    slot = isinstance(attribute_of_class(tensor.kind, name), types.MemberDescriptorType)
    if not hasattr(wrapper, name) if slot else name not in vars(wrapper):
        return None
    found = getattr(wrapper, name)
    if isinstance(found, torch.Tensor):
        return record(machine, getattr, [tensor, machine.constant(name)])
    if type(found) in _CONSTANTS:
        return machine.constant(found)
    raise GraphBreak(UnsupportedAttribute.of(name=name, type=tensor.kind.__name__))


def _gradient_input(
    machine: Machine, inner: torch.Tensor, source: Source, part: WrapperPart, is_leaf: bool
) -> Node:
    """Add an inner tensor whose gradient is part of the wrapper's."""
    spec = guarded_spec(machine, inner, source)
    notes = machine.notes.root
    # The call passes it as a result of an autograd function. Writes to a leaf are checked as those
    # to other leaves, hence `is_leaf` of the wrapper.
    with_history = replace(spec, requires_grad=True, is_leaf=is_leaf)
    node = notes.add_input(describe(source), source, with_history)
    notes.inputs[node] = replace(notes.inputs[node], wrapper=part)
    made = notes.owners[node] = TensorValue(node, torch.Tensor, inner, source)
    own_symbols(machine, made)
    return node
