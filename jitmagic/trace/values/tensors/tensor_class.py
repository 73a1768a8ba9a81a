"""Finds attributes of torch.Tensor that user code replaced or added.

Input: the name of an attribute or special method that is about to be used on a tensor. Output: None
if the class has torch's original, which the graph then calls by name; otherwise the object that
user code stored on the class (an adapter's `Tensor.__add__`), bound to the tensor and traced like
other user code. Either way, a guard checks the attribute of the class.
"""

from __future__ import annotations

from types import FunctionType

import torch

from ....graph.wrappers.wrapping import is_wrapper_class
from ....guards.source import ImportedModule, ModuleAttr, Source, TypeOf
from ...breaks import GraphBreak, UnsupportedAttribute
from ..base import Args, Machine, Value
from ..objects.class_facts import NOTHING, belongs_to_torch, guarded_attribute
from ..objects.classes import bind
from ..objects.monkey_patches import PARAMETER, TENSOR

__all__ = ["call_user_method", "is_library_method", "user_attribute"]

_PATHS: dict[type, Source] = {
    torch.Tensor: ModuleAttr(ImportedModule("torch"), "Tensor"),
    torch.nn.Parameter: ModuleAttr(ImportedModule("torch.nn.parameter"), "Parameter"),
}


def user_attribute(machine: Machine, tensor: Value, name: str) -> Value | None:
    """Return the attribute that user code set on the class; None if it is torch's or absent."""
    kind = tensor.python_type(machine)
    # Every read of an attribute calls `type(x).__getattribute__`: a replaced one may answer first.
    for attribute in ("__getattribute__", name):
        raw = guarded_attribute(machine, kind, attribute)
        # torch.nn.Parameter has methods of its own (`__repr__`, `__deepcopy__`), which are torch's
        # as well.
        if raw is TENSOR.get(attribute, NOTHING) or raw is PARAMETER.get(attribute, NOTHING):
            continue
        if attribute == name and is_library_method(kind, raw):
            return None  # it is one node (subclasses.py)
        path = _PATHS.get(kind) or (TypeOf(tensor.source) if tensor.source else None)
        is_absent = attribute == name and raw is NOTHING and kind not in _PATHS
        if is_absent and guarded_attribute(machine, kind, "__getattr__") is NOTHING:
            return None  # an inner tensor of a wrapper, say
        # A result has a class that an argument has, or that code which the trace guards made.
        is_known = path is not None or kind not in _PATHS
        if not is_known or raw is NOTHING or attribute != name:
            raise GraphBreak(UnsupportedAttribute.of(name=attribute, type=kind.__name__))
        cls = machine.class_of(kind, path)
        found, value = cls.find(machine, name)
        return bind(machine, found, value, tensor, cls, name).realize(machine)
    return None


def is_library_method(kind: type, raw: object) -> bool:
    """Return whether a class attribute is a method of a wrapper subclass that torch defines."""
    if not isinstance(raw, FunctionType) or TENSOR.get(raw.__name__) is raw:
        return False  # torch.Tensor's own, such as backward()
    of_torch = is_wrapper_class(kind) and belongs_to_torch(kind.__module__)
    return of_torch and belongs_to_torch(raw.__module__)


def call_user_method(machine: Machine, tensor: Value, name: str, args: Args) -> Value | None:
    """Call a special method that user code set on the class; return None if it is torch's.

    The result may be NotImplemented."""
    method = user_attribute(machine, tensor, f"__{name}__")
    return None if method is None else method.call(machine, args, {}).realize(machine)
