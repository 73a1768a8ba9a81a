"""Models dictionaries (dict, OrderedDict, defaultdict) and their views.

Input: live dictionaries, guarded by type, or new ones. Output: items in order and new dictionaries.
The store (table_store.py) has the contents, installs their guards and describes the changes.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

from ....guards.guard import TypeIs
from ....guards.source import InstanceDict, SlotAttr, Source
from ...breaks import GraphBreak, UnknownObject
from ...result import BuildDict, Effect, Recipe, SetItem
from ...wrap import wraps
from ..base import Builder, Machine, Value
from ..objects.callables import bind_builtin
from ..objects.constants import ConstantValue
from ..objects.operators import equal, equal_key
from .iterators import CheckedItems, TableIterator
from .sequences import TupleValue
from .sets import SetValue
from .table_store import Pair, TableStore
from .text_inputs import text_input

__all__ = [
    "DefaultDictValue",
    "DictValue",
    "InnerDict",
    "Pair",
    "ViewValue",
    "WithAttributes",
    "entries_of_live",
]

_EMPTY: dict[bool, dict[object, object]] = {False: {}, True: collections.OrderedDict()}


class WithAttributes(Value):
    """An object with a `__dict__`, modelled by `names` once its entries or itself are used."""

    __slots__ = ("names",)

    def __init__(self, source: Source | None = None) -> None:
        super().__init__(source)
        self.names: DictValue | None = None

    def live_table(self) -> dict[str, object]:
        """Return the live object's `__dict__` without calling user code."""
        raise NotImplementedError(type(self).__name__)

    def table_path(self, source: Source) -> Source:
        return InstanceDict(source)

    def table(self, machine: Machine) -> DictValue:
        """Return the model of `__dict__`, which other objects may share."""
        if self.names is None and self.source is not None:
            path = self.table_path(self.source)
            self.names = entries_of_live(machine, self.live_table(), path, owner=self)
        elif self.names is None:
            self.names = DictValue()
        return self.names

    def own_table(self, machine: Machine) -> Value:
        """Return `self.__dict__`, for the program to use as an object."""
        table = self.table(machine)
        if self.source is None and not isinstance(table, InnerDict):
            # Not before: values in a reference cycle keep the call's arguments alive.
            table = self.names = InnerDict(self, table.store)
        table.observe(machine)
        return table

    def attribute_effect(self, builder: Builder, name: str, value: Value | None) -> Effect | None:
        return None if value is None else builder.set_attr(self, name, value)

    def fill(self, builder: Builder) -> Iterable[Effect]:
        """Yield the effects that set the attributes of a new object."""
        for token, (key, value) in ({} if self.names is None else self.names.pairs).items():
            stored = (
                self.attribute_effect(builder, token, value) if isinstance(token, str) else None
            )
            table = builder.invoke(vars, (builder(self),))
            yield stored or SetItem(table, builder(key), builder(value))

    def attribute_parts(self) -> Iterator[Value]:
        """Yield the values of the attributes that were read or written."""
        if self.names is not None:
            yield from (value for value in self.names.store.known().values() if value is not None)


class DictValue(WithAttributes):
    """A dictionary; every mutation calls `changed`, which logs the effect.

    `observed` is True once the type is guarded: entries of a `__dict__` can be read without that
    guard.
    """

    __slots__ = ("observed", "store")

    def __init__(
        self,
        pairs: dict[object, Pair] | None = None,
        *,
        kind: type = dict,
        store: TableStore | None = None,
    ) -> None:
        self.store = store or TableStore(pairs, kind)
        self.observed = True
        super().__init__(self.store.source)

    @classmethod
    def of(cls, machine: Machine, pairs: Iterable[Pair], kind: type = dict) -> DictValue:
        """Create a dictionary; a repeated key has its first position and its last value."""
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
        """All keys and values by token; callers must not change it."""
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
        """Return the value under `key`, or None."""
        text = text_input(key)
        if text is not None and self.store.can_find(text):
            if text[0] not in self.store.live:
                self.store.has_at(text)
                return None
            if (found := self.store.find_at(text)) is not None:
                return found
        known: Value | None = key.realize(machine)
        if known is not None and known.varies:
            known = equal_key(machine, known, self.keys())
        return None if known is None else self.store.get(known.realize(machine).hash_key(machine))

    def as_names(self, machine: Machine) -> dict[str, Value]:
        """Return the items as keyword arguments; keys that are not strings raise TypeError."""
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

    def as_constant(self, machine: Machine) -> object:
        return {
            key.realize(machine).as_constant(machine): value.realize(machine).as_constant(machine)
            for key, value in self.pairs.values()
        }

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name == "__dict__" and self.kind is collections.OrderedDict:
            return self.own_table(machine)
        # Such as the `_metadata` of a state dict.
        if self.kind.__dictoffset__ and not hasattr(self.kind, name):
            own = self.table(machine).store.get(name)
            if own is not None:
                return own
        return bind_builtin(machine, self, self.kind, name)

    def live_table(self) -> dict[str, object]:
        table: dict[str, object] = self.store.live.__dict__
        return table

    def has_attributes(self, machine: Machine) -> bool:
        """Return whether it is an OrderedDict with attributes in its `__dict__`."""
        return bool(self.kind.__dictoffset__ and self.table(machine).pairs)

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        if self.kind is not collections.OrderedDict or hasattr(self.kind, name):
            self.refuse(machine, f"setting attribute {name!r}")
        self.table(machine).set_item(machine, machine.constant(name), value)

    def get_item(self, machine: Machine, key: Value) -> Value:
        value = self.find(machine, key)
        return self.missing(machine, key) if value is None else value

    def get_item_lazily(self, machine: Machine, key: Value) -> Value:
        return self.get_item(machine, key)

    def missing(self, machine: Machine, key: Value) -> Value:
        """Return `self[key]` for an absent key, or raise KeyError."""
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

    def length_value(self, machine: Machine) -> Value:
        return self.store.length_value(machine)

    def truth(self, machine: Machine) -> bool:
        return self.store.is_filled(machine)

    def iterate(self, machine: Machine) -> Value:
        return TableIterator(machine, self, type(iter(self.empty())), self.walk(machine, 0), "keys")

    def empty(self) -> dict[object, object]:
        """Return an empty dictionary that has views and iterators of the same types."""
        return _EMPTY[issubclass(self.kind, collections.OrderedDict)]

    def walk(self, machine: Machine, part: int | None) -> Iterator[Value]:
        """Return an iterator over keys (0), values (1) or items (None) in order.

        Its next step raises RuntimeError if keys have been added or deleted since this call.
        """
        tokens, state = list(self.pairs), self.store.state
        is_dict = type(self.empty()) is dict

        def check() -> None:
            if self.store.state == state:
                return
            # Whether CPython raises "dictionary keys changed during iteration", visits a new key or
            # stops depends on the layout of the hash table. An OrderedDict that was cleared raises
            # in each step, one that was changed otherwise only once.
            if len(self.pairs) == (len(tokens) if is_dict else 0):
                self.refuse(machine, "iteration while keys are added and deleted")
            raise machine.error(RuntimeError, "dictionary changed size during iteration")

        def read(token: object) -> Value:
            pair = self.pairs[token]
            return TupleValue(pair) if part is None else pair[part]

        def ordered() -> Iterator[Value]:
            # odictiter_nextkey checks nothing after the key that was the last one when it was read.
            for token in tokens:
                check()
                yield read(token)

        return CheckedItems(check, map(read, tokens)) if is_dict else ordered()

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
        # PEP 584: of two equal keys, the left one remains in its position, with the right value.
        return DictValue.of(machine, [*left.pairs.values(), *right.pairs.values()])

    # -- changing --------------------------------------------------------------------------------

    def put(self, machine: Machine, key: Value, value: Value) -> None:
        """Do `self[key] = value` without logging an effect; an equal key already there remains."""
        self.store.put(key.realize(machine).hash_key(machine), key, value)

    def set_item(self, machine: Machine, key: Value, value: Value) -> None:
        self.put(machine, key, value)
        self.changed(machine)

    def del_item(self, machine: Machine, key: Value) -> None:
        if not self.store.erase(key.realize(machine).hash_key(machine), key):
            # `del d[key]` raises KeyError for a defaultdict as well and does not call its factory.
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
        machine.effects.contents(self)

    # -- exits -----------------------------------------------------------------------------------

    def recipe(self, builder: Builder) -> Recipe:
        plain = BuildDict(*self.store.recipes(builder))
        return plain if self.kind is dict else builder.invoke(self.kind, (plain,))

    def empty_recipe(self) -> Recipe | None:
        return BuildDict((), ()) if self.kind is dict else None

    def replace(self, builder: Builder) -> tuple[Effect, ...]:
        """Return the effects that update the live dictionary to these contents."""
        return self.store.effects(builder, self)

    def parts(self) -> Iterable[Value]:
        return (*self.store.parts(), *self.attribute_parts())


class InnerDict(DictValue):
    """The dictionary in `owner`: its `__dict__`, or the entries of a dict subclass's instance."""

    __slots__ = ("owner",)

    def __init__(self, owner: Value, store: TableStore) -> None:
        super().__init__(store=store)
        self.owner = owner

    def is_constant(self, machine: Machine) -> bool:
        return False

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(vars, (builder(self.owner),))  # the effects that fill it store these

    def empty_recipe(self) -> Recipe | None:
        return None

    def describe(self) -> str:
        return f"the attributes of {self.owner.describe()}"


class DefaultDictValue(DictValue):
    """A defaultdict, which calls its factory for a missing key."""

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
    """A live view of a dictionary: its keys(), values() or items()."""

    __slots__ = ("owner", "what")

    def __init__(self, owner: DictValue, what: str) -> None:
        super().__init__()
        self.owner = owner
        self.what = what

    def python_type(self, machine: Machine) -> type:
        return type(getattr(self.owner.empty(), self.what)())

    def iterate(self, machine: Machine) -> Value:
        part = {"keys": 0, "values": 1, "items": None}[self.what]
        kind = type(iter(getattr(self.owner.empty(), self.what)()))
        steps = self.owner.walk(machine, part)
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
        """Return the set that set operators use; values() has no set operators."""
        if self.what == "values":
            self.refuse(machine, "a set operator")
        part = 0 if self.what == "keys" else None
        members = SetValue.of(machine, self.owner.walk(machine, part))
        # The order of a set depends on insertions and resizes, not on the items alone.
        members.store.forget_order()  # CPython inserts the items of a view in other steps
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
    return DictValue(store=TableStore.of_live(machine, obj, source))


def entries_of_live(
    machine: Machine, live: dict[Any, Any], source: Source, owner: Value | None = None
) -> DictValue:
    """Return the model of a dictionary whose entries C code accesses: a `__dict__` or module table.

    It holds the attributes of `owner`, if given. Its type is guarded only when the program uses the
    dictionary itself.
    """

    def make(machine: Machine, obj: dict[object, object], source: Source) -> DictValue:
        value = DictValue(store=TableStore.of_live(machine, obj, source))
        value.observed = False
        return value

    # A dictionary of another class is wrapped with a type guard. C code that stores an attribute
    # does not update the order that an OrderedDict maintains.
    if isinstance(live, collections.OrderedDict):
        raise GraphBreak(UnknownObject.of(what="attributes", type="an object with an OrderedDict"))
    value = machine.wrap(live, source, make) if type(live) is dict else machine.wrap(live, source)
    if (entries := value.as_dictionary(machine)) is None:
        raise GraphBreak(UnknownObject.of(what="the entries", type=type(live).__name__))
    assert isinstance(entries, DictValue)
    if owner is not None:
        # table_store.py then writes these keys with setattr() on the owner where it can.
        machine.owners.setdefault(id(entries.store), owner)
    return entries


@wraps(collections.defaultdict)
def _wrap_defaultdict(
    machine: Machine, obj: collections.defaultdict[object, object], source: Source
) -> Value:
    machine.guard(TypeIs(source, collections.defaultdict))
    factory = machine.lazy(obj.default_factory, SlotAttr(source, "default_factory"))
    return DefaultDictValue(factory, TableStore.of_live(machine, obj, source))
