"""Finds functions, methods and classes by a module and a name, as data refer to them.

Input: a function, or a class. Output: the module and the path of attributes at which another
process finds it too, or None: a lambda, a function made by another one, a method of an object.
"""

from __future__ import annotations

import sys
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)

import torch

__all__ = ["is_function", "name_of", "object_at"]

_METHODS = (
    MethodDescriptorType,
    WrapperDescriptorType,
    ClassMethodDescriptorType,
    GetSetDescriptorType,
)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodWrapperType, type, *_METHODS)
# Functions of torch whose own names are those of an internal class.
_HOLDERS = (torch, torch.nn.functional)


def is_function(value: object) -> bool:
    """Return whether a name may refer to the value."""
    return isinstance(value, _FUNCTIONS)


def name_of(value: object) -> tuple[str, str] | None:
    """Return the module and the path of a function or class, or None."""
    owner = getattr(value, "__objclass__", None)  # of a method of a C type: Tensor.add
    owner = getattr(value, "__self__", None) if owner is None else owner
    if isinstance(owner, type):
        found = _below(owner, str(getattr(value, "__name__", "")), value)
        return found or _in_holders(value)
    module = getattr(value, "__module__", None)
    for path in (getattr(value, "__qualname__", None), getattr(value, "__name__", None)):
        if isinstance(module, str) and path and _is_at(module, path, value):
            return module, path
    return _in_holders(value)


def object_at(module: str, path: str) -> object:
    """Return what a module has at a path, None if there is nothing."""
    found: object = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _is_at(module: str, path: str, value: object) -> bool:
    return object_at(module, path) is value


def _below(owner: type, name: str, value: object) -> tuple[str, str] | None:
    """Return the name of a method of a class with a name."""
    known = name_of(owner)
    if known is None or not _is_at(known[0], f"{known[1]}.{name}", value):
        return None
    return known[0], f"{known[1]}.{name}"


def _in_holders(value: object) -> tuple[str, str] | None:
    name = str(getattr(value, "__name__", ""))
    found = (one.__name__ for one in _HOLDERS if getattr(one, name, None) is value)
    return next(((module, name) for module in found), None)
