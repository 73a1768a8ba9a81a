"""Models instances of plain Python classes: attributes, special methods, construction.

Input: a live object, guarded by its exact type, or one that the traced code creates. Output: the
results of its inlined methods; attributes from `__dict__` or slots; writes, as effects.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterable, Iterator

from ....guards.guard import IdentityIs, TypeIs
from ....guards.source import SlotAttr, Source, TypeAttr, TypeOf
from ...breaks import GraphBreak, UnknownObject
from ...result import DelAttr, Effect, NewInstance, Recipe
from ...wrap import wraps
from ..base import Args, Builder, Kwargs, Machine, ObservedError, Value
from ..containers.iterators import StepIterator
from ..containers.keys import identity_key, user_key
from ..containers.mappings import DictValue, WithAttributes
from ..containers.text_inputs import text_input
from .class_facts import (
    NOTHING,
    attribute_of_class,
    guard_attribute,
    guard_not_shadowed,
    guard_precedence,
    guarded_attribute,
    is_data_descriptor,
    is_standard,
)
from .classes import PLAIN_BASES, ClassValue, bind, constructs, is_plain_class
from .opaque import OpaqueValue
from .operators import RemainingItems, compare, equal
from .special_methods import BINARY_METHODS, UNARY_METHODS, by_special, implemented

__all__ = ["InstanceValue", "construct", "wrap_as"]

# SimpleNamespace's `__dict__` is a member descriptor; that of other classes is a getset.
_OF_NAMESPACES = vars(types.SimpleNamespace)["__dict__"]
_C_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType)


# `iter()` of an object that has `__getitem__` but no `__iter__` has a type of its own.
class _Sequence:
    def __getitem__(self, index: int) -> None: ...


class InstanceValue(WithAttributes):
    """An instance of a plain Python class.

    `slots` maps each slot read or written so far to its value, or None if it is empty.
    """

    __slots__ = ("cls", "live", "slots")
    searched: tuple[str, ...] = ()  # names of tables that a torch `__getattr__` searches

    def __init__(self, cls: ClassValue, live: object = None, source: Source | None = None) -> None:
        super().__init__(source)
        self.cls = cls
        self.live = live
        self.slots: dict[str, Value | None] = {}

    def python_type(self, machine: Machine) -> type:
        return self.cls.live

    def hash_key(self, machine: Machine) -> object:
        return identity_key(machine, self) or user_key(machine, self, self)

    # -- attributes ------------------------------------------------------------------------------

    def get_attr(self, machine: Machine, name: str) -> Value:
        """Call `type(self).__getattribute__`, then `__getattr__` if that raises AttributeError."""
        try:
            if self.inherits_default(machine, "__getattribute__"):
                return self.plain_attr(machine, name)
            return self.call_accessor(machine, "__getattribute__", name)
        except ObservedError as observed:
            if not observed.error.matches(machine, AttributeError):
                raise
            if self.cls.find(machine, "__getattr__")[0] is NOTHING:
                raise
        return self.call_accessor(machine, "__getattr__", name)

    def call_accessor(self, machine: Machine, method: str, name: str, *more: Value) -> Value:
        """Inline the class's accessor `method` (such as `__getattr__`), written in Python."""
        bound = self._bound(machine, method).realize(machine)
        return bound.call(machine, [machine.constant(name), *more], {})

    def plain_attr(self, machine: Machine, name: str) -> Value:
        """Return `object.__getattribute__(self, name)`."""
        if name == "__dict__":
            return self.own_table(machine)
        if name == "__class__" and is_standard(machine, self.cls.live, name):
            return self.cls
        raw = self.cls.peek(machine, name)
        # A slot's member descriptor is a data descriptor, but `own` reads the slot.
        if is_data_descriptor(raw) and not isinstance(raw, types.MemberDescriptorType):
            guard_precedence(machine, raw)
            return self._bound(machine, name)
        own = self.own(machine, name)
        if own is not None:
            guard_not_shadowed(machine, self.cls.live, name, raw)
            return own
        if raw is NOTHING or isinstance(raw, types.MemberDescriptorType):
            guarded_attribute(machine, self.cls.live, name)
            raise self.no_attribute(machine, name)
        return self._bound(machine, name)

    def own_table(self, machine: Machine) -> Value:
        """Return `self.__dict__`."""
        raw = attribute_of_class(self.cls.live, "__dict__")
        if not isinstance(raw, types.GetSetDescriptorType) and raw is not _OF_NAMESPACES:
            self.refuse(machine, "attribute '__dict__'")
        return super().own_table(machine)

    def live_table(self) -> dict[str, object]:
        table: dict[str, object] = object.__getattribute__(self.live, "__dict__")
        return table

    def tables_after(self, machine: Machine, name: str) -> list[DictValue] | None:
        """Return the dictionaries to search for an attribute that the class lacks; None if its
        `__getattr__` would run."""
        table = self.table(machine)
        return [table] if name in table.store.live else None

    def _bound(self, machine: Machine, name: str) -> Value:
        raw, value = self.cls.find(machine, name)
        return bind(machine, raw, value, self, self.cls, name)

    def inherits_default(self, machine: Machine, name: str) -> bool:
        """Return whether the class inherits a special method from `object` or an equivalent."""
        raw = attribute_of_class(self.cls.live, name)
        # dict has a `__getattribute__` wrapper of its own, around the C function that object uses.
        if raw not in [vars(base).get(name) for base in (*PLAIN_BASES, dict)]:
            return False
        guard_attribute(machine, self.cls.live, name, raw)
        return True

    def no_attribute(self, machine: Machine, name: str) -> ObservedError:
        message = f"'{self.cls.live.__name__}' object has no attribute '{name}'"
        return machine.error(AttributeError, message)

    def own(self, machine: Machine, name: str) -> Value | None:
        """Return the instance's own entry under `name` (dictionary or slot), or None."""
        if self._has_slot(name):
            if name not in self.slots:
                self.slots[name] = self._live_slot(machine, name)
            return self.slots[name]
        return self.table(machine).store.get(name) if self.cls.live.__dictoffset__ else None

    def _live_slot(self, machine: Machine, name: str) -> Value | None:
        if self.source is None:
            return None
        slot = attribute_of_class(self.cls.live, name)
        assert isinstance(slot, types.MemberDescriptorType)
        try:
            content = slot.__get__(self.live)
        except AttributeError:
            raise GraphBreak(UnknownObject.of(what="an empty slot", type=self.describe())) from None
        return machine.lazy(content, SlotAttr(self.source, name), certain=False)

    def _has_slot(self, name: str) -> bool:
        return isinstance(attribute_of_class(self.cls.live, name), types.MemberDescriptorType)

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        if self.inherits_default(machine, "__setattr__"):
            self.store_attr(machine, name, value)
        else:
            self.call_accessor(machine, "__setattr__", name, value)

    def store_attr(self, machine: Machine, name: str, value: Value | None) -> None:
        """Do what `object.__setattr__` does, or `object.__delattr__` if `value` is None."""
        if name == "__dict__" and value is not None and value is self.own_table(machine):
            return  # `obj.__dict__ |= other` stores the dictionary itself again
        raw = self.cls.peek(machine, name)
        member = isinstance(raw, types.MemberDescriptorType)
        if is_data_descriptor(raw) and not member:
            self._through_descriptor(machine, name, value)
            return
        guard_not_shadowed(machine, self.cls.live, name, raw)
        if member:
            self._store_slot(machine, name, value)
        elif not self.cls.live.__dictoffset__:
            raise self.no_attribute(machine, name)
        else:
            self.set_entry(machine, name, value)

    def _store_slot(self, machine: Machine, name: str, value: Value | None) -> None:
        if value is not None:
            self.slots[name] = value
            machine.effects.set_attr(self, name, value)
            return
        if (old := self.own(machine, name)) is None:
            raise machine.error(AttributeError, name)
        old.realize(machine)  # guards that the slot is filled: nothing else reads it
        self.slots[name] = None
        machine.effects.del_attr(self, name)

    def set_entry(self, machine: Machine, name: str, value: Value | None) -> None:
        table, key = self.table(machine), machine.constant(name)
        if value is not None:
            table.store.put(name, key, value)
        elif not table.store.erase(name, key):
            raise machine.error(AttributeError, name)
        table.changed(machine)

    def attribute_effect(self, builder: Builder, name: str, value: Value | None) -> Effect | None:
        kind = self.cls.live
        # setattr() would call the descriptor; only a write to `__dict__` bypasses it.
        if is_data_descriptor(attribute_of_class(kind, name)):
            return None
        if value is not None:
            return builder.set_attr(self, name, value)
        plain = attribute_of_class(kind, "__delattr__") is object.__delattr__
        return DelAttr(builder(self), name) if plain else None

    def _through_descriptor(self, machine: Machine, name: str, value: Value | None) -> None:
        raw, descriptor = self.cls.find(machine, name)
        if self._set_by_python(machine, raw, descriptor, value):
            return
        if not isinstance(raw, property) or descriptor.source is None:
            self.refuse(machine, f"setting attribute {name!r}")
        part = "fdel" if value is None else "fset"
        function = getattr(raw, part)
        if function is None:
            message = f"property '{name}' of '{self.cls.live.__name__}' object has no setter"
            raise machine.error(AttributeError, message)
        descriptor.realize(machine)
        method = machine.wrap(function, SlotAttr(descriptor.source, part))
        method.call(machine, [self] if value is None else [self, value], {})

    def _set_by_python(
        self, machine: Machine, raw: object, descriptor: Value, value: Value | None
    ) -> bool:
        """Call a `__set__` or `__delete__` written in Python; return False if there is none."""
        method = "__delete__" if value is None else "__set__"
        function = attribute_of_class(type(raw), method)
        if not isinstance(function, types.FunctionType) or descriptor.source is None:
            return False
        machine.guard(IdentityIs(descriptor.source, raw))
        called = machine.wrap(function, TypeAttr(TypeOf(descriptor.source), method))
        called.call(machine, [descriptor, self, *([] if value is None else [value])], {})
        return True

    def del_attr(self, machine: Machine, name: str) -> None:
        if not self.inherits_default(machine, "__delattr__"):
            self.refuse(machine, f"deleting attribute {name!r}")
        self.store_attr(machine, name, None)

    # -- special methods -------------------------------------------------------------------------

    def special(self, machine: Machine, name: str, *args: Value) -> Value | None:
        """Return `type(self).__name__(self, *args)`, or None if no Python class defines it."""
        raw, value = self.cls.find(machine, name)
        if isinstance(raw, _C_METHODS) and raw.__objclass__ is not object:
            self.refuse(machine, name)
        if raw is NOTHING or isinstance(raw, _C_METHODS):
            return None
        method = bind(machine, raw, value, self, self.cls, name).realize(machine)
        return method.call(machine, list(args), {}).realize(machine)

    def _required(self, machine: Machine, name: str, *args: Value) -> Value:
        result = self.special(machine, name, *args)
        if result is None:
            message = f"'{self.cls.live.__name__}' object has no {name}"
            raise machine.error(TypeError, message)
        return result

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        raw, value = self.cls.find(machine, "__call__")
        if raw is NOTHING:
            message = f"'{self.cls.live.__name__}' object is not callable"
            raise machine.error(TypeError, message)
        method = bind(machine, raw, value, self, self.cls, "__call__").realize(machine)
        return method.call(machine, args, kwargs)

    def get_item(self, machine: Machine, key: Value) -> Value:
        return self._required(machine, "__getitem__", key)

    def get_item_lazily(self, machine: Machine, key: Value) -> Value:
        return self.get_item(machine, key if text_input(key) else key.realize(machine))

    def set_item(self, machine: Machine, key: Value, value: Value) -> None:
        self._required(machine, "__setitem__", key, value)

    def del_item(self, machine: Machine, key: Value) -> None:
        self._required(machine, "__delitem__", key)

    def length(self, machine: Machine) -> int:
        return int(self.length_value(machine).as_constant(machine))

    def length_value(self, machine: Machine) -> Value:
        found = self._required(machine, "__len__")
        # CPython raises TypeError or ValueError for these; the program itself does.
        if not issubclass(found.python_type(machine), int):
            self.refuse(machine, "len()")
        if not compare(machine, ">=", found, machine.constant(0)).truth(machine):
            self.refuse(machine, "len()")
        return found if found.varies else machine.constant(int(found.as_constant(machine)))

    def contains(self, machine: Machine, item: Value) -> Value:
        result = self.special(machine, "__contains__", item)
        if result is not None:
            return machine.constant(result.truth(machine))
        items = RemainingItems(machine, self.iterate(machine).realize(machine))
        return machine.constant(any(equal(machine, candidate, item) for candidate in items))

    def contains_lazily(self, machine: Machine, item: Value) -> Value:
        return self.contains(machine, item if text_input(item) else item.realize(machine))

    def iterate(self, machine: Machine) -> Value:
        result = self.special(machine, "__iter__")
        if result is not None:
            return result
        if self.cls.find(machine, "__getitem__")[0] is NOTHING:
            self.refuse(machine, "iteration")
        items = self._items(machine, itertools.count())
        return StepIterator(machine, type(iter(_Sequence())), items)

    def backwards(self, machine: Machine) -> Value:
        """Return `reversed(self)`."""
        result = self.special(machine, "__reversed__")
        if result is not None:
            return result
        last = self.length(machine) - 1
        return StepIterator(machine, reversed, self._items(machine, range(last, -1, -1)))

    def _items(self, machine: Machine, indices: Iterable[int]) -> Iterator[Value]:
        """Yield items by the sequence protocol, until `__getitem__` raises IndexError."""
        for index in indices:
            try:
                yield self.get_item(machine, machine.constant(index))
            except ObservedError as observed:
                # iter_iternext (Objects/iterobject.c) ends the iteration at either exception.
                if observed.error.matches(machine, IndexError, StopIteration):
                    return
                raise

    def next(self, machine: Machine) -> Value | None:
        try:
            return self._required(machine, "__next__")
        except ObservedError as observed:
            if observed.error.matches(machine, StopIteration):
                return None
            raise

    def truth(self, machine: Machine) -> bool:
        for name in ("__bool__", "__len__"):
            result = self.special(machine, name)
            if result is not None:
                return result.truth(machine)
        return True

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if reflected and self.python_type(machine) is other.python_type(machine):
            return None  # CPython tries only the left operand if both have one type
        name = f"__{'r' if reflected else ''}{BINARY_METHODS[op]}__"
        return implemented(self.special(machine, name, other))

    def inplace(self, machine: Machine, op: str, other: Value) -> Value | None:
        return implemented(self.special(machine, f"__i{BINARY_METHODS[op]}__", other))

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        return by_special(machine, self, op, other)

    def unary(self, machine: Machine, op: str) -> Value:
        return self._required(machine, f"__{UNARY_METHODS[op]}__")

    def enter(self, machine: Machine) -> tuple[Value, Value]:
        # As in CPython, a class without `__exit__` is refused before its `__enter__` is called.
        raw, value = self.cls.find(machine, "__exit__")
        if raw is NOTHING:
            self.refuse(machine, "with")
        leave = bind(machine, raw, value, self, self.cls, "__exit__").realize(machine)
        return leave, self._required(machine, "__enter__")

    # -- exits -----------------------------------------------------------------------------------

    def recipe(self, builder: Builder) -> Recipe:
        built_in = next(base for base in self.cls.live.__mro__ if base in PLAIN_BASES)
        if built_in is object:
            return NewInstance(builder(self.cls))
        return builder.invoke(built_in.__new__, (builder(self.cls),))

    def fill(self, builder: Builder) -> Iterable[Effect]:
        """Yield the effects that set the attributes of a new object."""
        for name, value in self.slots.items():
            if value is not None:
                yield builder.set_attr(self, name, value)
        yield from super().fill(builder)

    def is_changed(self, machine: Machine) -> bool:
        named = self.names is not None and self.names.is_changed(machine)
        return named or super().is_changed(machine)

    def parts(self) -> Iterable[Value]:
        slots = (value for value in self.slots.values() if value is not None)
        return [*slots, *self.attribute_parts()]

    @property
    def attrs(self) -> dict[object, Value | None]:
        """Return the attributes read or written so far; None stands for an absent one."""
        slots: dict[object, Value | None] = dict(self.slots.items())
        return slots if self.names is None else slots | self.names.store.known()

    def describe(self) -> str:
        return f"{self.cls.live.__name__} object"


@wraps(object, subclasses=True)
def _wrap_instance(machine: Machine, obj: object, source: Source) -> Value:
    return wrap_as(InstanceValue, is_plain_class, machine, obj, source)


def wrap_as(
    model: type[InstanceValue],
    models: Callable[[type], bool],
    machine: Machine,
    obj: object,
    source: Source,
) -> Value:
    """Wrap a live object as `model` if `models(type(obj))` holds, else as an OpaqueValue."""
    kind = type(obj)
    machine.guard(TypeIs(source, kind))
    if not models(kind):
        return OpaqueValue(kind, source, obj)
    return model(machine.class_of(kind, TypeOf(source)), obj, source)


@constructs(is_plain_class)
def _construct(machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    return construct(machine, cls, args, kwargs, InstanceValue)


def construct(
    machine: Machine,
    cls: ClassValue,
    args: Args,
    kwargs: Kwargs,
    model: Callable[[ClassValue], InstanceValue],
) -> Value:
    """Return `cls(*args, **kwargs)` as type.__call__ computes it; `model` creates the Value."""
    # A metaclass `__call__` in Python has been inlined by now; its `super().__call__` gets here.
    called = cls.metaclass_attribute(machine, "__call__")
    if called is not type.__call__ and not isinstance(called, types.FunctionType):
        raise GraphBreak(UnknownObject.of(what="a call", type=f"metaclass of {cls.live.__name__}"))
    instance = _new(machine, cls, args, kwargs, model)
    # type.__call__ skips `__init__` if `__new__` returns an object of another class.
    if cls.live not in instance.python_type(machine).__mro__:
        return instance
    raw, value = cls.find(machine, "__init__")
    if raw is not object.__init__:
        method = bind(machine, raw, value, instance, cls, "__init__").realize(machine)
        method.call(machine, args, kwargs)
    elif (args or kwargs) and attribute_of_class(cls.live, "__new__") is object.__new__:
        raise machine.error(TypeError, f"{cls.live.__name__}() takes no arguments")
    return instance


def _new(
    machine: Machine,
    cls: ClassValue,
    args: Args,
    kwargs: Kwargs,
    model: Callable[[ClassValue], InstanceValue],
) -> Value:
    raw, value = cls.find(machine, "__new__")
    if raw in [vars(base)["__new__"] for base in (*PLAIN_BASES, dict)]:
        # object.__new__ raises if ABCMeta has stored abstract methods.
        abstract = vars(cls.live).get("__abstractmethods__")
        if abstract is not None:
            guard_attribute(machine, cls.live, "__abstractmethods__", abstract)
        if abstract:
            message = f"Can't instantiate abstract class {cls.live.__name__}"
            raise machine.error(TypeError, message)
        return model(cls)
    function = bind(machine, raw, value, None, cls, "__new__").realize(machine)
    return function.call(machine, [cls, *args], kwargs).realize(machine)
