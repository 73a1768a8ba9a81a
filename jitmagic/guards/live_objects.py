"""Reads parts of live objects without running user code: attributes, items, referents.

Input: an object, and a name, key or index. Output: the part as it is stored; raises one of
`UNREADABLE` (read.py) if there is none. Methods and properties that a user's class defines are not
called. The native loads in extensions/frame/guards.cpp agree with each function.
"""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

__all__ = [
    "array_memory",
    "attribute_at",
    "entries_of",
    "entry_of",
    "in_classes",
    "instance_dict",
    "is_array_scalar",
    "item_of",
    "number_of",
    "of_kind",
    "part_of",
    "referent_of",
    "scalar_classes",
    "slot_of",
]

_NOTHING = object()
_SHOWN = (dict, OrderedDict)

_MRO, _NAMES = (type.__dict__[name].__get__ for name in ("__mro__", "__dict__"))
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_HAVE_PART: dict[str, object] = {
    "__self__": types.MethodType | types.BuiltinFunctionType,
    "__func__": types.MethodType,
}


def of_kind(kind: Any, base: object) -> Any:
    """Return `base` if its type is `kind`; isinstance() would read a user-defined `__class__`."""
    if not issubclass(type(base), kind):
        raise TypeError(f"not a {kind}")
    return base


def part_of(function: object, part: str) -> object:
    """Return an attribute such as `__code__` of a function, or `__self__` of a bound method."""
    # A bound method would forward other attributes to its function.
    owner = of_kind(_HAVE_PART.get(part, types.FunctionType), function)
    return _evaluated_annotations(owner) if part == "__annotations__" else getattr(owner, part)


def _evaluated_annotations(function: types.FunctionType) -> object:
    """Return the dict that CPython has cached, or None; reading it may run code since 3.14."""
    others = (function.__globals__, function.__builtins__, function.__kwdefaults__, vars(function))
    found = (one for one in gc.get_referents(function) if issubclass(type(one), dict))
    return next((one for one in found if all(one is not other for other in others)), None)


def in_classes(cls: type, name: str) -> Any:
    """Look a name up in a class and its bases, bypassing the metaclass."""
    for each in _MRO(cls):
        if name in (names := _NAMES(each)):
            return names[name]
    raise AttributeError(name)


def slot_of(base: object, name: str) -> Any:
    """Read a member or getset of a C type; any other descriptor may be a user's property."""
    descriptor = in_classes(type(base), name)
    if type(descriptor) not in _SLOTS:
        raise AttributeError(name)
    return descriptor.__get__(base, type(base))


def instance_dict(base: object) -> dict[str, object]:
    """Return the `__dict__` of an object; raises AttributeError if it has none."""
    table: dict[str, object] = slot_of(base, "__dict__")
    return table


def attribute_at(owner: object, name: object, tables: Sequence[str]) -> object:
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


def item_of(base: Any, key: object) -> object:
    """Return base[key] of a dict, list or tuple as stored."""
    if issubclass(type(base), dict):
        return entry_of(base, key)
    kind = tuple if issubclass(type(base), tuple) else list
    if type(key) is not int:
        raise TypeError("not an index")
    return kind.__getitem__(of_kind(kind, base), key)


def referent_of(reference: object) -> Any:
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


def scalar_classes() -> tuple[type, ...]:
    """Return numpy's integer and float classes; empty if numpy was not imported."""
    numpy = sys.modules.get("numpy")
    return () if numpy is None else tuple(numpy.dtype(code).type for code in "bhilBHILfd")


def number_of(scalar: Any) -> int | float:
    """Return the number that a scalar of numpy holds, bypassing what user code redefines."""
    if type(scalar) not in scalar_classes():
        raise TypeError("not a number of numpy")
    number: int | float = scalar.item()
    return number


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


def entry_of(table: dict[object, object], key: object) -> object:
    """Return the value under a key, bypassing `__getitem__` and `__missing__` of the class."""
    if (found := dict.get(table, key, _NOTHING)) is _NOTHING:
        raise KeyError(key)
    return found


def entries_of(base: object) -> list[tuple[object, object]]:
    """Return the items of a dictionary in order, bypassing the methods of its class."""
    kind = OrderedDict if issubclass(type(base), OrderedDict) else dict
    return list(kind.items(of_kind(kind, base)))
