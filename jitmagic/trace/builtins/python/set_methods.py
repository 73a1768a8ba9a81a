"""Methods and constructors of set and frozenset."""

from __future__ import annotations

from typing import Any

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
from ..registry import handles, method

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
    if args and isinstance(args[0], SetValue) and args[0].kind is frozenset:
        return args[0]
    return _made(machine, frozenset, args)


def _made(machine: Machine, kind: type, args: Args) -> Value:
    if not args or (kind is set and not isinstance(args[0], SetValue | DictValue)):
        return SetValue.of(machine, unpack(machine, args[0]) if args else ())
    return SetValue(SetStore.of_call(machine, kind, operand_of(machine, args[0])))


@method(set, "add")
def _add(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    _as_set(owner).add(machine, args[0])
    return machine.constant(None)


@method(set, "discard")
def _discard(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    _as_set(owner).change(machine, "discard", operand_of_item(machine, args[0]))
    return machine.constant(None)


@method(set, "remove")
def _remove(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    if not _as_set(owner).store.has(args[0]):
        raise machine.error(KeyError, args[0], exact=True)
    return _discard(machine, owner, args, kwargs)


@method(set, "pop")
def _pop(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    target = _as_set(owner)
    if not target.store.length():
        raise machine.error(KeyError, "pop from an empty set", exact=True)
    taken = target.store.pop()
    if taken is None:
        target.refuse(machine, "pop() (its order is not known)")
    machine.effects.contents(target)
    return taken


@method(set, "clear")
def _clear(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    _as_set(owner).change(machine, "clear")
    return machine.constant(None)


@method(set, "__contains__")
@method(frozenset, "__contains__")
def _contains(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    return owner.contains(machine, args[0])


@method(set, "copy", "__copy__")
def _copy(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    return SetValue(SetStore.of_call(machine, set.copy, _as_set(owner).store.operand()))


@method(frozenset, "copy", "__copy__")
def _same(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    return owner


def _register_algebra(name: str) -> None:
    """Register `union`, `difference`, ...: unlike the operators, they accept any iterables."""

    def combine(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
        target = _as_set(owner)
        operands = [operand_of(machine, one) for one in args]
        make = getattr(target.kind, name)
        return SetValue(SetStore.of_call(machine, make, target.store.operand(), *operands))

    method(set, name)(combine)
    method(frozenset, name)(combine)


def _register_change(name: str) -> None:
    def change(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
        target = _as_set(owner)
        operands = [operand_of(machine, one) for one in args]
        if name == "update":
            for operand in operands:
                target.change(machine, name, operand)
        else:
            target.change(machine, name, *operands)
        return machine.constant(None)

    method(set, name)(change)


def _register_test(name: str) -> None:
    def test(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
        answer: Any = getattr(_as_set(owner).store.mirror, name)
        return machine.constant(answer(operand_of(machine, args[0]).mirror))

    method(set, name)(test)
    method(frozenset, name)(test)


for _name in ("union", "intersection", "difference", "symmetric_difference"):
    _register_algebra(_name)
for _name in ("update", "intersection_update", "difference_update", "symmetric_difference_update"):
    _register_change(_name)
for _name in ("issubset", "issuperset", "isdisjoint"):
    _register_test(_name)
