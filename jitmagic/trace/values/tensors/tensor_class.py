"""The class of a tensor: what torch made of it, and what the program made of that.

Comes in: the name of an attribute or special method that is about to be used on a tensor. Goes out:
None where the class has what torch gave it, which the graph then calls by its name; else what the
program put there (an adapter's `Tensor.__add__`, a method of its own), bound to the tensor and
followed like any code of the user's. Either way the class having it is a guarded fact.
"""

from __future__ import annotations

import torch

from ....guards.source import ImportedModule, ModuleAttr, Source, TypeOf
from ...breaks import GraphBreak, UnsupportedAttribute
from ..base import Args, Machine, Value
from ..objects.class_facts import NOTHING, guarded_attribute
from ..objects.classes import bind
from ..objects.monkey_patches import PARAMETER, TENSOR

__all__ = ["call_replaced", "replaced"]

_PATHS: dict[type, Source] = {
    torch.Tensor: ModuleAttr(ImportedModule("torch"), "Tensor"),
    torch.nn.Parameter: ModuleAttr(ImportedModule("torch.nn.parameter"), "Parameter"),
}


def replaced(machine: Machine, tensor: Value, name: str) -> Value | None:
    """The attribute as the program made it; None: it is torch's, or there is none."""
    kind = tensor.python_type(machine)
    for asked in ("__getattribute__", name):
        raw = guarded_attribute(machine, kind, asked)
        if raw is TENSOR.get(asked, NOTHING) or raw is PARAMETER.get(asked, NOTHING):
            continue
        path = _PATHS.get(kind) or (TypeOf(tensor.source) if tensor.source else None)
        if path is None or raw is NOTHING or asked != name:
            raise GraphBreak(UnsupportedAttribute.of(name=asked, type=kind.__name__))
        cls = machine.class_of(kind, path)
        found, value = cls.find(machine, name)
        return bind(machine, found, value, tensor, cls, name).realize(machine)
    return None


def call_replaced(machine: Machine, tensor: Value, name: str, args: Args) -> Value | None:
    """What a special method that the program put there gives, also NotImplemented; None: it is
    torch's."""
    method = replaced(machine, tensor, f"__{name}__")
    return None if method is None else method.call(machine, args, {}).realize(machine)
