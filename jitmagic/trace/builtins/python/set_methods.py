"""Methods and constructors of set and frozenset."""

from __future__ import annotations

from functools import partial

from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.mappings import DictValue
from ...values.containers.set_store import (
    Operand,
    SetStore,
    operand_of_item,
    operand_of_keys,
    operand_of_values,
)
from ...values.containers.sets import SetValue
from ...values.objects.operators import unpack
from ..registry import handles, method, methods

__all__ = ["operand_of"]


def operand_of(machine: Machine, value: Value) -> Operand:
    """Return any iterable as the operand of a set method."""
    value = value.realize(machine)
    if isinstance(value, SetValue):
        return value.store.operand()
    if isinstance(value, DictValue) and value.kind is dict:
        return operand_of_keys(machine, value.keys())
    return operand_of_values(machine, unpack(machine, value))


def _as_set(value: Value) -> SetValue:
    assert isinstance(value, SetValue)
    return value


@handles(set)
def _set(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return _made(machine, set, args)


@handles(frozenset)
def _frozenset(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    # frozenset(s) returns s itself if it is exactly a frozenset.
    if len(args) == 1 and isinstance(args[0], SetValue) and args[0].kind is frozenset:
        return args[0]
    return _made(machine, frozenset, args)


def _made(machine: Machine, kind: type, args: Args) -> Value:
    if len(args) > 1:
        raise machine.error(TypeError, "expected at most 1 argument")
    # Of a set or dict CPython sizes the new table before it copies (set_update_internal in
    # setobject.c), so that the order of items may differ from that after adding one by one.
    # SetStore.of_call repeats the call itself on mirrors.
    if not args or (kind is set and not isinstance(args[0], SetValue | DictValue)):
        return SetValue.of(machine, unpack(machine, args[0]) if args else ())
    return SetValue(SetStore.of_call(machine, kind, operand_of(machine, args[0])))


@method(set, "remove")
def _remove(machine: Machine, owner: Value, item: Value) -> None:
    if not _as_set(owner).store.has(item):
        # The argument of the KeyError is the item itself.
        raise machine.error(KeyError, item, exact=True)
    _as_set(owner).change(machine, "discard", operand_of_item(machine, item))


@method(set, "pop")
def _pop(machine: Machine, owner: Value) -> Value:
    target = _as_set(owner)
    if not target.store.length():
        raise machine.error(KeyError, "pop from an empty set", exact=True)
    taken = target.store.pop()
    if taken is None:
        target.refuse(machine, "pop() (its order is not known)")
    machine.effects.contents(target)
    return taken


def _has(machine: Machine, owner: Value, item: Value) -> Value:
    return owner.contains(machine, item)


def _copy(machine: Machine, owner: Value) -> Value:
    return SetValue(SetStore.of_call(machine, set.copy, _as_set(owner).store.operand()))


methods(
    set,
    {
        "add": lambda machine, owner, item: _as_set(owner).add(machine, item),
        "discard": lambda machine, owner, item: _as_set(owner).change(
            machine, "discard", operand_of_item(machine, item)
        ),
        "clear": lambda machine, owner: _as_set(owner).change(machine, "clear"),
        "__contains__": _has,
        "copy": _copy,
        "__copy__": _copy,
    },
)
methods(
    frozenset,
    {
        "__contains__": _has,
        "copy": lambda machine, owner: owner,
        "__copy__": lambda machine, owner: owner,
    },
)


def _algebra(name: str, machine: Machine, owner: Value, *others: Value) -> Value:
    """Return `union`, `difference`, ...: unlike the operators, they accept any iterables."""
    target = _as_set(owner)
    operands = [operand_of(machine, one) for one in others]
    make = getattr(target.kind, name)
    return SetValue(SetStore.of_call(machine, make, target.store.operand(), *operands))


def _change(name: str, machine: Machine, owner: Value, *others: Value) -> None:
    operands = [operand_of(machine, one) for one in others]
    # update() takes several iterables, and adds one after the other.
    for given in [[one] for one in operands] if name == "update" else [operands]:
        _as_set(owner).change(machine, name, *given)


def _test(name: str, machine: Machine, owner: Value, other: Value) -> object:
    return getattr(_as_set(owner).store.mirror, name)(operand_of(machine, other).mirror)


_ALGEBRA = ("union", "intersection", "difference", "symmetric_difference")
_TESTS = ("issubset", "issuperset", "isdisjoint")
for _kind in (set, frozenset):
    methods(_kind, {name: partial(_algebra, name) for name in _ALGEBRA})
    methods(_kind, {name: partial(_test, name) for name in _TESTS})
_CHANGES = ("update", *(f"{name}_update" for name in _ALGEBRA[1:]))
methods(set, {name: partial(_change, name) for name in _CHANGES})
