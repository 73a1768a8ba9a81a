"""Constructors of the built-in containers: list(x), tuple(x), dict(x), slice(...)."""

from __future__ import annotations

import collections

from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.dict_objects import mapping_pairs
from ...values.containers.mappings import DefaultDictValue, DictValue, Pair
from ...values.containers.sequences import ListValue, SliceValue, StoredItems, TupleValue
from ...values.objects.constants import ConstantValue
from ...values.objects.operators import unpack
from ..registry import handles

__all__ = ["refuse_mapping"]


def _first(machine: Machine, args: Args) -> list[Value]:
    """Return the items of the one argument, if there is one."""
    return unpack(machine, args[0]) if args else []


@handles(list)
def _list(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    # Copies a live list without reading its items, which would be guarded one by one.
    if args and isinstance(args[0], StoredItems):
        return args[0].as_list()
    return ListValue(_first(machine, args))


@handles(tuple)
def _tuple(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    # tuple(t) returns t itself if it is exactly a tuple.
    if args and isinstance(args[0], TupleValue) and args[0].python_type(machine) is tuple:
        return args[0]
    return TupleValue(_first(machine, args))


@handles(slice)
def _slice(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    none = ConstantValue(None)
    if len(args) == 1:
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
        message = f"dictionary update sequence element has length {len(parts)}; 2 is required"
        raise machine.error(ValueError, message)
    return parts


@handles(dict)
def _dict(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return DictValue.of(machine, _pairs(machine, args, kwargs))


@handles(collections.OrderedDict)
def _ordered_dict(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return DictValue.of(machine, _pairs(machine, args, kwargs), collections.OrderedDict)


@handles(collections.defaultdict)
def _defaultdict(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    made = DefaultDictValue(args[0] if args else None)
    for key, value in _pairs(machine, args[1:], kwargs):
        made.put(machine, key, value)
    return made
