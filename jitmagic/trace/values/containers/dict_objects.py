"""Models instances of classes that inherit from dict or OrderedDict.

Input: a live object, guarded by its exact type and its keys, or one that the traced code creates.
Output: the results of its inlined methods. As in CPython, methods of dict access the entries
directly and ignore an overridden `__getitem__`. OrderedDict's C methods call overridden methods of
the subclass, so they break the graph if there are any.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Iterable, Iterator
from typing import Any

from ....guards.source import DictEntry, Source
from ...builtins.registry import method_of
from ...residual_calls import add_entries, dict_base
from ...result import BuildDict, Constant, Effect, Perform, Recipe
from ...wrap import wraps
from ..base import Builder, Machine, Value
from ..objects.callables import BuiltinMethodValue
from ..objects.class_facts import attribute_of_class
from ..objects.classes import HEAP_TYPE, ClassValue, constructs, is_python_class
from ..objects.instances import InstanceValue, construct, wrap_as
from ..objects.operators import unpack
from .mappings import DictValue, InnerDict, Pair
from .table_store import TableStore

__all__ = ["DictObjectValue", "mapping_pairs"]

_BASES = (dict, collections.OrderedDict)
_C_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType)
# Methods that the C code of OrderedDict looks up on a subclass.
_ACCESS = ("__contains__", "__delitem__", "__getitem__", "__iter__", "__missing__", "__setitem__",
           "keys")  # fmt: skip


def _is_dict_class(kind: type) -> bool:
    """Return whether class statements define every base but dict and OrderedDict."""
    if not issubclass(kind, dict) or not kind.__flags__ & HEAP_TYPE:
        return False
    # collections.Counter is such a class: its methods in Python are inlined, as a user's are.
    return all(is_python_class(base) for base in kind.__mro__ if base not in (*_BASES, object))


class _Entries(InnerDict):
    """The entries of an object of a dict subclass, as a dictionary."""

    __slots__ = ()

    def changed(self, machine: Machine) -> None:
        machine.effects.contents(self.owner)

    def missing(self, machine: Machine, key: Value) -> Value:
        # dict_subscript calls `__missing__` for instances of subclasses; dict.get() never does.
        assert isinstance(self.owner, DictObjectValue)
        found = self.owner.special(machine, "__missing__", key)
        return super().missing(machine, key) if found is None else found

    def recipe(self, builder: Builder) -> Recipe:
        return builder(self.owner)

    def entries(self, builder: Builder) -> BuildDict:
        """Return the recipe of the entries as a plain dictionary."""
        return BuildDict(*self.store.recipes(builder))


class DictObjectValue(InstanceValue):
    """An instance of a dict subclass; `dictionary` models its entries once one is accessed."""

    __slots__ = ("dictionary",)

    def __init__(self, cls: ClassValue, live: object = None, source: Source | None = None) -> None:
        super().__init__(cls, live, source)
        new = TableStore(kind=cls.live)
        self.dictionary = None if live is not None else _Entries(self, new)

    def contents(self, machine: Machine) -> DictValue:
        """Return the entries as a dictionary, whose keys are guarded for a live object."""
        # The keys are guarded only once an entry is used, and not for an attribute or a method.
        if self.dictionary is None:
            assert self.source is not None
            assert isinstance(self.live, dict)
            store = TableStore.of_live(machine, self.live, self.source, DictEntry)
            self.dictionary = _Entries(self, store)
        return self.dictionary

    def as_dictionary(self, machine: Machine) -> DictValue:
        return self.contents(machine)

    def accessible(self, machine: Machine, name: str) -> DictValue:
        """Return the entries for OrderedDict's method; break if the class overrides item access."""
        kind = self.cls.live
        if issubclass(kind, collections.OrderedDict):
            for access in _ACCESS:
                inherited = attribute_of_class(collections.OrderedDict, access)
                if attribute_of_class(kind, access) is not inherited:
                    self.refuse(machine, f"OrderedDict.{name}() with an overridden {access}")
                self.cls.find(machine, access)
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
        # The trace has inlined `__init__`; `fill` adds the entries past any `__setitem__`.
        return builder.invoke(dict_base(self.cls.live).__new__, (builder(self.cls),))

    def fill(self, builder: Builder) -> Iterable[Effect]:
        """Yield the effects that add the entries and attributes of a new object."""
        assert self.dictionary is not None
        if self.dictionary.pairs:
            arguments = builder(self), self.dictionary.entries(builder)
            yield Perform(Constant(add_entries), arguments)
        yield from super().fill(builder)

    def replace(self, builder: Builder) -> tuple[Effect, ...]:
        """Return the effects that update the live object to these entries."""
        assert self.dictionary is not None
        return self.dictionary.store.effects(builder, self)

    def parts(self) -> Iterable[Value]:
        return (*(() if self.dictionary is None else self.dictionary.parts()), *super().parts())


def mapping_pairs(machine: Machine, value: Value) -> Iterator[Pair] | None:
    """Return the pairs that `dict(value)` and `f(**value)` read; None if it is not a dictionary."""
    if isinstance(value, DictValue):
        return iter(list(value.pairs.values()))
    if not isinstance(value, DictObjectValue):
        return None
    # dict_merge copies the hash table of a subclass that inherits dict's `__iter__`, even if it
    # overrides `keys` or `__getitem__`.
    own = attribute_of_class(value.cls.live, "__iter__") is not vars(dict)["__iter__"]
    value.cls.find(machine, "__iter__")
    if own:
        return _pairs_by_keys(machine, value)
    return iter(list(value.contents(machine).pairs.values()))


def _pairs_by_keys(machine: Machine, value: Value) -> Iterator[Pair]:
    """Yield pairs by `keys()` and `__getitem__`, as CPython does if `__iter__` is overridden."""
    keys = value.call_method(machine, "keys", [], {})
    for key in unpack(machine, keys):
        yield key, value.get_item(machine, key.realize(machine))


@wraps(dict, subclasses=True)
def _wrap_dict_object(machine: Machine, obj: dict[object, object], source: Source) -> Value:
    return wrap_as(DictObjectValue, _is_dict_class, machine, obj, source)


@constructs(_is_dict_class)
def _construct(machine: Machine, cls: ClassValue, args: Any, kwargs: Any) -> Value:
    return construct(machine, cls, args, kwargs, DictObjectValue)
