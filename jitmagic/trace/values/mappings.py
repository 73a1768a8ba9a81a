"""Dictionaries (dict, OrderedDict, defaultdict) and their views.

Comes in: live dictionaries whose keys are constants or objects known by identity, or new ones.
Goes out: items in order; changes of a dictionary that existed before become one ReplaceDict effect.
The model is a Python dict from `hash_key` to the pair of values, so order and key equality are
Python's.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...guards.guard import ANY_KEY, DictKeysAre, TypeIs
from ...guards.read import entries_of
from ...guards.source import DictKeyAt, DictValueAt, Item, SlotAttr, Source
from ..breaks import GraphBreak, UnknownObject
from ..result import BuildDict, Effect, Recipe, ReplaceDict
from ..tables import Face
from ..wrap import wraps
from .base import Builder, Machine, Value
from .callables import bind_builtin
from .constants import ConstantValue
from .iterators import DictIterator
from .keys import is_plain_key
from .operators import equal
from .sequences import TupleValue
from .sets import SetValue

__all__ = [
    "DefaultDictValue",
    "DictValue",
    "Pair",
    "ViewValue",
    "live_dictionary",
    "live_pairs",
]

Pair = tuple[Value, Value]

_VIEW_TYPES: dict[str, type] = {
    "keys": type({}.keys()),
    "values": type({}.values()),
    "items": type({}.items()),
}


class DictValue(Value):
    """A dictionary. Every change goes through `changed`, which logs the effect."""

    __slots__ = ("kind", "pairs", "table")

    def __init__(
        self, pairs: dict[object, Pair], source: Source | None = None, kind: type = dict
    ) -> None:
        super().__init__(source)
        self.table: int | None = None  # the id of the live dictionary
        self.pairs = pairs
        self.kind = kind

    @classmethod
    def of(cls, machine: Machine, pairs: Iterable[Pair], kind: type = dict) -> DictValue:
        """A new dictionary; later pairs win, first positions stay."""
        made = cls({}, kind=kind)
        for key, value in pairs:
            made.store(machine, key, value)
        return made

    # -- reading ---------------------------------------------------------------------------------

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def keys(self) -> list[Value]:
        return [key for key, _ in self.pairs.values()]

    def values(self) -> list[Value]:
        return [value for _, value in self.pairs.values()]

    def find(self, machine: Machine, key: Value) -> Value | None:
        """The value under `key`, if there is one."""
        pair = self.pairs.get(key.realize(machine).hash_key(machine))
        return pair[1] if pair is not None else None

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
        return self.kind is dict and all(one.realize(machine).is_constant(machine) for one in both)

    def as_constant(self, machine: Machine) -> Any:
        return {
            key.realize(machine).as_constant(machine): value.realize(machine).as_constant(machine)
            for key, value in self.pairs.values()
        }

    def get_attr(self, machine: Machine, name: str) -> Value:
        return bind_builtin(machine, self, self.kind, name)

    def get_item(self, machine: Machine, key: Value) -> Value:
        found = self.find(machine, key)
        return self.missing(machine, key) if found is None else found

    def missing(self, machine: Machine, key: Value) -> Value:
        """What `self[key]` gives for a key that is not there."""
        raise machine.error(KeyError, key, exact=True)

    def contains(self, machine: Machine, item: Value) -> Value:
        return machine.constant(self.find(machine, item) is not None)

    def length(self, machine: Machine) -> int:
        return len(self.pairs)

    def truth(self, machine: Machine) -> bool:
        return bool(self.pairs)

    def iterate(self, machine: Machine) -> Value:
        return DictIterator(machine, self, "keys", self.walk(machine, 0))

    def walk(self, machine: Machine, part: int | None) -> Iterator[Value]:
        """Keys (0), values (1) or items (None) in order; the size must not change meanwhile."""
        size = len(self.pairs)

        def check(same: bool) -> None:
            if not same:
                message = "dictionary changed size during iteration"
                raise machine.error(RuntimeError, message)

        for place, token in enumerate(list(self.pairs)):
            check(len(self.pairs) == size)
            if next(itertools.islice(self.pairs, place, None)) is not token:
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

    def store(self, machine: Machine, key: Value, value: Value) -> None:
        """`self[key] = value` in the model alone; a key that is there already stays."""
        token = key.realize(machine).hash_key(machine)
        old = self.pairs.get(token)
        self.pairs[token] = (key if old is None else old[0], value)

    def set_item(self, machine: Machine, key: Value, value: Value) -> None:
        self.store(machine, key, value)
        self.changed(machine)

    def del_item(self, machine: Machine, key: Value) -> None:
        if self.pairs.pop(key.realize(machine).hash_key(machine), None) is None:
            DictValue.missing(self, machine, key)
        self.changed(machine)

    def inplace(self, machine: Machine, op: str, other: Value) -> Value | None:
        if op != "|" or not isinstance(other, DictValue):
            return None
        for key, value in list(other.pairs.values()):
            self.store(machine, key, value)
        self.changed(machine)
        return self

    def changed(self, machine: Machine) -> None:
        if self.table is not None:
            machine.tables.use(self.table, Face.OBJECT, changing=True)
        machine.effects.contents(self)

    # -- exits -----------------------------------------------------------------------------------

    def recipe(self, builder: Builder) -> Recipe:
        keys, values = self._recipes(builder)
        plain = BuildDict(keys, values)
        return plain if self.kind is dict else builder.invoke(self.kind, (plain,))

    def empty_recipe(self) -> Recipe | None:
        return BuildDict((), ()) if self.kind is dict else None

    def replace(self, builder: Builder) -> Effect:
        """The effect that brings the live dictionary to these contents."""
        return ReplaceDict(builder(self), *self._recipes(builder))

    def _recipes(self, builder: Builder) -> tuple[tuple[Recipe, ...], tuple[Recipe, ...]]:
        pairs = list(self.pairs.values())
        return tuple(builder(key) for key, _ in pairs), tuple(builder(value) for _, value in pairs)

    def parts(self) -> Iterable[Value]:
        return (*self.keys(), *self.values())


class DefaultDictValue(DictValue):
    """A defaultdict: a missing key calls the factory."""

    __slots__ = ("factory",)

    def __init__(
        self,
        pairs: dict[object, Pair],
        source: Source | None = None,
        kind: type = collections.defaultdict,
        factory: Value | None = None,
    ) -> None:
        super().__init__(pairs, source, kind)
        self.factory = factory or ConstantValue(None)

    def get_attr(self, machine: Machine, name: str) -> Value:
        return self.factory if name == "default_factory" else super().get_attr(machine, name)

    def missing(self, machine: Machine, key: Value) -> Value:
        factory = self.factory.realize(machine)
        if isinstance(factory, ConstantValue):
            return super().missing(machine, key)
        made = factory.call(machine, [], {})
        self.set_item(machine, key, made)
        return made

    def recipe(self, builder: Builder) -> Recipe:
        plain = BuildDict(*self._recipes(builder))
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
        return DictIterator(machine, self.owner, self.what, self.owner.walk(machine, part))

    def length(self, machine: Machine) -> int:
        return self.owner.length(machine)

    def truth(self, machine: Machine) -> bool:
        return self.owner.truth(machine)

    def contains(self, machine: Machine, item: Value) -> Value:
        if self.what == "keys":
            return self.owner.contains(machine, item)
        values = list(self.owner.walk(machine, 1 if self.what == "values" else None))
        return machine.constant(any(equal(machine, one, item) for one in values))

    def as_set(self, machine: Machine) -> SetValue:
        """What set operators see; values() has none."""
        if self.what == "values":
            self.refuse(machine, "a set operator")
        part = 0 if self.what == "keys" else None
        made = SetValue.of(machine, self.owner.walk(machine, part))
        made.store.forget_order()  # Python makes its set of a view in other steps
        return made

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


def live_pairs(
    machine: Machine,
    obj: dict[Any, Any],
    source: Source,
    entry: Callable[[Source, object], Source] = Item,
) -> dict[object, Pair]:
    """The model of a live dictionary whose keys are guarded; its values unlooked-at. `entry` leads
    to the value under a key that the guards may look up; beside any other it is found by place.
    """
    entries = entries_of(obj)
    keys = [key if is_plain_key(key) else ANY_KEY for key, _ in entries]
    machine.guard(DictKeysAre(source, tuple(keys)))
    pairs: dict[object, Pair] = {}
    for index, (key, value) in enumerate(entries):
        if keys[index] is ANY_KEY:
            model = machine.wrap(key, DictKeyAt(source, index))
            path: Source = DictValueAt(source, index)
        else:
            model, path = machine.constant(key), entry(source, key)
        token = model.hash_key(machine)
        if token in pairs:
            raise GraphBreak(UnknownObject.of(what="equal keys", type=type(key).__name__))
        pairs[token] = model, machine.lazy(value, path)
    return pairs


@wraps(dict, collections.OrderedDict)
def _wrap_dict(machine: Machine, obj: dict[object, object], source: Source) -> Value:
    machine.guard(TypeIs(source, type(obj)))
    return live_dictionary(machine, DictValue, obj, source)


def live_dictionary(
    machine: Machine, model: type[DictValue], obj: dict[Any, Any], source: Source
) -> DictValue:
    """The model of a live dictionary whose type is guarded."""
    return _of_live(model(live_pairs(machine, obj, source), source, type(obj)), machine, obj)


@wraps(collections.defaultdict)
def _wrap_defaultdict(
    machine: Machine, obj: collections.defaultdict[object, object], source: Source
) -> Value:
    machine.guard(TypeIs(source, collections.defaultdict))
    factory = machine.lazy(obj.default_factory, SlotAttr(source, "default_factory"))
    pairs = live_pairs(machine, obj, source)
    made = DefaultDictValue(pairs, source, collections.defaultdict, factory)
    return _of_live(made, machine, obj)


def _of_live(made: DictValue, machine: Machine, obj: dict[Any, Any]) -> DictValue:
    made.table = id(obj)
    machine.tables.use(made.table, Face.OBJECT)
    return made
