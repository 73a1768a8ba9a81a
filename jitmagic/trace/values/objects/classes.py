"""Models classes: attribute lookup along the MRO, descriptors and instantiation.

Input: a class, known by identity. Output: its attributes, bound by the descriptor protocol, and new
instances, whose `__init__` is inlined. Each lookup guards the class where the attribute was found,
or its absence from the MRO.
"""

from __future__ import annotations

import functools
import operator
import types
import typing
from collections.abc import Callable
from typing import TypeGuard, TypeVar
from weakref import WeakKeyDictionary

from torch.nn.attention import SDPBackend

from ....guards.guard import IdentityIs, TypeIs, ValueEquals
from ....guards.live_objects import referent_of
from ....guards.source import InstanceDict, Item, Referent, SlotAttr, Source, TypeAttr, TypeOf
from ....late_tables import EVERY, LateTable, class_name
from ...breaks import Finalizer, GraphBreak, UnknownCFunction, UnknownObject, UnsupportedAttribute
from ...builtins.registry import handler_of
from ...result import Constant, Recipe
from ...wrap import wraps
from ..base import Args, Builder, Kwargs, Machine, Value
from ..containers.mappings import WithAttributes
from ..containers.read_only import ProxyValue
from ..containers.sequences import TupleValue
from .callables import BuiltinMethodValue, BuiltinValue, builtin_value, name_of
from .class_facts import (
    NOTHING,
    attribute_of_class,
    guard_attribute,
    guard_bases,
    guard_not_shadowed,
    guarded_attribute,
    is_data_descriptor,
    is_library_class,
    may_change,
    path_of_class,
)
from .constants import ATOMS, ConstantValue, fold
from .functions import BoundMethodValue
from .monkey_patches import TENSOR

__all__ = [
    "HEAP_TYPE",
    "PLAIN_BASES",
    "ClassValue",
    "SuperValue",
    "bind",
    "class_value",
    "constructs",
    "is_plain_class",
    "is_python_class",
    "models_classes_of",
]

_T = TypeVar("_T")
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_C_PARTS = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
)
# Their `__get__` returns the descriptor itself when it is read from the class.
_SELF_WITHOUT_INSTANCE = (
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    property,
    functools.cached_property,
)
# pybind11's metaclass only differs for instance methods: torch's enums written in C++ have it.
_PLAIN_LOOKUPS = (type.__getattribute__, type(SDPBackend).__getattribute__)
_GENERIC = (list, tuple, dict, set, frozenset, type, types.UnionType)  # typing.Union since 3.14
PLAIN_BASES = (object, types.SimpleNamespace)  # built-in, with a plain instance dictionary
_STANDARD_GETSETS = ("__dict__", "__weakref__")
_CLASS_CONSTANTS = ("__name__", "__qualname__", "__module__", "__doc__")
# typing.Generic is written in C since Python 3.12; it adds nothing to instances.
_PLAIN: WeakKeyDictionary[type, bool] = WeakKeyDictionary({typing.Generic: True})


def is_plain_class(kind: type) -> bool:
    """Return whether class statements define the class and all its bases but PLAIN_BASES."""
    return all(is_python_class(base) for base in kind.__mro__ if base not in PLAIN_BASES)


def is_python_class(kind: type) -> bool:
    """Return whether a class statement defined the class, and it has no C methods of its own."""
    plain = _PLAIN.get(kind)
    if plain is None:
        plain = _PLAIN[kind] = bool(kind.__flags__ & HEAP_TYPE) and not _has_c_parts(kind)
    return plain


def _has_c_parts(kind: type) -> bool:
    for name, part in vars(kind).items():
        own = getattr(part, "__objclass__", None) is kind
        if own and isinstance(part, _C_PARTS) and name not in _STANDARD_GETSETS:
            return True
        if isinstance(part, types.BuiltinFunctionType) and part.__self__ is kind:
            return True
    return False


class ClassValue(WithAttributes):
    """A class, whose attributes the traced code may set."""

    __slots__ = ("_known", "live")
    by_identity = True

    def __init__(self, live: type, source: Source | None = None) -> None:
        super().__init__(source)
        self.live = live
        self._known: dict[str, tuple[object, Value]] = {}

    def python_type(self, machine: Machine) -> type:
        return type(self.live)

    def identity(self) -> object:
        return self.live

    def hash_key(self, machine: Machine) -> object:
        for name in ("__hash__", "__eq__"):
            if self.metaclass_attribute(machine, name) is not vars(object)[name]:
                self.refuse(machine, "hash()")
        return self.live

    def is_constant(self, machine: Machine) -> bool:
        return True

    def as_constant(self, machine: Machine) -> type:
        return self.live

    def truth(self, machine: Machine) -> bool:
        for name in ("__bool__", "__len__"):
            if self.metaclass_attribute(machine, name) is not NOTHING:
                self.refuse(machine, "bool()")
        return True

    # -- attributes ------------------------------------------------------------------------------

    def find(self, machine: Machine, name: str, after: type | None = None) -> tuple[object, Value]:
        """Return (raw object, its Value) of a name on the MRO after the class `after`.

        The raw object is NOTHING if there is none. The lookup is guarded here, unless the Value has
        a source: then it is guarded when the Value is realized.
        """
        mro = self.live.__mro__
        start = mro.index(after) + 1 if after is not None else 0
        for position, base in enumerate(mro[start:], start):
            if (stored := machine.class_of(base, None).stored(name)) is not None:
                return stored, stored
            if name in vars(base):
                return self._found(machine, name, position, start)
        guard_attribute(machine, self.live, name, NOTHING, start)
        return NOTHING, self

    def peek(self, machine: Machine, name: str) -> object:
        """Return the raw attribute, or the Value that the traced code stored; installs no guard."""
        for base in self.live.__mro__:
            if (stored := machine.class_of(base, None).stored(name)) is not None:
                return stored  # type: ignore[no-any-return]
            if name in vars(base):
                return vars(base)[name]
        return NOTHING

    def _found(
        self, machine: Machine, name: str, position: int, start: int
    ) -> tuple[object, Value]:
        key = f"{start}.{name}" if start else name
        if key not in self._known:
            raw = vars(self.live.__mro__[position])[name]
            value = self._value_of(machine, raw, name, position, whole=start == 0)
            self._known[key] = raw, value
            if start or value.source is None:
                guard_attribute(machine, self.live, name, raw, start)
        return self._known[key]

    def _value_of(
        self, machine: Machine, raw: object, name: str, position: int, whole: bool
    ) -> Value:
        owner = self.live.__mro__[position]
        if not owner.__flags__ & HEAP_TYPE and type(raw) not in ATOMS:
            return builtin_value(raw)  # built-in classes cannot be changed
        if self.source is None:
            if type(raw) in ATOMS:
                return machine.constant(raw)
            if TENSOR.get(name) is raw and attribute_of_class(self.live, name) is raw:
                guard_attribute(machine, self.live, name, raw)
                return builtin_value(raw)
            self.source = path_of_class(machine, self.live)
        if self.source is None:
            raise GraphBreak(UnsupportedAttribute.of(name=name, type=f"class {self.live.__name__}"))
        base = self.source
        if not whole:
            base = Item(SlotAttr(base, "__mro__"), position)
        return machine.lazy(raw, TypeAttr(base, name), certain=False)

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name in _CLASS_CONSTANTS:
            return self._constant(machine, name)
        if name == "__dict__" and self.source is not None:
            self.metaclass_attribute(machine, "__getattribute__")
            return ProxyValue(self.table(machine), SlotAttr(self.source, name))
        if name == "__mro__" or (name == "__bases__" and is_library_class(self.live)):
            guard_bases(machine, self.live)
            return TupleValue([machine.constant(base) for base in getattr(self.live, name)])
        if self.metaclass_attribute(machine, "__getattribute__") not in _PLAIN_LOOKUPS:
            self.refuse(machine, f"attribute {name!r}")
        metaclass, of_metaclass = type(self.live), attribute_of_class(type(self.live), name)
        raw, value = self.find(machine, name)
        if raw is NOTHING or is_data_descriptor(of_metaclass):
            return self._from_metaclass(machine, name)
        guard_not_shadowed(machine, metaclass, name, of_metaclass)
        return bind(machine, raw, value, None, self, name)

    def metaclass_attribute(self, machine: Machine, name: str) -> object:
        """Return the raw attribute of the metaclass, or NOTHING; guarded."""
        metaclass = type(self.live)
        raw = attribute_of_class(metaclass, name)
        guard_attribute(machine, metaclass, name, raw)
        if self.source is not None and may_change(metaclass):
            machine.guard(TypeIs(self.source, metaclass))
        return raw

    def _constant(self, machine: Machine, name: str) -> Value:
        text = getattr(self.live, name)
        if text is not None and type(text) is not str:  # `__doc__` may be any object
            self.refuse(machine, f"attribute {name!r}")
        if self.source is not None and self.live.__flags__ & HEAP_TYPE:
            # `__name__` and `__qualname__` are in the type struct, `__module__` in the `__dict__`.
            in_dict = name in vars(self.live)
            path = TypeAttr(self.source, name) if in_dict else SlotAttr(self.source, name)
            machine.guard(ValueEquals(path, text))
        return machine.constant(text)

    def _bound_to_metaclass(self, machine: Machine, name: str) -> Value:
        """Return an attribute of the metaclass, bound to this class."""
        self.source = self.source or path_of_class(machine, self.live)
        if self.source is None:
            self.refuse(machine, f"attribute {name!r} of its metaclass")
        kind = machine.class_of(type(self.live), TypeOf(self.source))
        raw, value = kind.find(machine, name)
        return bind(machine, raw, value, self, kind, name)

    def _from_metaclass(self, machine: Machine, name: str) -> Value:
        of_type = attribute_of_class(type, name)
        if of_type is NOTHING and self.metaclass_attribute(machine, name) is not NOTHING:
            return self._bound_to_metaclass(machine, name)
        # Not hasattr(): it may run user code, and reading `__annotations__` creates them.
        for candidate in (name, "__getattr__"):
            if self.metaclass_attribute(machine, candidate) is not NOTHING:
                self.refuse(machine, f"attribute {name!r}")
        message = f"type object '{self.live.__name__}' has no attribute '{name}'"
        raise machine.error(AttributeError, message)

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        setter = self.metaclass_attribute(machine, "__setattr__")
        # A special method also updates a type slot, which changes operators of all instances.
        special = name.startswith("__") or setter is not type.__setattr__
        special |= _is_descriptor(value.realize(machine).python_type(machine))
        if special or not self.live.__flags__ & HEAP_TYPE or self.source is None:
            self.refuse(machine, f"setting attribute {name!r}")
        self.table(machine).set_item(machine, machine.constant(name), value)
        machine.effects.mutated[id(self)] = self  # lookups read the classes, not their dictionaries

    def stored(self, name: str) -> Value | None:
        """Return the attribute that the traced code has stored on the class itself, or None."""
        return None if self.names is None else self.names.store.stored(name)

    def live_table(self) -> dict[str, object]:
        # vars() of a class returns a mappingproxy, which gives guards no access to the dictionary.
        table: dict[str, object] = referent_of(vars(self.live))
        return table

    def table_path(self, source: Source) -> Source:
        return Referent(SlotAttr(source, "__dict__"))  # the dictionary that the proxy wraps

    # -- calls -----------------------------------------------------------------------------------

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        handler = handler_of(self.live)
        if handler is not None:
            return handler(machine, args, kwargs)
        called = self.metaclass_attribute(machine, "__call__")
        if isinstance(called, type) and not may_change(called):  # TypedDict's metaclass has `dict`
            instead: Value = machine.class_of(called, None)
            return instead.call(machine, args, kwargs)
        if isinstance(called, types.FunctionType):
            method: Value = self._bound_to_metaclass(machine, "__call__").realize(machine)
            return method.call(machine, args, kwargs)
        return self.instantiate(machine, args, kwargs)

    def instantiate(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        """Return `type.__call__(self, *args, **kwargs)`."""
        guard_bases(machine, self.live)
        # When `__del__` runs is observable, and it depends on all references to the object.
        if isinstance(guarded_attribute(machine, self.live, "__del__"), types.FunctionType):
            raise GraphBreak(Finalizer.of(what=f"{self.live.__name__} has a __del__"))
        constructor = _constructor_for(self.live)
        if constructor is not None:
            return constructor(machine, self, args, kwargs)
        raise GraphBreak(UnknownCFunction.of(name=name_of(self.live)))

    def get_item(self, machine: Machine, key: Value) -> Value:
        """Fold `list[int]` and the like, which typing.cast() and similar functions take."""
        if self.live in _GENERIC and key.is_constant(machine):
            return fold(machine, operator.getitem, self, key)
        self.refuse(machine, "subscription")

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        """Fold `int | None`, a union for isinstance()."""
        plain = attribute_of_class(type(self.live), "__or__") is type.__dict__["__or__"]
        parts = (other, self) if reflected else (self, other)
        if op != "|" or not plain or not isinstance(other, ClassValue | ConstantValue):
            self.refuse(machine, f"operator {op}")
        return fold(machine, operator.or_, *parts)

    def recipe(self, builder: Builder) -> Recipe:
        return Constant(self.live)

    def describe(self) -> str:
        return f"class {self.live.__name__}"


_MODELS: LateTable[type, type[ClassValue]] = LateTable("metaclasses", class_name)


def models_classes_of(metaclass: type) -> Callable[[type[ClassValue]], type[ClassValue]]:
    """Register the Value class for classes whose metaclass is exactly this one."""

    def register(model: type[ClassValue]) -> type[ClassValue]:
        _MODELS[metaclass] = model
        return model

    return register


def class_value(kind: type, source: Source | None) -> ClassValue:
    """Create a Value for a class; `Machine.class_of` keeps one per trace."""
    return _MODELS.get(type(kind), ClassValue)(kind, source)


Constructor = Callable[[Machine, ClassValue, Args, Kwargs], Value]
_Row = tuple[Callable[[type], bool], Constructor]
_CONSTRUCTORS: LateTable[str, list[_Row]] = LateTable("constructors")


def constructs(
    applies: Callable[[type], bool], *, before_others: bool = False
) -> Callable[[Constructor], Constructor]:
    """Register the function that models calls of classes with `applies(cls)`; first match wins."""

    def register(constructor: Constructor) -> Constructor:
        rows = _CONSTRUCTORS.setdefault(EVERY, [])
        rows.insert(0 if before_others else len(rows), (applies, constructor))
        return constructor

    return register


def _constructor_for(kind: type) -> Constructor | None:
    return next((make for applies, make in _CONSTRUCTORS.get(EVERY, ()) if applies(kind)), None)


def bind(
    machine: Machine,
    raw: object,
    value: Value,
    instance: Value | None,
    owner: ClassValue,
    name: str,
) -> Value:
    """Return the attribute after the descriptor protocol; `value` is the Value of `raw`."""
    if isinstance(raw, Value):  # written by the traced code
        real = value.realize(machine)
        plain = instance is None or real.python_type(machine) is not types.FunctionType
        return real if plain else BoundMethodValue(real, instance or real)
    if isinstance(
        raw, types.FunctionType | _C_PARTS[0] | _C_PARTS[1] | functools._lru_cache_wrapper
    ):
        return value if instance is None else BoundMethodValue(value, instance)
    if isinstance(raw, types.ClassMethodDescriptorType):
        return BuiltinMethodValue(owner, raw.__objclass__, raw.__name__)
    if _is_like(raw, machine, staticmethod) or _is_like(raw, machine, classmethod):
        function = machine.lazy(
            raw.__func__, SlotAttr(_guard_descriptor(machine, raw, value), "__func__")
        )
        return function if isinstance(raw, staticmethod) else BoundMethodValue(function, owner)
    if instance is None and isinstance(raw, _SELF_WITHOUT_INSTANCE):
        return value
    if _is_like(raw, machine, property) and instance is not None:
        return _read_property(machine, raw, value, instance, name)
    if _is_like(raw, machine, functools.cached_property) and instance is not None:
        return _read_cached(machine, raw, value, instance)
    getter = attribute_of_class(type(raw), "__get__")
    if getter is NOTHING:
        guard_attribute(machine, type(raw), "__get__", NOTHING)
        return value
    if isinstance(getter, types.FunctionType) and value.source is not None:
        _guard_descriptor(machine, raw, value)
        function = machine.wrap(getter, TypeAttr(TypeOf(value.source), "__get__"))
        receiver = machine.constant(None) if instance is None else instance
        return function.call(machine, [value, receiver, owner], {})
    raise GraphBreak(UnsupportedAttribute.of(name=name, type=owner.live.__name__))


def _is_descriptor(kind: type) -> bool:
    """Return whether instances of the class are descriptors other than functions."""
    names = ("__get__", "__set__", "__delete__")
    has_any = any(attribute_of_class(kind, name) is not NOTHING for name in names)
    return has_any and kind is not types.FunctionType


def _is_like(raw: object, machine: Machine, kind: type[_T]) -> TypeGuard[_T]:
    """Return whether `raw` is a `kind` whose class does not override `__get__`; guarded."""
    if not isinstance(raw, kind):
        return False
    return guarded_attribute(machine, type(raw), "__get__") is vars(kind)["__get__"]


def _guard_descriptor(machine: Machine, raw: object, value: Value) -> Source:
    """Guard the identity of the descriptor and return its source."""
    if value.source is None:
        raise GraphBreak(UnknownObject.of(what="a descriptor", type=type(raw).__name__))
    machine.guard(IdentityIs(value.source, raw))
    return value.source


def _read_property(
    machine: Machine, raw: property, value: Value, instance: Value, name: str
) -> Value:
    if raw.fget is None:
        message = f"property '{name}' of object has no getter"
        raise machine.error(AttributeError, message)
    getter = machine.wrap(raw.fget, SlotAttr(_guard_descriptor(machine, raw, value), "fget"))
    return getter.call(machine, [instance], {})


def _read_cached(
    machine: Machine, raw: functools.cached_property[object], value: Value, instance: Value
) -> Value:
    """Compute a cached_property and store it in the instance, which has no entry yet."""
    source = Item(InstanceDict(_guard_descriptor(machine, raw, value)), "func")
    computed = machine.wrap(raw.func, source).call(machine, [instance], {})
    assert raw.attrname is not None
    # cached_property writes to the `__dict__` itself, so `__setattr__` does not run.
    instance.set_entry(machine, raw.attrname, computed)
    return computed


class SuperValue(Value):
    """A `super(start, obj)`: reads attributes after `start` on the MRO of the object's class."""

    __slots__ = ("obj", "owner", "start")

    def __init__(self, start: type, obj: Value, owner: ClassValue) -> None:
        super().__init__()
        self.start = start
        self.obj = obj
        self.owner = owner

    def python_type(self, machine: Machine) -> type:
        return super

    def get_attr(self, machine: Machine, name: str) -> Value:
        if (known := self.obj.super_attr(machine, self.start, name)) is not None:
            return known
        raw, value = self.owner.find(machine, name, after=self.start)
        if raw is NOTHING:
            message = f"'super' object has no attribute '{name}'"
            raise machine.error(AttributeError, message)
        instance = None if self.obj is self.owner else self.obj
        return bind(machine, raw, value, instance, self.owner, name)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(super, (builder.constant(self.start), builder(self.obj)))


@wraps(type, subclasses=True)
def _wrap_class(machine: Machine, obj: type, source: Source) -> Value:
    machine.guard(IdentityIs(source, obj))
    if type(obj) is not type:  # `cls.__class__` is assignable: the metaclass may change
        machine.guard(IdentityIs(TypeOf(source), type(obj)))
    cls = machine.class_of(obj, source)
    assert isinstance(cls, ClassValue)
    return cls


@wraps(property, functools.cached_property, staticmethod, classmethod)
def _wrap_descriptor(machine: Machine, obj: object, source: Source) -> Value:
    machine.guard(IdentityIs(source, obj))
    return BuiltinValue(obj, source)
