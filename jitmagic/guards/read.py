"""Follows a Source in a live frame, in Python.

Input: a source and the frame's snapshot. Output: the object; raises one of UNREADABLE if there is
no object at the path. Like the native guard program, it runs no user code.
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
    Globals,
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
"""Exceptions raised when a source leads to nothing in the frame."""

_NOTHING = object()
_SHOWN = (dict, OrderedDict)

_MRO, _NAMES = (type.__dict__[name].__get__ for name in ("__mro__", "__dict__"))
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_HAVE_PART: dict[str, Any] = {
    "__self__": types.MethodType | types.BuiltinFunctionType,
    "__func__": types.MethodType,
}


def read_source(source: Source, frame: FrameSnapshot) -> Any:
    """Return the object that a source leads to."""
    match source:
        case Argument(index=index):
            arguments = (*frame.args, *frame.cells)
            return arguments[index]
        case Global(name=name):
            return frame.globals[name]
        case Globals():
            return frame.globals
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
            # A bound method would forward other attributes to its function.
            return getattr(_of_kind(_HAVE_PART.get(part, types.FunctionType), base), part)
        case Contents():
            if type(base) not in (set, frozenset, deque):
                raise TypeError("neither a set nor a deque")
            return tuple(base)
        case Length() | Part() | Reduced() | Joined():
            return read_contents(source, base)
        case IteratorParts():
            if (parts := iterator_parts(base)) is None:
                raise ValueError("an iterator whose state cannot be read")
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
    """Return `base` if its type is `kind`; isinstance() would read a user-defined `__class__`."""
    if not issubclass(type(base), kind):
        raise TypeError(f"not a {kind}")
    return base


def _in_classes(cls: type, name: str) -> Any:
    """Look a name up in a class and its bases, bypassing the metaclass."""
    for each in _MRO(cls):
        if name in (names := _NAMES(each)):
            return names[name]
    raise AttributeError(name)


def _slot_of(base: Any, name: str) -> Any:
    """Read a member or getset of a C type; any other descriptor may be a user's property."""
    descriptor = _in_classes(type(base), name)
    if type(descriptor) not in _SLOTS:
        raise AttributeError(name)
    return descriptor.__get__(base, type(base))


def instance_dict(base: Any) -> dict[str, Any]:
    """Return the `__dict__` of an object; raises AttributeError if it has none."""
    table: dict[str, Any] = _slot_of(base, "__dict__")
    return table


def attribute_at(owner: Any, name: Any, tables: Sequence[str]) -> Any:
    """Return an attribute that the class lacks, from the object's `__dict__` or a table in it.

    `tables` names those: nn.Module has parameters, buffers and submodules in dictionaries.
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
    """Return base[key] of a dict, list or tuple as stored."""
    if issubclass(type(base), dict):
        return entry_of(base, key)
    kind = tuple if issubclass(type(base), tuple) else list
    if type(key) is not int:
        raise TypeError("not an index")
    return kind.__getitem__(_of_kind(kind, base), key)


def referent_of(reference: Any) -> Any:
    """Return the referent of a plain weak reference, or the dictionary of a mappingproxy."""
    if type(reference) is types.MappingProxyType:
        shown = (one for one in gc.get_referents(reference) if type(one) in _SHOWN)
        if (found := next(shown, None)) is not None:
            return found
    elif type(reference) is weakref.ref:
        return reference()
    raise TypeError("neither a plain weak reference nor a proxy of a plain dictionary")


def is_array_scalar(kind: type) -> bool:
    """Return whether `kind` is a numpy scalar type, whose values are compared by their bytes."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(kind, numpy.number | numpy.bool_)


def integer_classes() -> tuple[type, ...]:
    """Return numpy's integer classes; empty if numpy was not imported."""
    numpy = sys.modules.get("numpy")
    return () if numpy is None else tuple(numpy.dtype(code).type for code in "bhilBHIL")


def int_of(number: Any) -> int:
    """Return the value of a numpy integer, bypassing a user-defined `__index__`."""
    if type(number) not in integer_classes():
        raise TypeError("not an integer of numpy")
    return operator.index(number)


def array_memory(array: Any) -> torch.Tensor:
    """Return a tensor that shares an array's memory; raises if torch cannot make one.

    A read-only array raises too: torch would only warn and allow writes.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or type(array) is not numpy.ndarray:
        raise TypeError("not a plain array")
    if not array.flags.writeable:
        raise ValueError("a read-only array")
    return torch.from_numpy(array)


def entry_of(table: dict[Any, Any], key: object) -> object:
    """Return the value under a key, bypassing `__getitem__` and `__missing__` of the class."""
    if (found := dict.get(table, key, _NOTHING)) is _NOTHING:
        raise KeyError(key)
    return found


def entries_of(base: object) -> list[tuple[Any, Any]]:
    """Return the items of a dictionary in order, bypassing the methods of its class."""
    kind = OrderedDict if issubclass(type(base), OrderedDict) else dict
    return list(kind.items(_of_kind(kind, base)))
