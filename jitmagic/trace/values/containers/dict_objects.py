"""Instances of classes that inherit from dict or OrderedDict: attributes, and entries.

Comes in: a live object (guarded by exact type, its keys as a dictionary's) or one the traced code
makes. Goes out: what its methods, inlined, return; entries are read and written past any
`__getitem__` of the class, as dict's own code does. Methods of OrderedDict that call back into a
class which overrides how entries are reached are left to Python.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Iterable, Iterator
from typing import Any

from ....guards.source import DictEntry, Source
from ...aliased_dicts import Access
from ...builtins.registry import method_of
from ...result import BuildDict, Constant, Effect, Perform, Recipe
from ...wrap import wraps
from ..base import Builder, Machine, Value
from ..objects.callables import BuiltinMethodValue
from ..objects.class_facts import attribute_of_class
from ..objects.classes import HEAP_TYPE, ClassValue, constructs, is_python_class
from ..objects.instances import InstanceValue, construct, wrap_as
from ..objects.operators import unpack
from .mappings import DictValue, Pair
from .table_store import TableStore

__all__ = ["DictObjectValue", "mapping_pairs"]

_BASES = (dict, collections.OrderedDict)
_C_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType)
# What OrderedDict's C code looks up on the class where that is not OrderedDict itself.
_ACCESS = ("__contains__", "__delitem__", "__getitem__", "__iter__", "__missing__", "__setitem__",
           "keys")  # fmt: skip


def _is_dict_class(kind: type) -> bool:
    """Whether every base is a `class` statement, but for dict and OrderedDict."""
    if not issubclass(kind, dict) or not kind.__flags__ & HEAP_TYPE:
        return False
    return all(is_python_class(base) for base in kind.__mro__ if base not in (*_BASES, object))


class _Entries(DictValue):
    """The dictionary that an object is."""

    __slots__ = ("whole",)

    def __init__(self, whole: DictObjectValue, store: TableStore) -> None:
        super().__init__(store=store)
        self.whole = whole

    def changed(self, machine: Machine) -> None:
        if self.store.live is not None:
            machine.aliased_dicts.use(id(self.store.live), Access.OBJECT, changing=True)
        machine.effects.contents(self.whole)

    def missing(self, machine: Machine, key: Value) -> Value:
        made = self.whole.special(machine, "__missing__", key)
        return super().missing(machine, key) if made is None else made

    def recipe(self, builder: Builder) -> Recipe:
        return builder(self.whole)

    def empty_recipe(self) -> Recipe | None:
        return None

    def entries(self, builder: Builder) -> BuildDict:
        """The entries as a plain dictionary."""
        return BuildDict(*self.store.recipes(builder))


class DictObjectValue(InstanceValue):
    """One object; `held` is its model as a dictionary, made when somebody asks for an entry."""

    __slots__ = ("held",)

    def __init__(self, cls: ClassValue, live: Any = None, source: Source | None = None) -> None:
        super().__init__(cls, live, source)
        new = TableStore(kind=cls.live)
        self.held = None if live is not None else _Entries(self, new)

    def contents(self, machine: Machine) -> DictValue:
        """The dictionary; of a live object the keys are guarded."""
        if self.held is None:
            assert self.source is not None
            assert isinstance(self.live, dict)
            machine.aliased_dicts.use(id(self.live), Access.OBJECT)
            store = TableStore.of_live(machine, self.live, self.source, DictEntry)
            self.held = _Entries(self, store)
        return self.held

    def as_dictionary(self, machine: Machine) -> DictValue:
        return self.contents(machine)

    def accessible(self, machine: Machine, name: str) -> DictValue:
        """The same for a method of OrderedDict that goes through the class's own methods."""
        kind = self.cls.live
        if issubclass(kind, collections.OrderedDict):
            for one in _ACCESS:
                known = attribute_of_class(collections.OrderedDict, one)
                if attribute_of_class(kind, one) is not known:
                    self.refuse(machine, f"OrderedDict.{name}() with a {one} of its own")
                self.cls.find(machine, one)
        return self.contents(machine)

    def special(self, machine: Machine, name: str, *args: Value) -> Value | None:
        raw = attribute_of_class(self.cls.live, name)
        if not isinstance(raw, _C_METHODS) or raw.__objclass__ not in _BASES:
            return super().special(machine, name, *args)
        self.cls.find(machine, name)
        if method_of(raw.__objclass__, name) is None:
            self.refuse(machine, name)
        return BuiltinMethodValue(self, raw.__objclass__, name).call(machine, args, {})

    # -- exits -----------------------------------------------------------------------------------

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(_base_of(self.cls.live).__new__, (builder(self.cls),))

    def fill(self, builder: Builder) -> Iterable[Effect]:
        """The entries and attributes of a new object."""
        assert self.held is not None
        if self.held.pairs:
            arguments = builder(self), self.held.entries(builder)
            yield Perform(Constant(add_entries), arguments)
        yield from super().fill(builder)

    def replace(self, builder: Builder) -> tuple[Effect, ...]:
        """The effects that bring the live object to these entries."""
        assert self.held is not None
        return self.held.store.tell(builder, self)

    def parts(self) -> Iterable[Value]:
        return (*(() if self.held is None else self.held.parts()), *super().parts())


def _base_of(kind: type) -> type[dict[Any, Any]]:
    return collections.OrderedDict if issubclass(kind, collections.OrderedDict) else dict


def add_entries(target: dict[Any, Any], new: dict[Any, Any]) -> None:
    """Store entries past any `__setitem__` of the class."""
    store = _base_of(type(target)).__setitem__
    for key, value in new.items():
        store(target, key, value)


def mapping_pairs(machine: Machine, value: Value) -> Iterator[Pair] | None:
    """What `dict(value)` and `f(**value)` take of a dictionary; None: it is none."""
    if isinstance(value, DictValue):
        return iter(list(value.pairs.values()))
    if not isinstance(value, DictObjectValue):
        return None
    own = attribute_of_class(value.cls.live, "__iter__") is not vars(dict)["__iter__"]
    value.cls.find(machine, "__iter__")
    return _asked(machine, value) if own else iter(list(value.contents(machine).pairs.values()))


def _asked(machine: Machine, value: Value) -> Iterator[Pair]:
    """Where a class has its own way to iterate, Python asks for its keys and items."""
    keys = value.call_method(machine, "keys", [], {})
    for key in unpack(machine, keys):
        yield key, value.get_item(machine, key.realize(machine))


@wraps(dict, subclasses=True)
def _wrap_dict_object(machine: Machine, obj: dict[Any, Any], source: Source) -> Value:
    return wrap_as(DictObjectValue, _is_dict_class, machine, obj, source)


@constructs(_is_dict_class)
def _construct(machine: Machine, cls: ClassValue, args: Any, kwargs: Any) -> Value:
    return construct(machine, cls, args, kwargs, DictObjectValue)
