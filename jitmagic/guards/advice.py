"""advice: the edit of the user's code that would stop a recompile.

Comes in: the guard that kept a variant from fitting a call, and the frame of that call. Goes out:
one clause that says what to write instead. It names what the user wrote; where nothing of theirs
can be changed it is empty, for a wrong hint is worse than none.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from ..bytecode import FrameSnapshot
from .check import UNREADABLE, short
from .guard import (
    CellEmpty,
    DictKeysAre,
    GlobalMissing,
    GlobalState,
    Guard,
    IdentityIs,
    InRange,
    KeyAbsent,
    LengthIs,
    NoOverlap,
    SameObject,
    TensorMatch,
    TypeIs,
    ValueEquals,
)
from .read import read_source
from .source import (
    Argument,
    CellContents,
    FunctionPart,
    Global,
    InstanceDict,
    Item,
    Source,
    describe,
)
from .state import read_state

__all__ = ["advice", "one_value"]


def advice(guard: Guard, frame: FrameSnapshot) -> str:
    """What to write so that calls like this one fit the variant; "" where nothing is known."""
    match guard:
        case GlobalState():
            return _keep_state(guard)
        case NoOverlap(sources=sources):
            return f"pass copies ({describe(sources[0])}.clone()) where tensors share memory"
        case SameObject(source=left, other=right):
            return f"pass one and the same object as {describe(left)} and {describe(right)}"
        case GlobalMissing(source=source):
            return f"define {describe(source)} before the first call"
    of: Source | None = getattr(guard, "source", None)
    if of is None:
        return ""
    try:
        value = read_source(of, frame)
    except UNREADABLE:
        return f"keep {describe(of)} from call to call"
    return _keep_value(guard, of, value)


def one_value(source: Source) -> str:
    """For what has to be a constant of compiled code."""
    return f"have one {describe(source)} in all calls, or a tagged function for each"


def _keep_value(guard: Guard, source: Source, value: Any) -> str:
    name = describe(source)
    match guard:
        case TensorMatch() if isinstance(value, torch.Tensor):
            return _keep_tensor(guard, name, value)
        case ValueEquals(value=bool()) if name.endswith(".training"):
            owner = name.removesuffix(".training")
            return f"call {owner}.train() or {owner}.eval() outside of the loop, not between calls"
        case ValueEquals(value=bool()):
            return one_value(source)
        case ValueEquals(value=int() | float()) | InRange() if isinstance(value, int | float):
            return f"pass it as a tensor: {name} = torch.tensor({short(value)})"
        case ValueEquals():
            return one_value(source)
        case LengthIs():
            return f"give {name} the same length in all calls, or make it one tensor (torch.stack)"
        case DictKeysAre():
            return f"give {name} the same keys in the same order in all calls"
        case KeyAbsent(key=key):
            return f"set {name}[{short(key)}] before the first call, or never"
        case IdentityIs() | TypeIs():
            return _keep_object(source, name, value)
        case CellEmpty():
            return f"give {name} its value before the first call"
    return ""


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
    if tuple(value.shape) != spec.shape:
        return (
            f"give {name} one size: torch.nn.functional.pad, "
            "or DataLoader(drop_last=True) for a last short batch"
        )
    if tuple(value.stride()) != spec.stride:
        return f"lay it out alike before the call: {name} = {name}.contiguous()"
    if value.requires_grad != spec.requires_grad:
        wanted = "requires_grad_()" if spec.requires_grad else "detach()"
        return f"call it with {name}.{wanted}"
    return ""


def _keep_object(source: Source, name: str, value: object) -> str:
    owner = _outermost(source)
    if isinstance(owner, Global):
        return f"do not bind the global {owner.name} anew between calls, or pass it as an argument"
    function = isinstance(source, FunctionPart) or isinstance(value, types.FunctionType)
    if function or isinstance(value, types.CodeType):
        made = _holder(source)
        return f"define {made} once, outside of the loop: each def or lambda makes a new function"
    if isinstance(source, Argument | CellContents | InstanceDict | Item):
        return f"make {name} once, outside of the loop, and pass the same object in all calls"
    return ""


def _holder(source: Source) -> str:
    while isinstance(source, FunctionPart):
        source = source.base
    return describe(source)


def _outermost(source: Source) -> Source:
    while (base := getattr(source, "base", None)) is not None:
        source = base
    return source


def _keep_state(guard: GlobalState) -> str:
    wanted, now = guard.facts, read_state()
    if now.grad_enabled != wanted.grad_enabled or now.inference_mode != wanted.inference_mode:
        return "call it always under torch.no_grad(), or never: both ways cost a variant each"
    if (now.autocast_cpu, now.autocast_cuda) != (wanted.autocast_cpu, wanted.autocast_cuda):
        return "call it always under the same torch.autocast, or put autocast inside of it"
    if now.default_dtype != wanted.default_dtype:
        return "call torch.set_default_dtype once, before the first call"
    return ""
