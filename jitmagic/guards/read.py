"""read_source: follow a Source in a live frame, in Python.

Comes in: a source and the frame's snapshot. Goes out: the object, or KeyError, IndexError,
AttributeError
or ValueError where the path no longer leads anywhere. Follows the same rule as the native guard
program: no user code runs.
"""

from __future__ import annotations

import gc
import operator
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any

import torch

from ..bytecode import FrameSnapshot
from .contents import item_at, read_contents
from .function_cache import cached_result
from .iterator_parts import iterator_parts
from .source import (
    Argument,
    ArrayMemory,
    AttributeAt,
    Builtin,
    CacheEntry,
    CellContents,
    Contents,
    DictEntry,
    DictKeyAt,
    DictValueAt,
    FunctionPart,
    Global,
    Gradient,
    ImportedModule,
    InstanceDict,
    IntOf,
    Item,
    ItemAt,
    IteratorParts,
    Joined,
    Length,
    ModuleAttr,
    Part,
    Reduced,
    Referent,
    SlotAttr,
    Source,
    TypeAttr,
    TypeOf,
)

__all__ = [
    "UNREADABLE",
    "array_memory",
    "attribute_at",
    "entries_of",
    "entry_of",
    "instance_dict",
    "int_of",
    "integer_classes",
    "is_array_scalar",
    "read_source",
    "referent_of",
]

UNREADABLE = (KeyError, IndexError, AttributeError, ValueError, TypeError)
"""What reading a source raises where the frame has nothing there."""

_NOTHING = object()
_SHOWN = (dict, OrderedDict)

_MRO, _NAMES = (type.__dict__[name].__get__ for name in ("__mro__", "__dict__"))
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_HAVE_PART: dict[str, Any] = {
    "__self__": types.MethodType | types.BuiltinFunctionType,
    "__func__": types.MethodType,
}


def read_source(source: Source, frame: FrameSnapshot) -> Any:
    """The object a source leads to."""
    match source:
        case Argument(index=index):
            arguments = (*frame.args, *frame.cells)
            return arguments[index]
        case Global(name=name):
            return frame.globals[name]
        case Builtin(name=name):
            return frame.builtins[name]
        case ImportedModule(name=name):
            return sys.modules[name]
        case ItemAt(base=base, index=index):
            return item_at(read_source(base, frame), read_source(index, frame))
        case AttributeAt(base=base, index=index, tables=tables):
            return attribute_at(read_source(base, frame), read_source(index, frame), tables)
    return _step(source, read_source(source.base, frame))  # type: ignore[attr-defined]


def _step(source: Source, base: Any) -> Any:
    match source:
        case CellContents():
            return _of_kind(types.CellType, base).cell_contents
        case InstanceDict():
            return instance_dict(base)
        case ModuleAttr(name=name):
            return instance_dict(_of_kind(types.ModuleType, base))[name]
        case Item(key=key) | DictEntry(key=key):
            return _item_of(base, key)
        case DictKeyAt(index=index) | DictValueAt(index=index):
            return entries_of(base)[index][isinstance(source, DictValueAt)]
        case TypeOf():
            return type(base)
        case TypeAttr(name=name):
            return _in_classes(_of_kind(type, base), name)
        case SlotAttr(name=name):
            return _slot_of(base, name)
        case Gradient():
            return _slot_of(_of_kind(torch.Tensor, base), "grad")
        case FunctionPart(part=part):
            # A bound method passes on what its function has.
            return getattr(_of_kind(_HAVE_PART.get(part, types.FunctionType), base), part)
        case Contents():
            if type(base) not in (set, frozenset, deque):
                raise TypeError("neither a set nor a deque")
            return tuple(base)
        case Length() | Part() | Reduced() | Joined():
            return read_contents(source, base)
        case IteratorParts():
            if (parts := iterator_parts(base)) is None:
                raise ValueError("an iterator that does not tell what it still has")
            return parts
        case Referent():
            return referent_of(base)
        case CacheEntry(key=key):
            return cached_result(base, key)
        case ArrayMemory():
            return array_memory(base)
        case IntOf():
            return int_of(base)
    raise TypeError(f"not a source: {source!r}")


def _of_kind(kind: Any, base: Any) -> Any:
    """The object itself; isinstance() would ask an object of the user's for its `__class__`."""
    if not issubclass(type(base), kind):
        raise TypeError(f"no {kind}")
    return base


def _in_classes(cls: type, name: str) -> Any:
    """What a class or its bases have under a name, past anything that a metaclass defines."""
    for each in _MRO(cls):
        if name in (names := _NAMES(each)):
            return names[name]
    raise AttributeError(name)


def _slot_of(base: Any, name: str) -> Any:
    """A member or getset of a C type: what is found there otherwise may be a user's property."""
    descriptor = _in_classes(type(base), name)
    if type(descriptor) not in _SLOTS:
        raise AttributeError(name)
    return descriptor.__get__(base, type(base))


def instance_dict(base: Any) -> dict[str, Any]:
    """An object's own attributes; AttributeError where it keeps none."""
    table: dict[str, Any] = _slot_of(base, "__dict__")
    return table


def attribute_at(owner: Any, name: Any, tables: Sequence[str]) -> Any:
    """Return what an object has under a name that its class lacks: in its `__dict__`, or in one of
    the named tables there.
    """
    kind = type(owner)
    if type(name) is not str or any(name in _NAMES(base) for base in _MRO(kind)):
        raise AttributeError(name)
    own = instance_dict(owner)
    if type(own) is not dict:
        raise TypeError("no plain attributes")
    if name in own:
        return own[name]
    for part in tables:
        if type(table := own.get(part)) is not dict:
            break
        if name in table:
            return table[name]
    raise AttributeError(name)


def _item_of(base: Any, key: Any) -> Any:
    """base[key] of a dict, list or tuple, as stored."""
    if issubclass(type(base), dict):
        return entry_of(base, key)
    kind = tuple if issubclass(type(base), tuple) else list
    if type(key) is not int:
        raise TypeError("no index")
    return kind.__getitem__(_of_kind(kind, base), key)


def referent_of(reference: Any) -> Any:
    """What a plain weak reference leads to, or the dictionary that a mappingproxy shows."""
    if type(reference) is types.MappingProxyType:
        shown = (one for one in gc.get_referents(reference) if type(one) in _SHOWN)
        if (found := next(shown, None)) is not None:
            return found
    elif type(reference) is weakref.ref:
        return reference()
    raise TypeError("neither a plain weak reference nor a proxy of a plain dictionary")


def is_array_scalar(kind: type) -> bool:
    """Whether its objects are numbers of numpy, which are told by their bytes."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(kind, numpy.number | numpy.bool_)


def integer_classes() -> tuple[type, ...]:
    """Of numpy, where it was imported."""
    numpy = sys.modules.get("numpy")
    return () if numpy is None else tuple(numpy.dtype(code).type for code in "bhilBHIL")


def int_of(number: Any) -> int:
    """The int that an integer of numpy is, past any `__index__` of a class of the user's."""
    if type(number) not in integer_classes():
        raise TypeError("no integer of numpy")
    return operator.index(number)


def array_memory(array: Any) -> torch.Tensor:
    """A tensor of an array's memory: raises where torch has none, and for what is not written to
    (torch would warn, and let it be written to).
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or type(array) is not numpy.ndarray:
        raise TypeError("no plain array")
    if not array.flags.writeable:
        raise ValueError("it is only to be read")
    return torch.from_numpy(array)


def entry_of(table: dict[Any, Any], key: object) -> object:
    """What is under a key, past any `__getitem__` and `__missing__` of the class."""
    if (found := dict.get(table, key, _NOTHING)) is _NOTHING:
        raise KeyError(key)
    return found


def entries_of(base: object) -> list[tuple[Any, Any]]:
    """The items of a dictionary in order, past any methods that its class has."""
    kind = OrderedDict if issubclass(type(base), OrderedDict) else dict
    return list(kind.items(_of_kind(kind, base)))
