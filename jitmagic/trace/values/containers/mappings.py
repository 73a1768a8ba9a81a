"""Dictionaries (dict, OrderedDict, defaultdict) and their views.

Comes in: live dictionaries (guarded by type) or new ones. Goes out: items in order, new
dictionaries. What a dictionary holds, what of it is guarded and what is told of its changes is in
its store (table_store.py).
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from ....guards.guard import TypeIs
from ....guards.source import InstanceDict, SlotAttr, Source
from ...aliased_dicts import Access
from ...breaks import GraphBreak, UnknownObject
from ...result import BuildDict, Effect, Recipe
from ...wrap import wraps
from ..base import Builder, Machine, Value
from ..objects.callables import bind_builtin
from ..objects.constants import ConstantValue
from ..objects.operators import equal, one_of
from .iterators import TableIterator
from .sequences import TupleValue
from .sets import SetValue
from .table_store import Pair, TableStore
from .text_inputs import text_input

__all__ = [
    "DefaultDictValue",
    "DictValue",
    "Pair",
    "ViewValue",
    "entries_of_live",
    "live_dictionary",
]

_VIEW_TYPES: dict[str, type] = {
    "keys": type({}.keys()),
    "values": type({}.values()),
    "items": type({}.items()),
}


class DictValue(Value):
    """A dictionary. Every change is told to `changed`, which logs the effect. `attributes`: what
    is known of those of an OrderedDict; None: it has no such one. `observed`: its type is guarded.
    """

    __slots__ = ("attributes", "observed", "store")

    def __init__(
        self,
        pairs: dict[object, Pair] | None = None,
        *,
        kind: type = dict,
        store: TableStore | None = None,
    ) -> None:
        self.store = store or TableStore(pairs, kind)
        self.attributes: dict[str, Value | None] = {}
        self.observed = True
        super().__init__(self.store.source)

    @classmethod
    def of(cls, machine: Machine, pairs: Iterable[Pair], kind: type = dict) -> DictValue:
        """A new dictionary; later pairs win, first positions stay."""
        result = cls(kind=kind)
        for key, value in pairs:
            result.put(machine, key, value)
        return result

    def as_dictionary(self, machine: Machine) -> DictValue:
        return self

    def observe(self, machine: Machine) -> None:
        if not self.observed and self.source is not None:
            machine.guard(TypeIs(self.source, self.kind))
            self.observed = True

    # -- reading ---------------------------------------------------------------------------------

    @property
    def pairs(self) -> dict[object, Pair]:
        """All keys and values by token: to be read only."""
        return self.store.pairs

    @property
    def kind(self) -> type:
        return self.store.kind

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def keys(self) -> list[Value]:
        return [key for key, _ in self.pairs.values()]

    def values(self) -> list[Value]:
        return [value for _, value in self.pairs.values()]

    def find(self, machine: Machine, key: Value) -> Value | None:
        """The value under `key`, if there is one."""
        text = text_input(key)
        if text is not None and self.store.can_find(text):
            if text[0] not in self.store.live:
                self.store.has_at(text)
                return None
            if (found := self.store.find_at(text)) is not None:
                return found
        known: Value | None = key.realize(machine)
        if known is not None and known.varies:
            known = one_of(machine, known, self.keys())
        return None if known is None else self.store.get(known.realize(machine).hash_key(machine))

    def as_names(self, machine: Machine) -> dict[str, Value]:
        """As keyword arguments; raises the program's TypeError for keys that are no strings."""
        named = {}
        for key, value in self.pairs.values():
            name = key.realize(machine)
            if name.python_type(machine) is not str:
                raise machine.error(TypeError, "keywords must be strings")
            named[str(name.as_constant(machine))] = value
        return named

    def is_constant(self, machine: Machine) -> bool:
        both = (*self.keys(), *self.values())
        return self.kind is dict and all(
            item.realize(machine).is_constant(machine) for item in both
        )

    def as_constant(self, machine: Machine) -> Any:
        return {
            key.realize(machine).as_constant(machine): value.realize(machine).as_constant(machine)
            for key, value in self.pairs.values()
        }

    def get_attr(self, machine: Machine, name: str) -> Value:
        if not hasattr(self.kind, name) and (own := self._own_attribute(machine, name)) is not None:
            return own
        return bind_builtin(machine, self, self.kind, name)

    def _own_attribute(self, machine: Machine, name: str) -> Value | None:
        """What somebody put on an OrderedDict, as state dicts have their `_metadata`."""
        table = self._live_attributes(machine)
        return self.attributes.get(name) if table is None else table.store.get(name)

    def _live_attributes(self, machine: Machine) -> DictValue | None:
        """The `__dict__` of an OrderedDict that existed before."""
        live, source = self.store.live, self.source
        if live is None or source is None or not hasattr(live, "__dict__"):
            return None
        return entries_of_live(machine, live.__dict__, InstanceDict(source), self)

    def stores(self, builder: Builder, name: str, value: Value | None) -> Effect | None:
        return None if value is None else builder.set_attr(self, name, value)

    def has_attributes(self, machine: Machine) -> bool:
        """Whether it is an OrderedDict with attributes of its own."""
        table = self._live_attributes(machine)
        return bool(self.attributes if table is None else table.pairs)

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        if self.kind is not collections.OrderedDict or hasattr(self.kind, name):
            self.refuse(machine, f"setting attribute {name!r}")
        if (table := self._live_attributes(machine)) is not None:
            table.set_item(machine, machine.constant(name), value)
        else:
            self.attributes[name] = value

    def get_item(self, machine: Machine, key: Value) -> Value:
        value = self.find(machine, key)
        return self.missing(machine, key) if value is None else value

    def get_item_lazily(self, machine: Machine, key: Value) -> Value:
        return self.get_item(machine, key)

    def missing(self, machine: Machine, key: Value) -> Value:
        """What `self[key]` gives for a key that is not there."""
        raise machine.error(KeyError, key, exact=True)

    def contains(self, machine: Machine, item: Value) -> Value:
        text = text_input(item)
        if text is not None and self.store.can_find(text):
            return machine.constant(self.store.has_at(text))
        return machine.constant(self.find(machine, item) is not None)

    def contains_lazily(self, machine: Machine, item: Value) -> Value:
        return self.contains(machine, item)

    def length(self, machine: Machine) -> int:
        return self.store.length()

    def counted(self, machine: Machine) -> Value:
        return self.store.counted(machine)

    def truth(self, machine: Machine) -> bool:
        return self.store.is_filled(machine)

    def iterate(self, machine: Machine) -> Value:
        return TableIterator(machine, self, type(iter({})), self.walk(machine, 0), "keys")

    def walk(self, machine: Machine, part: int | None) -> Iterator[Value]:
        """Keys (0), values (1) or items (None) in order; the size must not change meanwhile."""
        size = len(self.pairs)

        def check(same: bool) -> None:
            if not same:
                message = "dictionary changed size during iteration"
                raise machine.error(RuntimeError, message)

        for position, token in enumerate(list(self.pairs)):
            check(len(self.pairs) == size)
            if next(itertools.islice(self.pairs, position, None)) is not token:
                self.refuse(machine, "iteration while keys come and go")
            pair = self.pairs[token]
            yield TupleValue(pair) if part is None else pair[part]
        check(len(self.pairs) == size)  # Python looks before it says that nothing is left

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if not isinstance(other, DictValue) or op not in ("==", "!="):
            return None
        if self.kind is not dict and other.kind is not dict:
            self.refuse(machine, "comparison")  # two OrderedDicts compare their order too
        same = self.pairs.keys() == other.pairs.keys() and all(
            equal(machine, value, other.pairs[token][1]) for token, (_, value) in self.pairs.items()
        )
        return machine.constant(same == (op == "=="))

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if op != "|" or not isinstance(other, DictValue):
            return None
        if self.kind is not dict or other.kind is not dict:
            self.refuse(machine, "operator |")
        left, right = (other, self) if reflected else (self, other)
        return DictValue.of(machine, [*left.pairs.values(), *right.pairs.values()])

    # -- changing --------------------------------------------------------------------------------

    def put(self, machine: Machine, key: Value, value: Value) -> None:
        """`self[key] = value` in the model alone; a key that is there already stays."""
        self.store.put(key.realize(machine).hash_key(machine), key, value)

    def set_item(self, machine: Machine, key: Value, value: Value) -> None:
        self.put(machine, key, value)
        self.changed(machine)

    def del_item(self, machine: Machine, key: Value) -> None:
        if not self.store.erase(key.realize(machine).hash_key(machine), key):
            DictValue.missing(self, machine, key)
        self.changed(machine)

    def inplace(self, machine: Machine, op: str, other: Value) -> Value | None:
        if op != "|" or not isinstance(other, DictValue):
            return None
        for key, value in list(other.pairs.values()):
            self.put(machine, key, value)
        self.changed(machine)
        return self

    def clear(self, machine: Machine) -> None:
        self.store.clear()
        self.changed(machine)

    def changed(self, machine: Machine) -> None:
        if self.store.live is not None:
            machine.aliased_dicts.use(id(self.store.live), Access.OBJECT, changing=True)
        machine.effects.contents(self)

    # -- exits -----------------------------------------------------------------------------------

    def recipe(self, builder: Builder) -> Recipe:
        plain = BuildDict(*self.store.recipes(builder))
        return plain if self.kind is dict else builder.invoke(self.kind, (plain,))

    def empty_recipe(self) -> Recipe | None:
        return BuildDict((), ()) if self.kind is dict else None

    def fill(self, builder: Builder) -> Iterable[Effect]:
        """The attributes of a new OrderedDict."""
        for name, value in self.attributes.items():
            if value is not None:
                yield builder.set_attr(self, name, value)

    def replace(self, builder: Builder) -> tuple[Effect, ...]:
        """The effects that bring the live dictionary to these contents."""
        return self.store.tell(builder, self)

    def parts(self) -> Iterable[Value]:
        held = (value for value in self.attributes.values() if value is not None)
        return (*self.store.parts(), *held)


class DefaultDictValue(DictValue):
    """A defaultdict: a missing key calls the factory."""

    __slots__ = ("factory",)

    def __init__(self, factory: Value | None = None, store: TableStore | None = None) -> None:
        super().__init__(kind=collections.defaultdict, store=store)
        self.factory = factory or ConstantValue(None)

    def get_attr(self, machine: Machine, name: str) -> Value:
        return self.factory if name == "default_factory" else super().get_attr(machine, name)

    def missing(self, machine: Machine, key: Value) -> Value:
        factory = self.factory.realize(machine)
        if isinstance(factory, ConstantValue):
            return super().missing(machine, key)
        value = factory.call(machine, [], {})
        self.set_item(machine, key, value)
        return value

    def recipe(self, builder: Builder) -> Recipe:
        plain = BuildDict(*self.store.recipes(builder))
        return builder.invoke(self.kind, (builder(self.factory), plain))


class ViewValue(Value):
    """keys(), values() or items() of a dictionary: a live view."""

    __slots__ = ("owner", "what")

    def __init__(self, owner: DictValue, what: str) -> None:
        super().__init__()
        self.owner = owner
        self.what = what

    def python_type(self, machine: Machine) -> type:
        return _VIEW_TYPES[self.what]

    def iterate(self, machine: Machine) -> Value:
        part = {"keys": 0, "values": 1, "items": None}[self.what]
        steps, kind = self.owner.walk(machine, part), type(iter(getattr({}, self.what)()))
        return TableIterator(machine, self.owner, kind, steps, self.what)

    def length(self, machine: Machine) -> int:
        return self.owner.length(machine)

    def truth(self, machine: Machine) -> bool:
        return self.owner.truth(machine)

    def contains_lazily(self, machine: Machine, item: Value) -> Value:
        return self.contains(machine, item if self.what == "keys" else item.realize(machine))

    def contains(self, machine: Machine, item: Value) -> Value:
        if self.what == "keys":
            return self.owner.contains(machine, item)
        values = list(self.owner.walk(machine, 1 if self.what == "values" else None))
        return machine.constant(any(equal(machine, value, item) for value in values))

    def as_set(self, machine: Machine) -> SetValue:
        """What set operators see; values() has none."""
        if self.what == "values":
            self.refuse(machine, "a set operator")
        part = 0 if self.what == "keys" else None
        members = SetValue.of(machine, self.owner.walk(machine, part))
        members.store.forget_order()  # Python makes its set of a view in other steps
        return members

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if not isinstance(other, SetValue | ViewValue):
            self.refuse(machine, f"operator {op}")
        right = other.as_set(machine) if isinstance(other, ViewValue) else other
        return self.as_set(machine).binary(machine, op, right, reflected=reflected)

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if not isinstance(other, SetValue | ViewValue):
            self.refuse(machine, f"comparison {op}")
        right = other.as_set(machine) if isinstance(other, ViewValue) else other
        return self.as_set(machine).compare(machine, op, right)

    def recipe(self, builder: Builder) -> Recipe:
        method = builder.invoke(getattr, (builder(self.owner), builder.constant(self.what)))
        return builder.call(method)

    def parts(self) -> Iterable[Value]:
        return (self.owner,)


@wraps(dict, collections.OrderedDict)
def _wrap_dict(machine: Machine, obj: dict[object, object], source: Source) -> Value:
    machine.guard(TypeIs(source, type(obj)))
    return live_dictionary(machine, DictValue, obj, source)


def live_dictionary(
    machine: Machine, model: Callable[..., DictValue], obj: dict[Any, Any], source: Source
) -> DictValue:
    """The model of a live dictionary whose type is guarded."""
    machine.aliased_dicts.use(id(obj), Access.OBJECT)
    return model(store=TableStore.of_live(machine, obj, source))


def entries_of_live(
    machine: Machine, live: dict[Any, Any], source: Source, owner: Value | None = None
) -> DictValue:
    """The model of a live dictionary of which C code reads and writes entries: it holds the
    attributes of `owner`, or is a table of a module. Its type is guarded once it is used as an
    object."""

    def made(machine: Machine, obj: dict[Any, Any], source: Source) -> DictValue:
        value = live_dictionary(machine, DictValue, obj, source)
        value.observed = False
        if owner is not None:
            machine.owners[id(value.store)] = owner
        return value

    # What another class of dictionaries holds is modelled with its type. C code that stores an
    # attribute passes by the order that an OrderedDict keeps.
    if isinstance(live, collections.OrderedDict):
        raise GraphBreak(UnknownObject.of(what="attributes", type="an object with an OrderedDict"))
    value = machine.wrap(live, source, made) if type(live) is dict else machine.wrap(live, source)
    if (entries := value.as_dictionary(machine)) is None:
        raise GraphBreak(UnknownObject.of(what="the entries", type=type(live).__name__))
    assert isinstance(entries, DictValue)
    return entries


@wraps(collections.defaultdict)
def _wrap_defaultdict(
    machine: Machine, obj: collections.defaultdict[object, object], source: Source
) -> Value:
    machine.guard(TypeIs(source, collections.defaultdict))
    factory = machine.lazy(obj.default_factory, SlotAttr(source, "default_factory"))
    return live_dictionary(machine, partial(DefaultDictValue, factory), obj, source)
