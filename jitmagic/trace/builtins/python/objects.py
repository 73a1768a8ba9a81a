"""Queries about objects (type, attributes, length, identity), super(), and methods of object.

The methods of object, type, tuple and BaseException are where chains of `super()` calls end.
"""

from __future__ import annotations

import types

from ....guards.guard import IdentityIs, TypeIs
from ....guards.source import TypeOf
from ...breaks import GraphBreak, StatefulCall, UnknownCFunction, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, ObservedError, Value
from ...values.containers.keys import has_stable_hash
from ...values.containers.mappings import WithAttributes
from ...values.containers.namedtuples import NamedTupleValue, is_named_tuple
from ...values.containers.sequences import TupleValue
from ...values.containers.text_inputs import text_input
from ...values.objects.callables import BuiltinMethodValue, BuiltinValue, name_of
from ...values.objects.class_facts import (
    NOTHING,
    guarded_attribute,
    is_instance,
    is_plain_instance,
    is_subclass,
    load_attribute,
)
from ...values.objects.classes import ClassValue, SuperValue, is_plain_class
from ...values.objects.exceptions import ExceptionValue
from ...values.objects.found_attributes import find_attribute
from ...values.objects.functions import BoundMethodValue, CellValue, FunctionValue
from ...values.objects.instances import InstanceValue
from ...values.objects.namespaces import ModuleValue
from ...values.objects.operators import unpack
from ...values.objects.partials import PartialValue
from ...values.objects.type_forms import TypeFormValue
from ..registry import calls, handler_of, handles

__all__: list[str] = []


# -- queries ---------------------------------------------------------------------------------------


_CALLABLE = (
    BoundMethodValue, BuiltinMethodValue, BuiltinValue, ClassValue, FunctionValue, PartialValue,
)  # fmt: skip


@handles(type)
def _type(machine: Machine, value: Value) -> type:
    return value.python_type(machine)


def _kinds(machine: Machine, value: Value, name: str) -> list[type]:
    """Return the classes in the second argument of isinstance or issubclass."""
    if isinstance(value, TupleValue):
        return [kind for one in value.realized(machine) for kind in _kinds(machine, one, name)]
    if isinstance(value, ClassValue):
        return [value.live]
    if isinstance(value, TypeFormValue) and (kinds := value.classes) is not None:
        return kinds
    raise GraphBreak(UnsupportedArguments.of(name=name, what="not a class"))


@handles(isinstance, lazy=True)
def _isinstance(machine: Machine, value: Value, classes: Value) -> bool:
    kinds = _kinds(machine, classes.realize(machine), "isinstance")
    text = text_input(value)
    # A text of the call that is only asked for its class needs no guard on its value. A metaclass
    # may define `__instancecheck__`, which could read the value.
    if text is not None and all(type(kind) is type for kind in kinds):
        machine.guard(TypeIs(text[1], str))
        return any(kind in str.__mro__ for kind in kinds)
    value = value.realize(machine)
    return any(is_instance(machine, value, kind) for kind in kinds)


@handles(type.__instancecheck__)
def _instance_check(machine: Machine, kind: Value, value: Value) -> bool:
    """Model the default implementation that a metaclass falls back on."""
    if not isinstance(kind, ClassValue):
        raise GraphBreak(UnsupportedArguments.of(name="type.__instancecheck__", what="not a class"))
    return is_plain_instance(machine, value, kind.live)


@handles(issubclass)
def _issubclass(machine: Machine, cls: Value, classes: Value) -> bool:
    if not isinstance(cls, ClassValue):
        raise GraphBreak(UnsupportedArguments.of(name="issubclass", what="not a class"))
    kinds = _kinds(machine, classes, "issubclass")
    return any(is_subclass(machine, cls.live, kind) for kind in kinds)


_WITH_NAMES = (ClassValue, ModuleValue, WithAttributes)


@handles(vars)
def _vars(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1 or not isinstance(args[0], _WITH_NAMES):
        raise GraphBreak(StatefulCall.of(name="vars"))
    return args[0].get_attr(machine, "__dict__")


@handles(globals)
def _globals(machine: Machine) -> Value:
    names: Value = machine.frame.globals
    names.observe(machine)
    return names


@handles(callable)
def _callable(machine: Machine, value: Value) -> bool:
    # callable() asks the class alone: an attribute `__call__` of an instance does not count.
    return isinstance(value, _CALLABLE) or (
        guarded_attribute(machine, value.python_type(machine), "__call__") is not NOTHING
    )


def _name(machine: Machine, value: Value) -> str:
    kind = value.python_type(machine)
    if not issubclass(kind, str):
        raise machine.error(TypeError, f"attribute name must be string, not '{kind.__name__}'")
    return str(value.as_constant(machine))


@handles(getattr, lazy=True)
def _getattr(machine: Machine, owner: Value, key: Value, default: Value | None = None) -> Value:
    owner, text = owner.realize(machine), text_input(key)
    if text is not None and (found := find_attribute(machine, owner, text)) is not None:
        return found
    name = _name(machine, key.realize(machine))
    try:
        return load_attribute(machine, owner, name)
    except ObservedError as observed:
        if default is None or not observed.error.matches(machine, AttributeError):
            raise
        return default


@handles(hasattr)
def _hasattr(machine: Machine, owner: Value, key: Value) -> bool:
    try:
        load_attribute(machine, owner, _name(machine, key))
    except ObservedError as observed:
        if not observed.error.matches(machine, AttributeError):
            raise
        return False
    return True


calls(
    {
        len: lambda machine, value: value.length_value(machine),
        setattr: lambda machine, owner, name, value: owner.set_attr(
            machine, _name(machine, name), value
        ),
        delattr: lambda machine, owner, name: owner.del_attr(machine, _name(machine, name)),
        object: lambda machine: InstanceValue(machine.constant(object)),
    }
)


@handles(id)
def _id(machine: Machine, value: Value) -> int:
    """Return the id of an object from before the call, guarded to be the same in each call."""
    live = getattr(value, "live", None)
    # An object that the frame makes has no address before the residual has run, and a varying one
    # has another in each call.
    if live is None or value.source is None or value.varies:
        raise GraphBreak(StatefulCall.of(name="id"))
    machine.guard(IdentityIs(value.source, live))
    return id(live)


@handles(hash)
def _hash(machine: Machine, value: Value) -> int:
    """Return the hash of a value that cannot be another object in the next call."""
    token = value.hash_key(machine)
    if not has_stable_hash(token):
        raise GraphBreak(UnsupportedArguments.of(name="hash", what=value.describe()))
    return hash(token)


@handles(super)
def _super(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    start, obj = args if args else _implicit_super(machine)
    if not isinstance(start, ClassValue):
        raise GraphBreak(UnsupportedArguments.of(name="super", what="not a class"))
    if isinstance(obj, ClassValue) and start.live in obj.live.__mro__:
        return SuperValue(start.live, obj, obj)
    owner = obj.cls if isinstance(obj, InstanceValue) else None
    if owner is None:
        path = None if obj.source is None else TypeOf(obj.source)
        owner = machine.class_of(obj.python_type(machine), path)
    if start.live not in owner.live.__mro__:  # the message differs between Python versions
        raise GraphBreak(UnsupportedArguments.of(name="super", what="an object of another class"))
    return SuperValue(start.live, obj, owner)


def _implicit_super(machine: Machine) -> tuple[Value, Value]:
    """Model `super()`: uses the __class__ cell and the first argument of the calling frame."""
    # CPython reads the first local and the free variable `__class__` of the calling frame; a `self`
    # that a closure captures is in a cell there.
    frame = machine.frame
    cell = frame.slots.get("__class__")
    names = frame.program.body.parameters
    if cell is None or not names or names[0] not in frame.slots:
        raise machine.error(RuntimeError, "super(): no arguments")
    first = frame.slots[names[0]].realize(machine)
    if isinstance(first, CellValue):
        first = first.get_attr(machine, "cell_contents").realize(machine)
    start = cell.realize(machine).get_attr(machine, "cell_contents").realize(machine)
    return start, first


# -- methods of object -----------------------------------------------------------------------------


def _instance(args: Args, name: str) -> InstanceValue:
    if not args or not isinstance(args[0], InstanceValue):
        raise GraphBreak(UnknownCFunction.of(name=name))
    return args[0]


@handles(object.__new__)
def _object_new(machine: Machine, cls: Value, /, *args: Value, **kwargs: Value) -> Value:
    if not isinstance(cls, ClassValue) or not is_plain_class(cls.live):
        raise GraphBreak(UnknownCFunction.of(name="object.__new__"))
    return InstanceValue(cls)


@handles(type.__call__)
def _type_call(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    cls = args[0]
    if not isinstance(cls, ClassValue) or handler_of(cls.live) is not None:
        raise GraphBreak(UnknownCFunction.of(name="type.__call__"))
    return cls.instantiate(machine, args[1:], kwargs)


@handles(object.__init__, object.__init_subclass__)
def _object_init(machine: Machine, /, *args: Value, **kwargs: Value) -> None:
    # Whether object.__init__ raises for arguments depends on whether the class overrides `__new__`
    # or `__init__` (object_init in typeobject.c). Python decides that.
    if len(args) > 1 or kwargs:
        raise GraphBreak(UnsupportedArguments.of(name="object.__init__", what="arguments"))


# Before 3.14 dict has a slot wrapper of its own around the same C function.
@handles(*{object.__getattribute__, dict.__getattribute__})
def _object_getattribute(machine: Machine, obj: Value, name: Value) -> Value:
    owner = _instance([obj], "object.__getattribute__")
    return owner.plain_attr(machine, name.as_constant(machine))


@handles(types.SimpleNamespace.__init__)
def _namespace_init(machine: Machine, obj: Value, /, **kwargs: Value) -> None:
    owner = _instance([obj], "SimpleNamespace.__init__")
    for name, value in kwargs.items():
        owner.store_attr(machine, name, value)


calls({
    object.__setattr__: lambda machine, owner, name, value: _instance(
        [owner], "object.__setattr__"
    ).store_attr(machine, name.as_constant(machine), value),
    object.__delattr__: lambda machine, owner, name: _instance(
        [owner], "object.__delattr__"
    ).store_attr(machine, name.as_constant(machine), None),
})  # fmt: skip


@handles(tuple.__new__)
def _tuple_new(machine: Machine, cls: Value, iterable: Value | None = None) -> Value:
    items = [] if iterable is None else unpack(machine, iterable)
    if isinstance(cls, ClassValue) and cls.live is tuple:
        return TupleValue(items)
    # The `__new__` that collections.namedtuple generates calls tuple.__new__ with the class and one
    # tuple.
    if isinstance(cls, ClassValue) and is_named_tuple(cls.live):
        return NamedTupleValue(cls, items)
    raise GraphBreak(UnknownCFunction.of(name="tuple.__new__"))


def _exception_init(machine: Machine, error: Value, *parts: Value) -> None:
    """Model BaseException.__init__, which stores its arguments."""
    if not isinstance(error, ExceptionValue):
        raise GraphBreak(UnknownCFunction.of(name=name_of(BaseException.__init__)))
    error.args = parts


# Slot wrappers of one C function; OSError, ImportError and others parse their arguments.
_SAME_INIT = (BaseException, Exception, ValueError, TypeError, RuntimeError, ArithmeticError,
              LookupError, AssertionError, NotImplementedError)  # fmt: skip
handles(*{kind.__init__ for kind in _SAME_INIT})(_exception_init)  # 3.14: one wrapper for several
