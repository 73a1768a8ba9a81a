"""Instances of plain Python classes: attributes, special methods, construction.

Comes in: a live object (guarded by exact type, attributes read from its `__dict__` or slots) or one
the traced code makes.  Goes out: what its methods, inlined, return; attribute writes as effects.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ....guards.guard import IdentityIs, TypeIs
from ....guards.source import InstanceDict, SlotAttr, Source, TypeAttr, TypeOf
from ...breaks import GraphBreak, UnknownObject
from ...result import DelAttr, Effect, NewInstance, Recipe, SetItem
from ...wrap import wraps
from ..base import Args, Builder, Kwargs, Machine, ObservedError, Value
from ..containers.iterators import StepIterator
from ..containers.keys import followed_key, identity_key
from ..containers.mappings import DictValue, entries_of_live
from ..containers.text_inputs import text_input
from .attribute_table import AttributeTable
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
from .operators import compare, drain, equal
from .special import BINARY_METHODS, UNARY_METHODS, by_special, implemented

__all__ = ["InstanceValue", "construct", "wrap_as"]

_OF_NAMESPACES = vars(types.SimpleNamespace)["__dict__"]  # a member, not computed as others
_C_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType)


class _Sequence:
    def __getitem__(self, index: int) -> None: ...


class InstanceValue(Value):
    """An object of a plain class. `names` models its `__dict__`, once it was asked for; `slots`
    holds what is known or written of its slots (None: empty)."""

    __slots__ = ("cls", "live", "names", "slots")
    searched: tuple[str, ...] = ()  # tables in `__dict__` that are searched for attributes too

    def __init__(self, cls: ClassValue, live: object = None, source: Source | None = None) -> None:
        super().__init__(source)
        self.cls = cls
        self.live = live
        self.names: DictValue | None = None
        self.slots: dict[str, Value | None] = {}

    def python_type(self, machine: Machine) -> type:
        return self.cls.live

    def hash_key(self, machine: Machine) -> object:
        return identity_key(machine, self) or followed_key(machine, self, self)

    # -- attributes ------------------------------------------------------------------------------

    def get_attr(self, machine: Machine, name: str) -> Value:
        """`type(self).__getattribute__`, and where that finds nothing `__getattr__`."""
        try:
            if self.leaves(machine, "__getattribute__"):
                return self.plain_attr(machine, name)
            return self.ask_class(machine, "__getattribute__", name)
        except ObservedError as observed:
            if not observed.error.matches(machine, AttributeError):
                raise
            if self.cls.find(machine, "__getattr__")[0] is NOTHING:
                raise
        return self.ask_class(machine, "__getattr__", name)

    def ask_class(self, machine: Machine, method: str, name: str, *more: Value) -> Value:
        """What a method of the class, written in Python, makes of an attribute's name."""
        bound = self._bound(machine, method).realize(machine)
        return bound.call(machine, [machine.constant(name), *more], {})

    def plain_attr(self, machine: Machine, name: str) -> Value:
        """`object.__getattribute__(self, name)`."""
        if name == "__dict__":
            return self.own_table(machine)
        if name == "__class__" and is_standard(machine, self.cls.live, name):
            return self.cls
        raw = self.cls.peek(machine, name)
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
        """`self.__dict__`."""
        raw = attribute_of_class(self.cls.live, "__dict__")
        if not isinstance(raw, types.GetSetDescriptorType) and raw is not _OF_NAMESPACES:
            self.refuse(machine, "attribute '__dict__'")
        table = self.table(machine)
        if self.source is None and not isinstance(table, AttributeTable):
            table = self.names = AttributeTable(self, table.store)
        table.observe(machine)
        return table

    def table(self, machine: Machine) -> DictValue:
        """The model of its `__dict__`, which may be that of other objects too."""
        if self.names is None and self.source is not None:
            path = InstanceDict(self.source)
            self.names = entries_of_live(machine, self.live_table(), path, owner=self)
        elif self.names is None:
            self.names = DictValue()
        return self.names

    def live_table(self) -> dict[str, object]:
        """The live object's dictionary."""
        table: dict[str, object] = object.__getattribute__(self.live, "__dict__")
        return table

    def tables_after(self, machine: Machine, name: str) -> list[DictValue] | None:
        """Return the dictionaries that are searched for an attribute which the class lacks; None:
        that is for its own code to say.
        """
        table = self.table(machine)
        return [table] if name in table.store.live else None

    def _bound(self, machine: Machine, name: str) -> Value:
        raw, value = self.cls.find(machine, name)
        return bind(machine, raw, value, self, self.cls, name)

    def leaves(self, machine: Machine, name: str) -> bool:
        """Whether the class leaves a special method to C code that does what object's does."""
        raw = attribute_of_class(self.cls.live, name)
        if raw not in [vars(base).get(name) for base in (*PLAIN_BASES, dict)]:
            return False
        guard_attribute(machine, self.cls.live, name, raw)
        return True

    def no_attribute(self, machine: Machine, name: str) -> ObservedError:
        message = f"'{self.cls.live.__name__}' object has no attribute '{name}'"
        return machine.error(AttributeError, message)

    def own(self, machine: Machine, name: str) -> Value | None:
        """The instance's own entry under `name` (dictionary or slot), if it has one."""
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
        if self.leaves(machine, "__setattr__"):
            self.store_attr(machine, name, value)
        else:
            self.ask_class(machine, "__setattr__", name, value)

    def store_attr(self, machine: Machine, name: str, value: Value | None) -> None:
        """`object.__setattr__` (None: `__delattr__`): data descriptors first, then the own
        entry."""
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
        old.realize(machine)  # the guard that there is one: nothing else reads it
        self.slots[name] = None
        machine.effects.del_attr(self, name)

    def set_entry(self, machine: Machine, name: str, value: Value | None) -> None:
        table, key = self.table(machine), machine.constant(name)
        if value is not None:
            table.store.put(name, key, value)
        elif not table.store.erase(name, key):
            raise machine.error(AttributeError, name)
        table.changed(machine)

    def stores(self, builder: Builder, name: str, value: Value | None) -> Effect | None:
        kind = self.cls.live
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
        """Whether the descriptor's class says in Python what is done."""
        method = "__delete__" if value is None else "__set__"
        function = attribute_of_class(type(raw), method)
        if not isinstance(function, types.FunctionType) or descriptor.source is None:
            return False
        machine.guard(IdentityIs(descriptor.source, raw))
        called = machine.wrap(function, TypeAttr(TypeOf(descriptor.source), method))
        called.call(machine, [descriptor, self, *([] if value is None else [value])], {})
        return True

    def del_attr(self, machine: Machine, name: str) -> None:
        if not self.leaves(machine, "__delattr__"):
            self.refuse(machine, f"deleting attribute {name!r}")
        self.store_attr(machine, name, None)

    # -- special methods -------------------------------------------------------------------------

    def special(self, machine: Machine, name: str, *args: Value) -> Value | None:
        """`type(self).__name__(self, *args)`, realized; None: the class has none that Python code
        wrote."""
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
        return int(self.counted(machine).as_constant(machine))

    def counted(self, machine: Machine) -> Value:
        found = self._required(machine, "__len__")
        if not issubclass(found.python_type(machine), int):
            self.refuse(machine, "len()")
        if not compare(machine, ">=", found, machine.constant(0)).truth(machine):
            self.refuse(machine, "len()")
        return found if found.varies else machine.constant(int(found.as_constant(machine)))

    def contains(self, machine: Machine, item: Value) -> Value:
        result = self.special(machine, "__contains__", item)
        if result is not None:
            return machine.constant(result.truth(machine))
        items = drain(machine, self.iterate(machine).realize(machine))
        return machine.constant(any(equal(machine, one, item) for one in items))

    def contains_lazily(self, machine: Machine, item: Value) -> Value:
        return self.contains(machine, item if text_input(item) else item.realize(machine))

    def iterate(self, machine: Machine) -> Value:
        result = self.special(machine, "__iter__")
        if result is not None:
            return result
        if self.cls.find(machine, "__getitem__")[0] is NOTHING:
            self.refuse(machine, "iteration")
        return StepIterator(
            machine, type(iter(_Sequence())), self._items(machine, itertools.count())
        )

    def backwards(self, machine: Machine) -> Value:
        """What `reversed` makes of the object."""
        result = self.special(machine, "__reversed__")
        if result is not None:
            return result
        last = self.length(machine) - 1
        return StepIterator(machine, reversed, self._items(machine, range(last, -1, -1)))

    def _items(self, machine: Machine, indices: Iterable[int]) -> Iterator[Value]:
        """The sequence protocol: items until there is none."""
        for index in indices:
            try:
                yield self.get_item(machine, machine.constant(index))
            except ObservedError as observed:
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
            return None  # two of one class: only the left one is asked
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
        """The attributes of a new object."""
        for name, value in self.slots.items():
            if value is not None:
                yield builder.set_attr(self, name, value)
        if self.names is None:
            return
        for token, (key, value) in self.names.pairs.items():
            stored = self.stores(builder, token, value) if isinstance(token, str) else None
            table = builder.invoke(vars, (builder(self),))
            yield stored or SetItem(table, builder(key), builder(value))

    def is_changed(self, machine: Machine) -> bool:
        named = self.names is not None and self.names.is_changed(machine)
        return named or super().is_changed(machine)

    def parts(self) -> Iterable[Value]:
        return [value for value in self.attrs.values() if value is not None]

    @property
    def attrs(self) -> dict[object, Value | None]:
        """Return what is known or written of its attributes; None: deleted, or not there."""
        held: dict[object, Value | None] = dict(self.slots.items())
        return held if self.names is None else held | self.names.store.known()

    def describe(self) -> str:
        return f"{self.cls.live.__name__} object"


@wraps(object, subclasses=True)
def _wrap_instance(machine: Machine, obj: object, source: Source) -> Value:
    return wrap_as(InstanceValue, is_plain_class, machine, obj, source)


def wrap_as(
    model: type[InstanceValue],
    models: Callable[[type], bool],
    machine: Machine,
    obj: Any,
    source: Source,
) -> Value:
    """A live object as `model` if that models its class, as an opaque one if not."""
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
    """`cls(*args, **kwargs)` as type.__call__ does it; `model` is what such objects become."""
    called = cls.of_metaclass(machine, "__call__")  # in Python: it was followed up to here
    if called is not type.__call__ and not isinstance(called, types.FunctionType):
        raise GraphBreak(UnknownObject.of(what="a call", type=f"metaclass of {cls.live.__name__}"))
    made = _new(machine, cls, args, kwargs, model)
    if cls.live not in made.python_type(machine).__mro__:
        return made
    raw, value = cls.find(machine, "__init__")
    if raw is not object.__init__:
        method = bind(machine, raw, value, made, cls, "__init__").realize(machine)
        method.call(machine, args, kwargs)
    elif (args or kwargs) and attribute_of_class(cls.live, "__new__") is object.__new__:
        raise machine.error(TypeError, f"{cls.live.__name__}() takes no arguments")
    return made


def _new(
    machine: Machine,
    cls: ClassValue,
    args: Args,
    kwargs: Kwargs,
    model: Callable[[ClassValue], InstanceValue],
) -> Value:
    raw, value = cls.find(machine, "__new__")
    if raw in [vars(base)["__new__"] for base in (*PLAIN_BASES, dict)]:
        abstract = vars(cls.live).get("__abstractmethods__")
        if abstract is not None:
            guard_attribute(machine, cls.live, "__abstractmethods__", abstract)
        if abstract:
            message = f"Can't instantiate abstract class {cls.live.__name__}"
            raise machine.error(TypeError, message)
        return model(cls)
    function = bind(machine, raw, value, None, cls, "__new__").realize(machine)
    return function.call(machine, [cls, *args], kwargs).realize(machine)
