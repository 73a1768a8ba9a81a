"""What a trace relies on about classes, guarded where it is read.

Comes in: a class whose identity is guarded, or follows from that of an object of it. Goes out: what
it has under a name, and what Python answers about its bases, each with a fact in the one guard of
that class. Built-in classes cannot be changed and need none. Nothing is run but what an ABC asks
when Python would ask it.
"""

from __future__ import annotations

import abc
import collections.abc
import contextlib
import enum
import functools
import sys
import types
import typing
from typing import Any

import torch

from ....guards.guard import ClassFact, ClassFacts, IdentityIs, StateRead
from ....guards.source import ImportedModule, ModuleAttr, Source
from ...breaks import GraphBreak, UnsupportedOperation
from ..base import Machine, ObservedError, Value

__all__ = [
    "NOTHING",
    "attribute_of_class",
    "belongs_to_torch",
    "guard_attribute",
    "guard_bases",
    "guard_not_shadowed",
    "guard_precedence",
    "guarded_attribute",
    "has_flag",
    "is_data_descriptor",
    "is_instance",
    "is_library_class",
    "is_library_module",
    "is_plain_instance",
    "is_standard",
    "is_subclass",
    "load_attribute",
    "may_change",
    "path_of_class",
]

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_CHECK = "__instancecheck__"
_DEVICE_OF_KINDS = {"torch": "cpu", "torch.cuda": "cuda"}  # where LongTensor and its like are
_LIBRARIES = sys.stdlib_module_names | {"typing_extensions"}
_STANDARD = frozenset(
    part
    for module in (abc, collections, collections.abc, contextlib, enum, functools, typing)
    for part in vars(module).values()
    if isinstance(part, type)
)


class _Nothing:
    """No such attribute."""


NOTHING = _Nothing()


def belongs_to_torch(module: str | None) -> bool:
    """Whether a module name is torch or below it."""
    return module == "torch" or (module or "").startswith("torch.")


def is_library_module(name: object) -> bool:
    """Whether the name is that of a module of torch's or the standard library's."""
    if not isinstance(name, str):
        return False
    return belongs_to_torch(name) or name.partition(".")[0] in _LIBRARIES


def may_change(kind: type) -> bool:
    """Whether facts about the class need a guard."""
    return not kind.__flags__ & _IMMUTABLE


def is_library_class(kind: type) -> bool:
    """Whether a class is built-in, torch's, or one of the standard library's that are known."""
    if kind.__flags__ & _IMMUTABLE or kind in _STANDARD:
        return True
    module = vars(kind).get("__module__")  # asked plainly, a metaclass could answer
    torch_made = isinstance(module, str) and belongs_to_torch(module)
    return torch_made and torch.fx.GraphModule not in kind.__mro__


def attribute_of_class(kind: type, name: str) -> object:
    """The raw attribute on the MRO, or NOTHING; nothing is run and nothing guarded."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), NOTHING)


def is_data_descriptor(raw: object) -> bool:
    """Whether what a class has goes before what an instance has itself."""
    if isinstance(raw, Value):
        return False
    return any(
        attribute_of_class(type(raw), name) is not NOTHING for name in ("__set__", "__delete__")
    )


# ------------------------------------------------------------------------------------------- facts


def guard_bases(machine: Machine, kind: type) -> None:
    """Rely on the bases of a class."""
    if may_change(kind):
        machine.guard(ClassFacts.about(kind))


def guard_attribute(machine: Machine, kind: type, name: str, raw: object, start: int = 0) -> None:
    """Rely on the class having this very object under the name, from position `start` of its MRO
    on; NOTHING: on its having none."""
    if not may_change(kind):
        return
    fact = ClassFact("is", name, start, raw)
    if raw is NOTHING:
        fact = ClassFact("absent", name, start)
    elif isinstance(raw, types.MemberDescriptorType) and raw.__name__ == name and not start:
        fact = ClassFact("slot", name)
    machine.guard(ClassFacts.about(kind, fact))


def guarded_attribute(machine: Machine, kind: type, name: str) -> object:
    """What the class has under the name (or NOTHING), guarded."""
    raw = attribute_of_class(kind, name)
    guard_attribute(machine, kind, name, raw)
    return raw


def guard_not_shadowed(machine: Machine, kind: type, name: str, raw: object) -> None:
    """Rely on an instance's own attribute going before `raw`, which the class has (or NOTHING)."""
    if isinstance(raw, Value) or not may_change(kind):
        return
    if isinstance(raw, types.MemberDescriptorType):  # a slot: the instance's own place
        guard_attribute(machine, kind, name, raw)
    elif raw is NOTHING or type(raw).__flags__ & _IMMUTABLE:
        machine.guard(ClassFacts.about(kind, ClassFact("yields", name)))
    else:
        guard_attribute(machine, kind, name, raw)
        guard_precedence(machine, raw)


def guard_precedence(machine: Machine, raw: object) -> None:
    """Rely on a descriptor's class saying no other than now whether it is a data descriptor."""
    for part in ("__set__", "__delete__"):
        guarded_attribute(machine, type(raw), part)


def is_standard(machine: Machine, kind: type, name: str) -> bool:
    """Whether what the class has under the name (if anything) is a library's; relied on if so."""
    owner = next((base for base in kind.__mro__ if name in vars(base)), object)
    raw = vars(owner).get(name, NOTHING)
    users = isinstance(raw, types.FunctionType) and not is_library_module(
        raw.__globals__.get("__name__")
    )
    if not is_library_class(owner) or users:
        return False
    guard_attribute(machine, kind, name, raw)
    return True


# --------------------------------------------------------------- attributes, isinstance, issubclass


def load_attribute(machine: Machine, value: Value, name: str) -> Value:
    """`value.name`, as LOAD_ATTR and getattr() read it. `__class__` is one question for every kind
    of object: its type, but where a class answers it by itself.
    """
    if name == "__class__" and type(value).python_type is not Value.python_type:
        kind = value.python_type(machine)
        if all(is_standard(machine, kind, one) for one in ("__class__", "__getattribute__")):
            return machine.constant(kind)
    return value.get_attr(machine, name)


def is_instance(machine: Machine, value: Value, kind: type) -> bool:
    """`isinstance(value, kind)`."""
    own = value.python_type(machine)
    if kind in (own, object):
        return True
    if kind is torch.nn.Parameter:  # its metaclass also takes marked tensors, which are no inputs
        return kind in own.__mro__
    asked = guarded_attribute(machine, type(kind), _CHECK)
    if asked is vars(type)[_CHECK] and kind in own.__mro__:
        guard_bases(machine, own)
        return True
    of_dtype = type(kind) is type(torch.LongTensor) and kind.__module__ in _DEVICE_OF_KINDS
    if not of_dtype and asked not in (vars(type)[_CHECK], vars(abc.ABCMeta)[_CHECK]):
        return is_subclass(machine, own, kind, _CHECK, value)  # a check of its own, made once
    if not all(is_standard(machine, own, one) for one in ("__class__", "__getattribute__")):
        told = dict.fromkeys((_told_class(machine, value), own))
        return any(is_subclass(machine, one, kind, _CHECK) for one in told)
    if of_dtype:
        return issubclass(own, torch.Tensor) and _is_of_kind(machine, value, kind)
    return is_subclass(machine, own, kind, _CHECK, value)


def is_plain_instance(machine: Machine, value: Value, kind: type) -> bool:
    """`type.__instancecheck__(kind, value)`: by its type, or by what it says that its class is."""
    own = value.python_type(machine)
    guard_bases(machine, own)
    if kind in own.__mro__:
        return True
    if all(is_standard(machine, own, one) for one in ("__class__", "__getattribute__")):
        return False
    told = _told_class(machine, value)
    guard_bases(machine, told)
    return kind in told.__mro__


def _told_class(machine: Machine, value: Value) -> type:
    """What the object says that its class is; isinstance asks where its type does not fit."""
    own = value.python_type(machine)
    try:
        told = value.get_attr(machine, "__class__").realize(machine)
    except ObservedError as observed:
        if not observed.error.matches(machine, AttributeError):
            raise
        return own
    kind = told.as_constant(machine) if told.is_constant(machine) else None
    if not isinstance(kind, type):
        value.refuse(machine, "isinstance of what is asked for its class")
    return kind


def _is_of_kind(machine: Machine, tensor: Value, kind: Any) -> bool:
    """`isinstance(x, torch.LongTensor)`: the class says what dtype and device is asked for."""
    wanted = {"dtype": kind.dtype, "layout": kind.layout}
    device = tensor.get_attr(machine, "device").as_constant(machine)
    return device.type == _DEVICE_OF_KINDS[kind.__module__] and all(
        tensor.get_attr(machine, name).as_constant(machine) == value
        for name, value in wanted.items()
    )


def is_subclass(
    machine: Machine,
    own: type,
    kind: type,
    check: str = "__subclasscheck__",
    subject: Value | None = None,
) -> bool:
    """`issubclass(own, kind)`. An ABC remembers whom it took for one of its own, for ever, and whom
    it did not until a class is registered with some ABC; it is asked as Python would ask it. A
    metaclass written in Python is asked about `subject`, or the class.
    """
    metaclass = type(kind)
    asked = guarded_attribute(machine, metaclass, check)
    if asked is vars(type)[check]:
        guard_bases(machine, own)
        return kind in own.__mro__
    if asked is not vars(abc.ABCMeta)[check]:
        return _own_check(machine, kind, check, subject or machine.constant(own))
    answer = issubclass(own, kind)
    if not answer:
        guard_unregistered(machine)
    return answer


def _own_check(machine: Machine, kind: type, check: str, subject: Value) -> bool:
    raw, method = machine.class_of(type(kind), None).find(machine, check)
    if not isinstance(raw, types.FunctionType):
        what = f"is{check[2:-7]} of"  # isinstance, issubclass
        raise GraphBreak(UnsupportedOperation.of(what=what, types=f"class {kind.__name__}"))
    called: Value = method.realize(machine).call(machine, [machine.constant(kind), subject], {})
    return called.realize(machine).truth(machine)


def has_flag(machine: Machine, kind: type, flag: int) -> bool:
    """A flag of a class that its bases and what ABCs it was registered with tell."""
    guard_bases(machine, kind)
    if kind.__flags__ & flag:
        return True
    if may_change(kind):
        guard_unregistered(machine)
    return False


def guard_unregistered(machine: Machine) -> None:
    """Rely on no class being registered with an ABC."""
    machine.guard(StateRead(abc.get_cache_token, abc.get_cache_token(), True))


def path_of_class(machine: Machine, kind: type) -> Source | None:
    """Where a class is found again that no path of the frame led to: under its name in its module.
    None where it is not there.
    """
    module = sys.modules.get(kind.__module__)
    if type(module) is not types.ModuleType or vars(module).get(kind.__name__) is not kind:
        return None
    path = ModuleAttr(ImportedModule(kind.__module__), kind.__name__)
    machine.guard(IdentityIs(path, kind))
    return path
