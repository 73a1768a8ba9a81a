"""Constructors and methods of list, tuple, dict, slice and similar containers."""

from __future__ import annotations

import collections
from collections.abc import Iterator

from ...breaks import GraphBreak, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.dict_objects import DictObjectValue, mapping_pairs
from ...values.containers.iterators import StepIterator
from ...values.containers.mappings import DefaultDictValue, DictValue, Pair, ViewValue
from ...values.containers.sequences import (
    ItemsValue,
    ListValue,
    SliceValue,
    StoredItems,
    TupleValue,
)
from ...values.containers.table_store import TableStore
from ...values.objects.classes import ClassValue
from ...values.objects.constants import ConstantValue, fold
from ...values.objects.operators import binary, equal, index_of, unpack
from ..registry import AS_GIVEN, handles, method, methods

__all__: list[str] = []


# -- constructors ----------------------------------------------------------------------------------


def _first(machine: Machine, args: Args) -> list[Value]:
    """Return the items of the one argument, if there is one."""
    if len(args) > 1:
        raise machine.error(TypeError, "expected at most 1 argument")
    return unpack(machine, args[0]) if args else []


@handles(list)
def _list(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    # Copies a live list without reading its items, which would be guarded one by one.
    if len(args) == 1 and isinstance(args[0], StoredItems):
        return args[0].as_list()
    return ListValue(_first(machine, args))


@handles(tuple)
def _tuple(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    # tuple(t) returns t itself if it is exactly a tuple.
    if len(args) == 1 and isinstance(args[0], TupleValue) and args[0].python_type(machine) is tuple:
        return args[0]
    return TupleValue(_first(machine, args))


@handles(slice)
def _slice(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    none = ConstantValue(None)
    if not 1 <= len(args) <= 3:
        fold(machine, slice, *args)
    if len(args) == 1:
        # A single argument is the end, as in range(stop).
        return SliceValue([none, args[0], none])
    return SliceValue([*args, none][:3])


def _pairs(machine: Machine, args: Args, kwargs: Kwargs) -> list[Pair]:
    pairs: list[Pair] = []
    if args and (mapping := mapping_pairs(machine, args[0])) is not None:
        pairs += mapping
    elif args:
        refuse_mapping(machine, args[0])
        for row in unpack(machine, args[0]):
            key, value = _pair(machine, row)
            pairs.append((key, value))
    return [*pairs, *((machine.constant(name), value) for name, value in kwargs.items())]


def refuse_mapping(machine: Machine, value: Value) -> None:
    """Break for an object with keys(): dict() calls that instead of iterating."""
    if hasattr(value.python_type(machine), "keys"):
        value.refuse(machine, "use as a mapping")


def _pair(machine: Machine, row: Value) -> list[Value]:
    parts = unpack(machine, row)
    if len(parts) != 2:
        # CPython's text also names the index of the row. The error is not `exact`, so a program
        # that reads the text breaks the graph.
        message = f"dictionary update sequence element has length {len(parts)}; 2 is required"
        raise machine.error(ValueError, message)
    return parts


@handles(dict, like=AS_GIVEN)
def _dict(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return DictValue.of(machine, _pairs(machine, args, kwargs))


@handles(collections.OrderedDict, like=AS_GIVEN)
def _ordered_dict(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return DictValue.of(machine, _pairs(machine, args, kwargs), collections.OrderedDict)


@handles(collections.defaultdict, like=AS_GIVEN)
def _defaultdict(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    made = DefaultDictValue(args[0] if args else None)
    for key, value in _pairs(machine, args[1:], kwargs):
        made.put(machine, key, value)
    return made


def _as_list(value: Value) -> ListValue:
    assert isinstance(value, ListValue)
    return value


def _as_dict(machine: Machine, value: Value) -> DictValue:
    found: DictValue | None = value.as_dictionary(machine)
    if found is None:
        value.refuse(machine, "a method of dictionaries")
    return found


def _accessible(machine: Machine, value: Value, name: str) -> DictValue:
    """Break for methods of OrderedDict that call back into a subclass."""
    if isinstance(value, DictObjectValue):
        return value.accessible(machine, name)
    return _as_dict(machine, value)


# -- list and tuple ------------------------------------------------------------------------------


# Lazy: append() only stores its argument, and a read would guard an object that the graph may never
# use.
methods(
    list, {"append": lambda machine, owner, item: _as_list(owner).append(machine, item)}, lazy=True
)
methods(
    list,
    {
        "extend": lambda machine, owner, items: _as_list(owner).extend(machine, items),
        "insert": lambda machine, owner, index, item: _as_list(owner).insert(
            machine, index_of(machine, index), item
        ),
        "clear": lambda machine, owner: _as_list(owner).change(machine, []),
        "reverse": lambda machine, owner: owner.change(machine, _as_list(owner).items[::-1]),
        "copy": lambda machine, owner: _as_list(owner).as_list(),
    },
)


@method(list, "pop")
def _pop(machine: Machine, owner: Value, at: Value | None = None) -> Value:
    target = _as_list(owner)
    index = -1 if at is None else index_of(machine, at)
    # A queue that is consumed from the front must not guard all of its items.
    if index == 0 and (first := target.take_first(machine)) is not None:
        return first
    if not target.items:
        raise machine.error(IndexError, "pop from empty list")
    if not -len(target.items) <= index < len(target.items):
        raise machine.error(IndexError, "pop index out of range")
    return target.take(machine, index)


@method(list, "remove")
@method(collections.deque, "remove")
def _remove(machine: Machine, owner: Value, wanted: Value) -> None:
    assert isinstance(owner, StoredItems)
    for position, item in enumerate(owner.walk(machine)):
        if equal(machine, item, wanted):
            owner.take(machine, position)
            return
    raise machine.error(ValueError, f"{owner.kind.__name__}.remove(x): x not in it")


@method(list, "index")
@method(tuple, "index")
@method(collections.deque, "index")
def _index(
    machine: Machine,
    owner: Value,
    sought: Value,
    start: Value | None = None,
    stop: Value | None = None,
) -> int:
    assert isinstance(owner, ItemsValue)
    # list.index() clamps its bounds to the list, as a slice does.
    limits = [None if one is None else index_of(machine, one) for one in (start, stop)]
    wanted = range(len(owner.items))[slice(*limits)]
    for position, item in enumerate(owner.walk(machine)):
        if position in wanted and equal(machine, item, sought):
            return position
    raise machine.error(ValueError, f"the value is not in the {owner.kind.__name__}")


def _count(machine: Machine, owner: ItemsValue, item: Value) -> int:
    return sum(equal(machine, one, item) for one in owner.walk(machine))


for _kind in (list, tuple, collections.deque):
    methods(_kind, {"count": _count})


# -- dict ----------------------------------------------------------------------------------------


methods(
    dict,
    {
        "keys": lambda machine, owner: ViewValue(_as_dict(machine, owner), "keys"),
        "values": lambda machine, owner: ViewValue(_as_dict(machine, owner), "values"),
        "items": lambda machine, owner: ViewValue(_as_dict(machine, owner), "items"),
        "clear": lambda machine, owner: _as_dict(machine, owner).clear(machine),
        "__setitem__": lambda machine, owner, key, value: _as_dict(machine, owner).set_item(
            machine, key, value
        ),
        "__delitem__": lambda machine, owner, key: _as_dict(machine, owner).del_item(machine, key),
        "__len__": lambda machine, owner: _as_dict(machine, owner).length(machine),
        "__iter__": lambda machine, owner: _as_dict(machine, owner).iterate(machine),
    },
)
methods(
    dict,
    {
        # Lazy: a key that is a text of the call is looked up without a guard on the text. Twenty
        # keys whose values are alike are one variant (eight, then eager, when the text was
        # guarded).
        "get": lambda machine, owner, key, default=None: (
            _as_dict(machine, owner).find(machine, key) or default
        ),
        "__getitem__": lambda machine, owner, key: _as_dict(machine, owner).get_item(machine, key),
        "__contains__": lambda machine, owner, key: _as_dict(machine, owner).contains(machine, key),
    },
    lazy=True,
)


@method(dict, "setdefault")
def _setdefault(machine: Machine, owner: Value, key: Value, default: Value | None = None) -> Value:
    target = _accessible(machine, owner, "setdefault")
    found = target.find(machine, key)
    if found is None:
        found = default or machine.constant(None)
        target.set_item(machine, key, found)
    return found


@method(dict, "pop")
def _pop_key(machine: Machine, owner: Value, key: Value, default: Value | None = None) -> Value:
    target = _accessible(machine, owner, "pop")
    found = target.find(machine, key)
    if found is None:
        # pop() never calls `__missing__`, not even that of a defaultdict.
        return default or DictValue.missing(target, machine, key)
    target.del_item(machine, key)
    return found


# Of dict.popitem() too, which OrderedDict's handler is.
@method(dict, "popitem", like=lambda self, last=True: None)
def _popitem(machine: Machine, owner: Value, last: Value | None = None) -> Value:
    target = _accessible(machine, owner, "popitem")
    if not target.pairs:
        raise machine.error(KeyError, "popitem(): dictionary is empty")
    # dict.popitem() takes no arguments, so Python raises its TypeError.
    if last is not None and target.kind is not collections.OrderedDict:
        raise GraphBreak(UnsupportedArguments.of(name="popitem", what="arguments"))
    backwards = last is None or last.truth(machine)
    token = next(reversed(target.pairs) if backwards else iter(target.pairs))
    pair = target.pairs[token]
    target.store.erase(token, pair[0])
    target.changed(machine)
    return TupleValue(pair)


@method(dict, "__reversed__")
def _reversed_keys(machine: Machine, owner: Value) -> Value:
    target = _as_dict(machine, owner)

    def steps() -> Iterator[Value]:
        before = list(target.pairs)
        for token in reversed(before):
            # CPython's reverse iterator compares the number of keys alone: if one key has replaced
            # another, the iteration goes on. The break leaves both cases to it.
            if list(target.pairs) != before:
                target.refuse(machine, "iteration while keys are added or removed")
            yield target.pairs[token][0]

    ordered = issubclass(target.kind, collections.OrderedDict)
    kind = collections.OrderedDict if ordered else dict
    return StepIterator(machine, type(reversed(kind())), steps())


@method(dict, "__init__", like=AS_GIVEN)
def _init_dict(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    # The first argument of defaultdict.__init__ is the factory, not a mapping.
    if owner.python_type(machine) is collections.defaultdict:
        owner.refuse(machine, "__init__()")
    return _update(machine, owner, args, kwargs)


@method(dict, "update", like=AS_GIVEN)
def _update(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    if not args and not kwargs:
        return machine.constant(None)
    target = _accessible(machine, owner, "update")
    for key, value in _pairs(machine, args, kwargs):
        target.put(machine, key, value)
    target.changed(machine)
    return machine.constant(None)


@handles(collections._count_elements)  # type: ignore[attr-defined]
def _count_elements(machine: Machine, counts: Value, items: Value) -> None:
    """Count items in a mapping, as the Python version of this function in `collections` does."""
    get = counts.get_attr(machine, "get").realize(machine)
    for item in unpack(machine, items):
        known = get.call(machine, [item, machine.constant(0)], {}).realize(machine)
        counts.set_item(machine, item, binary(machine, "+", known, machine.constant(1)))


@method(dict, "copy")
def _copy_dict(machine: Machine, owner: Value) -> Value:
    target = _as_dict(machine, owner)
    pairs = dict(target.pairs)
    if isinstance(target, DefaultDictValue):
        return DefaultDictValue(target.factory, TableStore(pairs, target.kind))
    # dict.copy() of a subclass returns a plain dict, OrderedDict.copy() one of its class.
    if isinstance(owner, DictObjectValue) and not issubclass(target.kind, collections.OrderedDict):
        return DictValue(pairs)
    if target.kind not in (dict, collections.OrderedDict):
        owner.refuse(machine, "copy()")
    return DictValue(pairs, kind=target.kind)


@method(dict, "fromkeys")
def _fromkeys(machine: Machine, owner: Value, keys: Value, default: Value | None = None) -> Value:
    value = default or machine.constant(None)
    kind = owner.live if isinstance(owner, ClassValue) else owner.python_type(machine)
    if kind not in (dict, collections.OrderedDict):
        owner.refuse(machine, "fromkeys()")
    return DictValue.of(machine, ((key, value) for key in unpack(machine, keys)), kind)


@method(dict, "__eq__")
def _equals(machine: Machine, owner: Value, right: Value) -> Value:
    other = right.as_dictionary(machine)
    if other is None:
        return machine.constant(NotImplemented)
    same = _as_dict(machine, owner).compare(machine, "==", other)
    assert same is not None
    return same


@method(dict, "__ne__")
def _differs(machine: Machine, owner: Value, right: Value) -> object:
    same = _equals(machine, owner, right).as_constant(machine)
    return same if same is NotImplemented else not same


@method(dict, "__ior__")
def _update_in_place(machine: Machine, owner: Value, right: Value) -> Value:
    _update(machine, owner, [right], {})
    return owner


@method(collections.OrderedDict, "move_to_end")
def _move_to_end(machine: Machine, owner: Value, key: Value, last: Value | None = None) -> None:
    target = _as_dict(machine, owner)
    token = key.hash_key(machine)
    # As in pop(): the KeyError is the base class's, and no `__missing__` runs.
    if token not in target.pairs:
        DictValue.missing(target, machine, key)
    target.store.move(token, key, last=last is None or last.truth(machine))
    target.changed(machine)
