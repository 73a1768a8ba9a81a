"""Rows for guards on tensors: their metadata, sizes, memory and hooks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import reduce
from types import MemberDescriptorType
from typing import Any

import torch
from torch.autograd import forward_ad

from ...bytecode import FrameSnapshot
from ...compat.autograd import forward_level
from ...compat.tensors import dispatch_keys, is_transformed
from ...extension import runtime_module
from ...symbols.expr import Expr, Integer
from ...symbols.polynomial import operation
from ...symbols.size import OffsetOf, SizeOf, StrideOf
from ...symbols.symbolic_numbers import Symbol
from ..guard import (
    FieldsEqual,
    FlattensTo,
    NoOverlap,
    SizesRelate,
    TensorKind,
    TensorMatch,
    Unhooked,
)
from ..read import UNREADABLE, read_source
from ..sizes import relation, sizes_differ
from ..source import Source, describe
from ..words import class_name, short
from .row import Kind, OfSource, Registers, Step, row

__all__ = ["has_forward_gradient", "hiding_entries"]


@row(TensorMatch, rank=2)
class _TensorMatch(OfSource[TensorMatch]):
    def step(self, guard: TensorMatch, register: int) -> Step:
        spec = guard.spec
        shape = _fixed(spec.shape, guard.free_sizes)
        stride = _fixed(spec.stride, guard.free_strides)
        facts = (spec.cls, spec.dtype, spec.device, shape, stride)
        flags = (spec.requires_grad, spec.is_leaf, guard.keys)
        return ("TENSOR", register, *facts, *flags, guard.hiding)

    def value_differs(self, guard: TensorMatch, name: str, value: object) -> str | None:
        if type(value) is not guard.spec.cls:
            return f"type({name}) is {class_name(type(value))}, was {class_name(guard.spec.cls)}"
        return _facts_differ(guard, name, value)

    def show(self, guard: TensorMatch) -> str:
        strides = "" if _is_dense(guard) else f" stride {tuple(guard.spec.stride)}"
        return f"{describe(guard.source)}: {guard.spec}{strides}"

    def keep(self, guard: TensorMatch, name: str, value: Any) -> str:
        return _keep_tensor(guard, name, value) if issubclass(type(value), torch.Tensor) else ""


@row(TensorKind, rank=2)
class _TensorKind(OfSource[TensorKind]):
    def step(self, guard: TensorKind, register: int) -> Step:
        return ("TENSOR_KIND", register, guard.cls, guard.keys, guard.dual)

    def value_differs(self, guard: TensorKind, name: str, value: Any) -> str | None:
        if type(value) is not guard.cls:
            return f"type({name}) is {class_name(type(value))}, was {short(guard.cls)}"
        if dispatch_keys(value).raw_repr() != guard.keys:
            how = "wrapped, sparse, quantized, on another device"
            return f"{name} is dispatched differently ({how})"
        if guard.dual and not has_forward_gradient(value):
            return f"{name} carries no gradient of forward-mode differentiation"
        return None

    def show(self, guard: TensorKind) -> str:
        tangent = ", and with a tangent" if guard.dual else ""
        return (
            f"{describe(guard.source)} is a {short(guard.cls)} with the same dispatch keys{tangent}"
        )


@row(FlattensTo, rank=4)
class _FlattensTo(OfSource[FlattensTo]):
    def step(self, guard: FlattensTo, register: int) -> Step:
        return ("FLATTENS_TO", register, guard.names, (guard.context, *guard.others))

    def value_differs(self, guard: FlattensTo, name: str, value: Any) -> str | None:
        if not any("__tensor_flatten__" in vars(base) for base in type(value).__mro__):
            return f"{name} is not a wrapper of tensors"
        try:
            names, context = value.__tensor_flatten__()
            same = tuple(names) == guard.names, bool(context == guard.context)
            changed = [name for name, was in guard.others if getattr(value, name) != was]
        except Exception as error:  # user code may raise anything; the native check fails as well
            return f"{name}.__tensor_flatten__() raises {type(error).__name__}"
        if not same[0]:
            return f"the inner tensors of {name} are {tuple(names)}, were {guard.names}"
        if changed:
            return f"{name}.{changed[0]} is another one"
        if same[1] or context is guard.context:
            return None
        return f"the metadata of {name} are {short(context)}, were {short(guard.context)}"

    def show(self, guard: FlattensTo) -> str:
        inner = ", ".join(guard.names)
        return f"{describe(guard.source)} wraps ({inner}) with metadata {short(guard.context)}"


@row(FieldsEqual, rank=4)
class _FieldsEqual(OfSource[FieldsEqual]):
    def step(self, guard: FieldsEqual, register: int) -> Step:
        return ("FIELDS_EQUAL", register, (guard.name, guard.value), guard.facts)

    def value_differs(self, guard: FieldsEqual, name: str, value: Any) -> str | None:
        try:
            found = _in_slot(value, guard.name)
        except AttributeError:
            return f"{name} has nothing in a slot {guard.name!r}"
        if found is guard.value:
            return None
        if type(found) is not type(guard.value):
            return f"{name}.{guard.name} is {short(found)}, was {short(guard.value)}"
        for path, was in guard.facts:
            now = reduce(lambda owner, part: getattr(owner, part, UNREADABLE), path, found)
            if now is not was and now != was:
                text = ".".join((name, guard.name, *path))
                return f"{text} is {short(now)}, was {short(was)}"
        return None

    def show(self, guard: FieldsEqual) -> str:
        facts = ", ".join(f"{'.'.join(path)} {short(was)}" for path, was in guard.facts)
        return f"{describe(guard.source)}.{guard.name} has {facts}"


@row(Unhooked, rank=2)
class _Unhooked(OfSource[Unhooked]):
    def step(self, guard: Unhooked, register: int) -> Step:
        return ("UNHOOKED", register)

    def value_differs(self, guard: Unhooked, name: str, value: object) -> str | None:
        tensor = issubclass(type(value), torch.Tensor)
        if tensor and not runtime_module().has_gradient_hooks(value):
            return None
        return f"{name} has hooks for its gradient now"

    def show(self, guard: Unhooked) -> str:
        return f"{describe(guard.source)} has no hooks for its gradient"


def _in_slot(value: object, name: str) -> object:
    """Read a slot without user code. Raises AttributeError if it is empty or none."""
    slots = [vars(base)[name] for base in type(value).__mro__ if name in vars(base)]
    if not slots or type(slots[0]) is not MemberDescriptorType:
        raise AttributeError(name)
    return slots[0].__get__(value, type(value))


@row(SizesRelate, rank=3)
class _SizesRelate(Kind[SizesRelate]):
    def sources(self, guard: SizesRelate) -> tuple[Source, ...]:
        return guard.sources

    def lower(self, guard: SizesRelate, registers: Registers) -> tuple[Step, ...]:
        places = {source: registers.register(source) for source in guard.sources}
        sides = (*_postfix(guard.left, places), *_postfix(guard.right, places))
        return (("SIZES", tuple(places.values()), ((*sides, (guard.op, 0, 0)),)),)

    def differs(self, guard: SizesRelate, frame: FrameSnapshot) -> str | None:
        return sizes_differ(guard, frame)

    def show(self, guard: SizesRelate) -> str:
        return relation(guard)


@row(NoOverlap, rank=7)
class _NoOverlap(Kind[NoOverlap]):
    def sources(self, guard: NoOverlap) -> tuple[Source, ...]:
        return guard.sources

    def lower(self, guard: NoOverlap, registers: Registers) -> tuple[Step, ...]:
        return (("NO_OVERLAP", registers.registers(guard.sources)),)

    def differs(self, guard: NoOverlap, frame: FrameSnapshot) -> str | None:
        return _overlap(guard.sources, frame)

    def show(self, guard: NoOverlap) -> str:
        return f"{', '.join(map(describe, guard.sources))} share no memory"

    def advise(self, guard: NoOverlap, frame: FrameSnapshot) -> str:
        return f"pass copies ({describe(guard.sources[0])}.clone()) where tensors share memory"


# ------------------------------------------------------------------------------------- native steps


def _fixed(numbers: tuple[int, ...], free: tuple[int, ...]) -> tuple[int, ...]:
    """Replace numbers that are not compared by -1."""
    return tuple(-1 if place in free else n for place, n in enumerate(numbers)) if free else numbers


def _postfix(expr: Expr, places: Mapping[Source, int]) -> tuple[tuple[str, int, int], ...]:
    """Return a program for a stack of 64-bit ints: (operation, operand, operand)."""
    match expr:
        case Integer(value):
            return (("constant", value, 0),)
        case Symbol(origin=SizeOf(source=source, dim=dim)):
            return (("size", places[source], dim),)  # type: ignore[index]
        case Symbol(origin=StrideOf(source=source, dim=dim)):
            return (("stride", places[source], dim),)  # type: ignore[index]
        case Symbol(origin=OffsetOf(source=source)):
            return (("offset", places[source], 0),)  # type: ignore[index]
        case Symbol(origin=source):
            return (("number", places[source], 0),)  # type: ignore[index]
    op, a, b = operation(expr)
    return (*_postfix(a, places), *_postfix(b, places), (op, 0, 0))


# ------------------------------------------------------------------------------------- what differs


def _facts_differ(guard: TensorMatch, name: str, value: Any) -> str | None:
    spec = guard.spec
    if value.layout is not torch.strided:
        return f"{name}.layout is {value.layout}, was torch.strided"
    if value.is_nested:
        return f"{name} is a nested tensor"
    facts: tuple[tuple[str, object, object], ...] = (
        ("dtype", value.dtype, spec.dtype),
        ("device", value.device, spec.device),
        ("shape", *_compared(value.shape, spec.shape, guard.free_sizes)),
        ("stride()", *_compared(value.stride(), spec.stride, guard.free_strides)),
        ("requires_grad", value.requires_grad, spec.requires_grad),
    )
    for what, now, before in facts:
        if now != before:
            return f"{name}.{what} is {now}, was {before}"
    if spec.requires_grad and value.is_leaf != spec.is_leaf:
        return f"{name}.is_leaf is {value.is_leaf}, was {spec.is_leaf}"
    if dispatch_keys(value).raw_repr() != guard.keys:
        return f"{name} is dispatched differently (a view, conjugate, wrapped or inference tensor)"
    if not is_transformed(value) and has_forward_gradient(value):
        return f"{name} carries a gradient of forward-mode differentiation"
    if (now := hiding_entries(value)) != guard.hiding:
        return f"{name}.__dict__ hides {_names(now)} of its class, hid {_names(guard.hiding)}"
    return None


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"


def hiding_entries(tensor: torch.Tensor) -> tuple[str, ...]:
    """Return the names in a tensor's `__dict__` that Python finds before those of its class."""
    names = (name for name in vars(tensor) if isinstance(name, str))
    return tuple(name for name in names if _is_hidden(type(tensor), name))


def _is_hidden(cls: type, name: str) -> bool:
    # As in _PyType_Lookup(), which the native guard calls; inspect.getattr_static() also finds
    # attributes of the metaclass, such as `mro`.
    found = [vars(base)[name] for base in cls.__mro__ if name in vars(base)]
    return bool(found) and not inspect.isdatadescriptor(found[0])


def _compared(
    now: Sequence[int], wanted: Sequence[int], free: tuple[int, ...]
) -> tuple[object, object]:
    """Return both tuples to compare: in `wanted`, free numbers are replaced by current ones."""
    if len(now) != len(wanted):
        return tuple(now), tuple(wanted)
    return tuple(now), tuple(now[i] if i in free else n for i, n in enumerate(wanted))


def has_forward_gradient(tensor: torch.Tensor) -> bool:
    """Return whether it is a dual tensor of forward-mode AD; no graph propagates its tangent."""
    # torch makes a view of the tensor to unpack it, which fails without strided memory.
    if forward_level() < 0 or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    return forward_ad.unpack_dual(tensor, level=0).tangent is not None


def _overlap(sources: tuple[Source, ...], frame: FrameSnapshot) -> str | None:
    try:
        ranges = [_memory(read_source(source, frame)) for source in sources]
    except UNREADABLE:
        return f"{', '.join(map(describe, sources))} do not all exist any more"
    for i, left in enumerate(ranges):
        for j in range(i + 1, len(ranges)):
            right = ranges[j]
            if left is None or right is None or (left[0] < right[1] and right[0] < left[1]):
                return f"{describe(sources[i])} and {describe(sources[j])} may share memory"
    return None


def _memory(tensor: Any) -> tuple[int, int] | None:
    """Return the first byte and the one after the last; None if they are unknown."""
    if not issubclass(type(tensor), torch.Tensor) or tensor.layout is not torch.strided:
        return None
    if tensor.numel() == 0:
        return 0, 0
    storage = tensor.untyped_storage().data_ptr()
    if storage == 0:
        return None
    size = tensor.element_size()
    begin = storage + int(tensor.storage_offset()) * size
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((int(n) - 1) * int(stride) for n, stride in extents)
    return begin, begin + (last + 1) * size


# -------------------------------------------------------------------------------------------- words


def _is_dense(guard: TensorMatch) -> bool:
    expected = 1
    for size, stride in zip(reversed(guard.spec.shape), reversed(guard.spec.stride), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _keep_sizes(guard: TensorMatch, name: str, value: torch.Tensor) -> str:
    """Suggest mark_dynamic unless a size is 0 or 1, which are specialised in any case."""
    pad = "torch.nn.functional.pad, or DataLoader(drop_last=True) for a last short batch"
    varying = _varying(guard, value)
    sizes = {size for dim in varying for size in (value.shape[dim], guard.spec.shape[dim])}
    if value.ndim != len(guard.spec.shape) or sizes & {0, 1}:
        return f"give {name} one size: {pad}"
    marks = "; ".join(f"jitmagic.mark_dynamic({name}, {dim})" for dim in varying)
    return f"{marks} before the first call; or give {name} one size: {pad}"


def _varying(guard: TensorMatch, value: torch.Tensor) -> list[int]:
    """Return the dimensions whose sizes differ from the guard's."""
    pairs = enumerate(zip(value.shape, guard.spec.shape, strict=False))
    return [dim for dim, (size, was) in pairs if size != was and dim not in guard.free_sizes]


def _keep_tensor(guard: TensorMatch, name: str, value: torch.Tensor) -> str:
    spec = guard.spec
    if type(value) is not spec.cls:
        return f"pass a {spec.cls.__name__} as {name} in all calls"
    if value.layout is not torch.strided or value.is_nested:
        return f"pass a dense tensor as {name} in all calls"
    if value.dtype != spec.dtype:
        return f"convert it before the call: {name} = {name}.to({spec.dtype})"
    if value.device != spec.device:
        return f"move it before the call: {name} = {name}.to({str(spec.device)!r})"
    if value.ndim != len(spec.shape) or _varying(guard, value):
        return _keep_sizes(guard, name, value)
    if tuple(value.stride()) != spec.stride:
        return f"give it the same strides before the call: {name} = {name}.contiguous()"
    if value.requires_grad != spec.requires_grad:
        wanted = "requires_grad_()" if spec.requires_grad else "detach()"
        return f"call it with {name}.{wanted}"
    return ""
