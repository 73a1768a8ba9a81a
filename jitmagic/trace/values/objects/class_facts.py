"""Reads facts about classes (attributes, bases, isinstance) and guards each of them.

Input: a class whose identity is guarded, directly or by the type guard of an instance. Output: the
attribute or the answer. Each fact is added to the one ClassFacts guard of that class. Built-in
classes are immutable and need no guard. No user code runs while tracing, except the hooks of an ABC
where Python would run them too.
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
_DEVICE_OF_KINDS = {"torch": "cpu", "torch.cuda": "cuda"}  # of torch.cuda.LongTensor etc.
_LIBRARIES = sys.stdlib_module_names | {"typing_extensions"}
_STANDARD = frozenset(
    part
    for module in (abc, collections, collections.abc, contextlib, enum, functools, typing)
    for part in vars(module).values()
    # A class that its metaclass makes equal to others warns on 3.14 (typing._UnionGenericAlias).
    if isinstance(part, type) and type(part).__eq__ is type.__eq__
)


class _Nothing:
    """The type of NOTHING, the sentinel for a missing attribute (None is a valid value)."""


NOTHING = _Nothing()


def belongs_to_torch(module: str | None) -> bool:
    """Return whether a module name is torch or a submodule of it."""
    return module == "torch" or (module or "").startswith("torch.")


def is_library_module(name: object) -> bool:
    """Return whether the name is that of a module of torch or the standard library."""
    if not isinstance(name, str):
        return False
    return belongs_to_torch(name) or name.partition(".")[0] in _LIBRARIES


def may_change(kind: type) -> bool:
    """Return whether the class is mutable, so that facts about it need a guard."""
    # CPython refuses to set attributes and `__bases__` of a type with this flag (type_setattro).
    return not kind.__flags__ & _IMMUTABLE


def is_library_class(kind: type) -> bool:
    """Return whether a class is built-in, torch's, or a known one of the standard library."""
    if kind.__flags__ & _IMMUTABLE or kind in _STANDARD:
        return True
    module = vars(kind).get("__module__")  # getattr() could run code of the metaclass
    torch_made = isinstance(module, str) and belongs_to_torch(module)
    # fx generates a class for each GraphModule, with a `forward` from the user's graph.
    return torch_made and torch.fx.GraphModule not in kind.__mro__


def attribute_of_class(kind: type, name: str) -> object:
    """Return the raw attribute on the MRO, or NOTHING. Installs no guard and runs no user code."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), NOTHING)


def is_data_descriptor(raw: object) -> bool:
    """Return whether a class attribute takes precedence over the instance's own entry."""
    if isinstance(raw, Value):
        return False
    # PyDescr_IsData tests one slot, tp_descr_set, which either of the two methods fills.
    return any(
        attribute_of_class(type(raw), name) is not NOTHING for name in ("__set__", "__delete__")
    )


# ------------------------------------------------------------------------------------------- facts


def guard_bases(machine: Machine, kind: type) -> None:
    """Guard the MRO of a class."""
    if may_change(kind):
        machine.guard(ClassFacts.about(kind))


def guard_attribute(machine: Machine, kind: type, name: str, raw: object, start: int = 0) -> None:
    """Guard that a lookup on the MRO, from position `start` on, finds `raw` under the name.

    NOTHING guards that the lookup finds no attribute.
    """
    if not may_change(kind):
        return
    fact = ClassFact("is", name, start, raw)
    if raw is NOTHING:
        fact = ClassFact("absent", name, start)
    elif isinstance(raw, types.MemberDescriptorType) and raw.__name__ == name and not start:
        fact = ClassFact("slot", name)
    machine.guard(ClassFacts.about(kind, fact))


def guarded_attribute(machine: Machine, kind: type, name: str) -> object:
    """Return the raw attribute of the class, or NOTHING, and guard it."""
    raw = attribute_of_class(kind, name)
    guard_attribute(machine, kind, name, raw)
    return raw


def guard_not_shadowed(machine: Machine, kind: type, name: str, raw: object) -> None:
    """Guard that an instance's entry or slot wins over `raw`, the class attribute, in a lookup."""
    if isinstance(raw, Value) or not may_change(kind):
        return
    if isinstance(raw, types.MemberDescriptorType):  # a slot is storage of the instance
        guard_attribute(machine, kind, name, raw)
    # "yields" does not hold the attribute: a new class default, as in `Config.depth = 4`, does not
    # fail the guard, because the instance's entry wins anyway.
    elif raw is NOTHING or type(raw).__flags__ & _IMMUTABLE:
        machine.guard(ClassFacts.about(kind, ClassFact("yields", name)))
    else:
        guard_attribute(machine, kind, name, raw)
        guard_precedence(machine, raw)


def guard_precedence(machine: Machine, raw: object) -> None:
    """Guard that a descriptor remains a data descriptor, or remains a non-data descriptor."""
    for part in ("__set__", "__delete__"):
        guarded_attribute(machine, type(raw), part)


def is_standard(machine: Machine, kind: type, name: str) -> bool:
    """Return whether the class attribute is absent or a library's original; guarded if True."""
    owner = next((base for base in kind.__mro__ if name in vars(base)), object)
    raw = vars(owner).get(name, NOTHING)
    is_patched = isinstance(raw, types.FunctionType) and not is_library_module(
        raw.__globals__.get("__name__")
    )
    if not is_library_class(owner) or is_patched:
        return False
    guard_attribute(machine, kind, name, raw)
    return True


# --------------------------------------------------------------- attributes, isinstance, issubclass


def load_attribute(machine: Machine, value: Value, name: str) -> Value:
    """Return `value.name`, as LOAD_ATTR and getattr() read it.

    `__class__` is the type for every kind of value, unless a user class overrides it.
    """
    if name == "__class__" and type(value).python_type is not Value.python_type:
        kind = value.python_type(machine)
        if _reports_type(machine, kind):
            return machine.constant(kind)
    return value.get_attr(machine, name)


def _reports_type(machine: Machine, kind: type) -> bool:
    """Return whether `__class__` of an instance is its type; guarded if True."""
    # For instance, `Mock(spec=cls)` has a `__class__` property that returns `cls`.
    return all(is_standard(machine, kind, name) for name in ("__class__", "__getattribute__"))


def is_instance(machine: Machine, value: Value, kind: type) -> bool:
    """Return `isinstance(value, kind)`, guarded."""
    own = value.python_type(machine)
    # PyObject_IsInstance returns True for the exact type before it looks for `__instancecheck__`.
    if kind in (own, object):
        return True
    # Parameter's metaclass also accepts tensors with `_is_param`, which are never graph inputs.
    if kind is torch.nn.Parameter:
        return kind in own.__mro__
    check = guarded_attribute(machine, type(kind), _CHECK)
    if check is vars(type)[_CHECK] and kind in own.__mro__:
        guard_bases(machine, own)
        return True
    of_dtype = type(kind) is type(torch.LongTensor) and kind.__module__ in _DEVICE_OF_KINDS
    if not of_dtype and check not in (vars(type)[_CHECK], vars(abc.ABCMeta)[_CHECK]):
        return is_subclass(machine, own, kind, _CHECK, value)  # a user check runs exactly once
    if not _reports_type(machine, own):
        classes = dict.fromkeys((_reported_class(machine, value), own))
        return any(is_subclass(machine, cls, kind, _CHECK) for cls in classes)
    if of_dtype:
        return issubclass(own, torch.Tensor) and _is_of_kind(machine, value, kind)
    return is_subclass(machine, own, kind, _CHECK, value)


def is_plain_instance(machine: Machine, value: Value, kind: type) -> bool:
    """Return `type.__instancecheck__(kind, value)`: tests the type, then `value.__class__`."""
    own = value.python_type(machine)
    guard_bases(machine, own)
    if kind in own.__mro__:
        return True
    if _reports_type(machine, own):
        return False
    reported = _reported_class(machine, value)
    guard_bases(machine, reported)
    return kind in reported.__mro__


def _reported_class(machine: Machine, value: Value) -> type:
    """Return `value.__class__`, which isinstance() tests if the type does not match."""
    own = value.python_type(machine)
    try:
        # object_isinstance suppresses an AttributeError of `__class__`; isinstance() is then False.
        reported = value.get_attr(machine, "__class__").realize(machine)
    except ObservedError as observed:
        if not observed.error.matches(machine, AttributeError):
            raise
        return own
    kind = reported.as_constant(machine) if reported.is_constant(machine) else None
    if not isinstance(kind, type):
        value.refuse(machine, "isinstance() with a __class__ that is not a constant")
    return kind


def _is_of_kind(machine: Machine, tensor: Value, kind: Any) -> bool:
    """Return `isinstance(x, torch.LongTensor)`, which tests the dtype, layout and device."""
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
    """Return `issubclass(own, kind)`, guarded.

    A user's `check` method (`__instancecheck__` with the instance as `subject`, or
    `__subclasscheck__`) is inlined.
    """
    metaclass = type(kind)
    method = guarded_attribute(machine, metaclass, check)
    if method is vars(type)[check]:
        guard_bases(machine, own)
        return kind in own.__mro__
    if method is not vars(abc.ABCMeta)[check]:
        return _own_check(machine, kind, check, subject or machine.constant(own))
    # An ABC caches True forever, but False only until a class is registered with any ABC.
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
    """Return a flag of the type, guarded; bases and registrations with ABCs can change it."""
    guard_bases(machine, kind)
    if kind.__flags__ & flag:
        return True
    # ABCMeta.register() sets Py_TPFLAGS_SEQUENCE or _MAPPING in a mutable class (PEP 634).
    if may_change(kind):
        guard_unregistered(machine)
    return False


def guard_unregistered(machine: Machine) -> None:
    """Guard that no class has been registered with any ABC since the trace."""
    machine.guard(StateRead(abc.get_cache_token, abc.get_cache_token(), True))


def path_of_class(machine: Machine, kind: type) -> Source | None:
    """Return a source, `module.name`, for a class that the frame reached without a source.

    None if the module does not have the class under its name. The identity is guarded.
    """
    module = sys.modules.get(kind.__module__)
    if type(module) is not types.ModuleType or vars(module).get(kind.__name__) is not kind:
        return None
    path = ModuleAttr(ImportedModule(kind.__module__), kind.__name__)
    machine.guard(IdentityIs(path, kind))
    return path
