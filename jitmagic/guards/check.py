"""The reference implementation of the native guard program, and the sentence when a guard fails.

Comes in: guards and a frame's snapshot. Goes out: the first guard that does not hold (`check`),
or what differs, in words (`why`). Invariant: agrees with the native program made by
`frame/native.py` for every guard and frame (tests/guards holds them against each other); runs no
user code.
"""

from __future__ import annotations

import struct
import types
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch.autograd import forward_ad

from ..bytecode import FrameSnapshot
from ..extension import runtime_module
from .guard import (
    ANY_KEY,
    READ_BY_GUARDS,
    CellEmpty,
    ClassFact,
    ClassFacts,
    DictKeysAre,
    DifferentObjects,
    EntriesEmpty,
    GlobalMissing,
    GlobalState,
    Guard,
    IdentityIs,
    InRange,
    KeyAbsent,
    LengthIs,
    NameFact,
    NamespaceFacts,
    NoOverlap,
    SameObject,
    SetHas,
    SizesRelate,
    StateFacts,
    StateRead,
    TensorKind,
    TensorMatch,
    TypeIs,
    Unhooked,
    ValueEquals,
)
from .read import UNREADABLE, entries_of, is_array_scalar, read_source
from .sizes import sizes_differ
from .source import Builtin, InstanceDict, Source, describe
from .state import read_autocast_rest, read_state

__all__ = [
    "UNREADABLE",
    "check",
    "has_forward_gradient",
    "holds",
    "is_other_number",
    "range_end",
    "same_constant",
    "short",
    "why",
]

_PLAIN = (str, int, bool, float, complex, bytes, range, slice, type(None), type(...))
_NAMED = (
    types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.WrapperDescriptorType,
    types.MethodDescriptorType,
)  # fmt: skip
_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_WIDTH = 60  # of a value in a sentence
_ELEMENTWISE = (str, int, bytes, range, torch.device)

_of_class = type.__getattribute__  # no metaclass of the user's answers


def check(guards: Iterable[Guard], frame: FrameSnapshot) -> Guard | None:
    """The first guard that does not hold for the frame, or None."""
    return next((guard for guard in guards if not holds(guard, frame)), None)


def holds(guard: Guard, frame: FrameSnapshot) -> bool:
    """Whether one guard holds for the frame."""
    return _difference(guard, frame) is None


def why(guard: Guard, frame: FrameSnapshot) -> str:
    """What differs, in a sentence: `x.shape is (3, 4), was (2, 4)`."""
    return _difference(guard, frame) or "nothing differs"


def is_other_number(guard: ValueEquals | InRange, frame: FrameSnapshot) -> bool:
    """Whether what the guard wants to be a float or an int is another one of its kind."""
    try:
        value = read_source(guard.source, frame)
    except UNREADABLE:
        return False
    if type(value) not in (float, int) or holds(guard, frame):
        return False
    return isinstance(guard, InRange) or type(value) is type(guard.value)


def _difference(guard: Guard, frame: FrameSnapshot) -> str | None:
    match guard:
        case GlobalState(facts=facts):
            return _state_differs(facts)
        case GlobalMissing(source=source):
            table, kind = frame.globals, "global"
            if isinstance(source, Builtin):
                table, kind = frame.builtins, "builtin"
            name = describe(source)
            return f"there is a {kind} {name} now" if name in table else None
        case NoOverlap(sources=sources):
            return _overlap(sources, frame)
        case ClassFacts():
            return _class_differs(guard)
        case NamespaceFacts(table=table, facts=names):
            return next(filter(None, (_name_differs(table, fact) for fact in names)), None)
        case StateRead(reader=reader, value=wanted):
            now = reader()
            same = same_constant(now, wanted)
            return _is_was(
                f"{getattr(reader, 'func', reader).__name__}()", short(now), short(wanted), same
            )
        case SizesRelate():
            return sizes_differ(guard, frame)
        case SameObject(source=left, other=right):
            return _two_objects(left, right, frame)
        case DifferentObjects(sources=sources, others=others):
            return _one_object(sources, others, frame)
        case KeyAbsent(source=InstanceDict(base=owner), key=str(key)):
            return _attribute_appeared(owner, key, frame)
    return _at_source(guard, guard.source, frame)  # type: ignore[attr-defined]


def _at_source(guard: Guard, source: Source, frame: FrameSnapshot) -> str | None:
    try:
        value = read_source(source, frame)
    except UNREADABLE:
        return f"{describe(source)} is not there any more"
    return _value_differs(guard, describe(source), value)


def _attribute_appeared(owner: Source, key: str, frame: FrameSnapshot) -> str | None:
    """An instance that has no dictionary at all has no such key in it either."""
    try:
        instance = read_source(owner, frame)
    except UNREADABLE:
        return f"{describe(owner)} is not there any more"
    try:
        table = object.__getattribute__(instance, "__dict__")
    except AttributeError:
        return None
    return f"{describe(owner)} has an attribute {key} of its own now" if key in table else None


def _value_differs(guard: Guard, name: str, value: Any) -> str | None:
    match guard:
        case TensorMatch():
            return _tensor_differs(guard, name, value)
        case TensorKind():
            return _kind_differs(guard, name, value)
        case TypeIs(type=cls):
            return _is_was(f"type({name})", _named(type(value)), short(cls), type(value) is cls)
        case ValueEquals(value=wanted):
            return _is_was(name, short(value), short(wanted), same_constant(value, wanted))
        case IdentityIs(value=wanted):
            now, before = short(value), short(wanted)
            before = before if now != before else f"another {type(wanted).__name__}"
            return _is_was(name, now, before, value is wanted)
        case InRange(low=low, high=high):
            return _outside(name, value, low, high)
        case LengthIs(length=length):
            if not isinstance(value, tuple | list | dict | set | frozenset | deque):
                return f"{name} is a {type(value).__name__}, which has no plain length"
            return _is_was(f"len({name})", len(value), length, len(value) == length)
        case SetHas(item=item, there=there):
            if not isinstance(value, set | frozenset):
                return f"{name} is a {type(value).__name__}, was a set"
            now = "has" if item in value else "has not"
            return None if (item in value) == there else f"{name} {now} {short(item)} now"
        case Unhooked():
            if isinstance(value, torch.Tensor) and not runtime_module().has_gradient_hooks(value):
                return None
            return f"{name} has hooks for its gradient now"
        case CellEmpty():
            return _cell_differs(name, value)
    return _mapping_differs(guard, name, value)


def _mapping_differs(guard: Guard, name: str, value: Any) -> str | None:
    if not isinstance(value, dict):
        return f"{name} is a {type(value).__name__}, was a dict"
    match guard:
        case DictKeysAre(keys=keys):
            now = [key for key, _ in entries_of(value)]
            return _is_was(f"list({name})", short(now), short(list(keys)), _same_keys(now, keys))
        case KeyAbsent(key=key):
            return f"{name} has {short(key)} now" if key in value else None
        case EntriesEmpty(keys=keys, absent=absent):
            filled = [key for key in keys if key in value and not _is_empty_dict(value[key])]
            present = [key for key in absent if key in value]
            changed = [*filled, *present]
            return f"{name} has {', '.join(changed)} now" if changed else None
    raise TypeError(f"not a guard: {guard!r}")


def _same_keys(now: list[Any], keys: tuple[object, ...]) -> bool:
    pairs = zip(now, keys, strict=False)
    return len(now) == len(keys) and all(
        wanted is ANY_KEY or same_constant(key, wanted) for key, wanted in pairs
    )


def _name_differs(table: dict[Any, object], fact: NameFact) -> str | None:
    where = table.get("__name__")
    name = f"{where}.{fact.name}" if isinstance(where, str) else str(fact.name)
    if fact.name not in table:
        return None if fact.absent else f"{name} is not there any more"
    if fact.absent:
        return f"there is a {name} now"
    return None if same_constant(table[fact.name], fact.value) else f"{name} was replaced"


def _class_differs(guard: ClassFacts) -> str | None:
    cls = guard.cls
    if not isinstance(cls, type):
        return "a class is gone"
    now, before = _of_class(cls, "__mro__"), guard.mro
    if len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
        return f"{_named(cls)} inherits from {_bases(now)}, did from {_bases(before)}"
    differences = (_fact_differs(cls, fact) for fact in guard.facts)
    return next((found for found in differences if found is not None), None)


def _bases(mro: tuple[object, ...]) -> str:
    return ", ".join(map(short, mro[1:-1])) or "object alone"


def _fact_differs(cls: type, fact: ClassFact) -> str | None:
    bases = _of_class(cls, "__mro__")[fact.start :]
    owners = [base for base in bases if fact.name in _of_class(base, "__dict__")]
    name = f"{_named(owners[0] if owners else cls)}.{fact.name}"
    if not owners:
        return f"{name} is not there any more" if fact.kind in ("is", "slot") else None
    found = _of_class(owners[0], "__dict__")[fact.name]
    if fact.kind == "is":
        now, before = short(found), short(fact.value)
        before = before if now != before else f"another {type(fact.value).__name__}"
        return _is_was(name, now, before, found is fact.value)
    if fact.kind == "slot":
        slot = isinstance(found, types.MemberDescriptorType) and found.__name__ == fact.name
        return None if slot else f"{name} is {short(found)}, was a slot"
    if fact.kind == "yields" and _yields(type(found)):
        return None
    return f"there is a {name} now: {short(found)}"


def _yields(kind: type) -> bool:
    """Whether objects of the class give way to what an instance has under the same name."""
    sets = any(name in vars(base) for base in kind.__mro__ for name in ("__set__", "__delete__"))
    return bool(kind.__flags__ & _IMMUTABLE) and not sets


def _is_empty_dict(value: object) -> bool:
    return isinstance(value, dict) and not value


def _is_was(what: str, now: object, before: object, same: bool) -> str | None:
    return None if same else f"{what} is {now}, was {before}"


def _outside(name: str, value: Any, low: float, high: float) -> str | None:
    number = value
    if isinstance(value, torch.Tensor):
        plain = value.layout is torch.strided and value.device.type == "cpu"
        if not plain or value.numel() != 1 or value.dtype not in READ_BY_GUARDS:
            return f"{name} is no tensor on the CPU with one number in it"
        number = value.item() if value.dtype is not torch.bool else int(value)
    if type(number) not in (float, int):
        return f"{name} is a {type(number).__name__}, was a number"
    return (
        None
        if low <= number <= high
        else f"{name} is {number}, not in [{range_end(low)}, {range_end(high)}]"
    )


def range_end(number: float) -> str:
    """An end of a range in words: an int as it is."""
    return str(number) if isinstance(number, int) else f"{number:g}"


def _cell_differs(name: str, cell: Any) -> str | None:
    try:
        return f"{name} has a value now: {short(cell.cell_contents)}"
    except ValueError:
        return None
    except AttributeError:
        return f"{name} is a {type(cell).__name__}, was an empty cell"


def _two_objects(left: Source, right: Source, frame: FrameSnapshot) -> str | None:
    names = f"{describe(left)} and {describe(right)}"
    try:
        same = read_source(left, frame) is read_source(right, frame)
    except UNREADABLE:
        return f"{names} are not both there any more"
    return None if same else f"{names} are two objects, were one"


def _one_object(
    sources: tuple[Source, ...], others: tuple[Source, ...], frame: FrameSnapshot
) -> str | None:
    """Which two paths of different objects lead to one now."""
    known: dict[int, Source] = {}
    for place, source in enumerate((*sources, *others)):
        try:
            value = read_source(source, frame)
        except UNREADABLE:
            return f"{describe(source)} is not there any more"
        if id(value) in known:
            return f"{describe(known[id(value)])} and {describe(source)} are one object, were two"
        if place < len(sources):
            known[id(value)] = source
    return None


# ------------------------------------------------------------------------------------------ tensors


def _tensor_differs(guard: TensorMatch, name: str, value: Any) -> str | None:
    if type(value) is not guard.spec.cls:
        return f"type({name}) is {_named(type(value))}, was {_named(guard.spec.cls)}"
    return _facts_differ(guard, name, value)


def _kind_differs(guard: TensorKind, name: str, value: Any) -> str | None:
    if type(value) is not guard.cls:
        return f"type({name}) is {_named(type(value))}, was {short(guard.cls)}"
    if torch._C._dispatch_keys(value).raw_repr() != guard.keys:
        return f"{name} is dispatched differently (wrapped, sparse, quantized, on another device)"
    if guard.dual and not has_forward_gradient(value):
        return f"{name} carries no gradient of forward-mode differentiation"
    return None


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
    if torch._C._dispatch_keys(value).raw_repr() != guard.keys:
        return f"{name} is dispatched differently (a view, conjugate, wrapped or inference tensor)"
    if has_forward_gradient(value):
        return f"{name} carries a gradient of forward-mode differentiation"
    return None


def _compared(now: Sequence[int], wanted: Sequence[int], free: tuple[int, ...]) -> tuple[Any, Any]:
    """The two as they are compared: what is free is what it is now."""
    if len(now) != len(wanted):
        return tuple(now), tuple(wanted)
    return tuple(now), tuple(now[i] if i in free else n for i, n in enumerate(wanted))


def has_forward_gradient(tensor: torch.Tensor) -> bool:
    """Whether it is a dual tensor: what is computed from it has a tangent, which no graph knows."""
    if forward_ad._current_level < 0:
        return False
    return forward_ad.unpack_dual(tensor, level=0).tangent is not None


def _overlap(sources: tuple[Source, ...], frame: FrameSnapshot) -> str | None:
    try:
        ranges = [_memory(read_source(source, frame)) for source in sources]
    except UNREADABLE:
        return f"{', '.join(map(describe, sources))} are not all there any more"
    for i, left in enumerate(ranges):
        for j in range(i + 1, len(ranges)):
            right = ranges[j]
            if left is None or right is None or (left[0] < right[1] and right[0] < left[1]):
                return f"{describe(sources[i])} and {describe(sources[j])} may share memory"
    return None


def _memory(tensor: Any) -> tuple[int, int] | None:
    """First byte and the one behind the last; None when it cannot be told."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
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


def _state_differs(facts: StateFacts) -> str | None:
    now = read_state()
    if facts.autocast_rest is not None:
        now = replace(now, autocast_rest=read_autocast_rest())
    for fact in fields(facts):
        was, is_ = getattr(facts, fact.name), getattr(now, fact.name)
        if is_ != was:
            return f"torch's {fact.name.replace('_', ' ')} is {is_}, was {was}"
    if not torch._C._is_torch_function_enabled():
        return "torch functions are disabled for subclasses, were not"
    return None


# ---------------------------------------------------------------------------------------- constants


def same_constant(left: Any, right: Any) -> bool:
    """Equality as the native check has it: one exact type, floats by their bits, no user code."""
    if left is right:
        return True
    kind = type(left)
    if kind is not type(right):
        return False
    if kind in _ELEMENTWISE:
        return bool(left == right)
    if is_array_scalar(kind):
        return bool(left.tobytes() == right.tobytes())
    if kind is float:
        return struct.pack("d", left) == struct.pack("d", right)
    if kind is complex:
        return same_constant(left.real, right.real) and same_constant(left.imag, right.imag)
    if isinstance(left, tuple):
        return _same_items(tuple.__iter__(left), tuple.__iter__(right))
    if kind is slice:
        return _same_items(
            (left.start, left.stop, left.step), (right.start, right.stop, right.step)
        )
    if kind is frozenset:
        return len(left) == len(right) and all(
            any(same_constant(a, b) for b in right) for a in left
        )
    return False


def _same_items(left: Iterable[Any], right: Iterable[Any]) -> bool:
    ours, theirs = list(left), list(right)
    return len(ours) == len(theirs) and all(map(same_constant, ours, theirs))


# -------------------------------------------------------------------------------------------- words


def short(value: object) -> str:
    """A value in a sentence: constants as they are, objects by kind and name; no user code runs."""
    kind = type(value)
    if isinstance(value, type):
        text = _named(value)
    elif kind in _PLAIN or value is ANY_KEY:
        text = repr(value)
    elif kind in (list, tuple, dict):
        text = _short_container(value)
    elif isinstance(value, torch.dtype | torch.device | torch.Size):
        text = str(value)
    elif isinstance(value, _NAMED):
        text = f"{kind.__name__} {getattr(value, '__qualname__', None) or value.__name__}"
    else:
        text = f"a {kind.__qualname__}"
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."


def _short_container(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{short(k)}: {short(v)}" for k, v in list(value.items())[:8]) + "}"
    inner = ", ".join(short(item) for item in value[:8])
    return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"


def _named(cls: type) -> str:
    module, name = _of_class(cls, "__module__"), _of_class(cls, "__qualname__")
    return name if module in ("builtins", "__main__") else f"{module}.{name}"
