"""Methods of object, tuple and BaseException, where chains of `super()` calls end."""

from __future__ import annotations

import types
from typing import Any

from ...breaks import GraphBreak, UnknownCFunction, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.namedtuples import NamedTupleValue, is_named_tuple
from ...values.containers.sequences import TupleValue
from ...values.objects.callables import name_of
from ...values.objects.classes import ClassValue, is_plain_class
from ...values.objects.exceptions import ExceptionValue
from ...values.objects.instances import InstanceValue
from ...values.objects.operators import unpack
from ..registry import handler_of, handles

__all__: list[str] = []


def _instance(args: Args, name: str) -> InstanceValue:
    if not args or not isinstance(args[0], InstanceValue):
        raise GraphBreak(UnknownCFunction.of(name=name))
    return args[0]


@handles(object.__new__)
def _object_new(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    cls = args[0]
    if not isinstance(cls, ClassValue) or not is_plain_class(cls.live):
        raise GraphBreak(UnknownCFunction.of(name="object.__new__"))
    return InstanceValue(cls)


@handles(type.__call__)
def _type_call(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    cls = args[0]
    if not isinstance(cls, ClassValue) or handler_of(cls.live) is not None:
        raise GraphBreak(UnknownCFunction.of(name="type.__call__"))
    return cls.instantiate(machine, args[1:], kwargs)


@handles(object)
def _object(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    cls: Any = machine.constant(object)
    return InstanceValue(cls)


@handles(object.__init__, object.__init_subclass__)
def _object_init(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if len(args) > 1 or kwargs:
        raise GraphBreak(UnsupportedArguments.of(name="object.__init__", what="arguments"))
    return machine.constant(None)


@handles(object.__getattribute__, dict.__getattribute__)
def _object_getattribute(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    owner = _instance(args, "object.__getattribute__")
    return owner.plain_attr(machine, args[1].as_constant(machine))


@handles(object.__setattr__)
def _object_setattr(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    owner = _instance(args, "object.__setattr__")
    owner.store_attr(machine, args[1].as_constant(machine), args[2])
    return machine.constant(None)


@handles(types.SimpleNamespace.__init__)
def _namespace_init(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    owner = _instance(args, "SimpleNamespace.__init__")
    if len(args) > 1:
        raise GraphBreak(UnsupportedArguments.of(name="SimpleNamespace", what="a mapping"))
    for name, value in kwargs.items():
        owner.store_attr(machine, name, value)
    return machine.constant(None)


@handles(object.__delattr__)
def _object_delattr(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    owner = _instance(args, "object.__delattr__")
    owner.store_attr(machine, args[1].as_constant(machine), None)
    return machine.constant(None)


@handles(tuple.__new__)
def _tuple_new(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    cls = args[0]
    items = unpack(machine, args[1]) if len(args) > 1 else []
    if isinstance(cls, ClassValue) and cls.live is tuple:
        return TupleValue(items)
    if isinstance(cls, ClassValue) and is_named_tuple(cls.live):
        return NamedTupleValue(cls, items)
    raise GraphBreak(UnknownCFunction.of(name="tuple.__new__"))


def _exception_init(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Model BaseException.__init__, which stores its arguments."""
    if not isinstance(args[0], ExceptionValue) or kwargs:
        raise GraphBreak(UnknownCFunction.of(name=name_of(BaseException.__init__)))
    args[0].args = tuple(args[1:])
    return machine.constant(None)


# These inherit one C function; OSError, ImportError and others parse their arguments.
_SAME_INIT = (BaseException, Exception, ValueError, TypeError, RuntimeError, ArithmeticError,
              LookupError, AssertionError, NotImplementedError)  # fmt: skip
handles(*(kind.__init__ for kind in _SAME_INIT))(_exception_init)
