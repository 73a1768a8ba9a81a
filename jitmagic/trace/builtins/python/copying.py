"""copy.copy and copy.deepcopy of containers, plain instances and tensors.

As in the copy module, atoms, functions and classes are themselves, containers and instances are
rebuilt, and an object that occurs twice is copied once. Objects that customise their copying, or
that copy more than their values, break.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from ....graph.memory import storage_under
from ...breaks import GraphBreak, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.deques import DequeValue
from ...values.containers.keys import is_user_code
from ...values.containers.mappings import DefaultDictValue, DictValue
from ...values.containers.namedtuples import NamedTupleValue
from ...values.containers.sequences import ListValue, SliceValue, TupleValue
from ...values.containers.set_store import SetStore, operand_of_values
from ...values.containers.sets import SetValue
from ...values.numbers.number import NumberValue
from ...values.objects.callables import BuiltinValue
from ...values.objects.class_facts import NOTHING, attribute_of_class, guarded_attribute
from ...values.objects.classes import ClassValue
from ...values.objects.constants import ConstantValue
from ...values.objects.enums import EnumValue
from ...values.objects.functions import FunctionValue
from ...values.objects.instances import InstanceValue
from ...values.tensors.tensor import TensorValue, record
from ..registry import handles

__all__: list[str] = []

Part = Callable[[Value], Value]

_THEMSELVES = (ConstantValue, ClassValue, FunctionValue, NumberValue)
# Names that copy.copy, copy.deepcopy, or object.__reduce_ex__ on their behalf look up on the class.
# `__replace__`, which each dataclass has since 3.13, is not one of them: only copy.replace calls
# it. While it was listed, each copy of a dataclass broke the graph there.
_HOOKS = (
    "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__",
    "__getnewargs__", "__getnewargs_ex__", "__new__", "__slots__",
)  # fmt: skip


@handles(copy.copy)
def _copy(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1:
        raise GraphBreak(UnsupportedArguments.of(name="copy.copy", what="such arguments"))
    value = args[0]
    # copy.copy returns immutable objects themselves.
    if type(value) is TupleValue or isinstance(value, SliceValue):
        return value
    if isinstance(value, SetValue):
        return value.call_method(machine, "copy", [], {})
    if isinstance(value, TensorValue):
        # copy.copy makes a tensor over the same storage that is no view of the original and has a
        # version counter of its own. No operation of a graph returns such a tensor.
        value.refuse(machine, "copy.copy")
    copied = _rebuilt(machine, value, lambda item: item, {})
    return value if copied is None else copied


@handles(copy.deepcopy)
def _deepcopy(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1:
        raise GraphBreak(UnsupportedArguments.of(name="copy.deepcopy", what="a memo"))
    return _deep(machine, args[0], {})


def _deep(machine: Machine, value: Value, memo: dict[Value, Value]) -> Value:
    value = value.realize(machine)
    if value in memo:
        return memo[value]
    copied = _rebuilt(machine, value, lambda item: _deep(machine, item, memo), memo)
    if copied is None:
        return value
    return memo.setdefault(value, copied)


def _rebuilt(machine: Machine, value: Value, part: Part, memo: dict[Value, Value]) -> Value | None:
    """Return a copy made of `part` of each part; None: the object is its own copy.

    `memo` gets an object that may contain itself before its parts are copied.
    """
    if isinstance(value, _THEMSELVES) or type(value) is BuiltinValue:
        return None
    if isinstance(value, EnumValue) and _is_unhooked(machine, value):
        return None
    if type(value) is TupleValue:
        return _tuple(machine, value, part)
    if isinstance(value, NamedTupleValue):
        return NamedTupleValue(value.cls, [part(item) for item in value.items])
    if isinstance(value, ListValue):
        # Recorded before its items are copied, because a list may contain itself.
        listed = memo[value] = ListValue([])
        listed.items.extend(part(item) for item in list(value.items))
        return listed
    if isinstance(value, DequeValue):
        copied = memo[value] = value.like([])
        copied.store.extend([part(item) for item in list(value.items)])
        return copied
    if isinstance(value, DictValue):
        return _dictionary(machine, value, part, memo)
    if isinstance(value, SetValue) and value.is_constant(machine):
        values = operand_of_values(machine, value.store.values)  # deepcopy adds items one by one
        copied_set = SetStore.of_call(machine, value.kind, values)
        if not value.store.is_ordered:
            copied_set.forget_order()
        return SetValue(copied_set)
    if type(value) is TensorValue:
        return _tensor(machine, value, memo)
    if type(value) is InstanceValue:
        return _instance(machine, value, part, memo)
    value.refuse(machine, "copying")


def _is_unhooked(machine: Machine, member: EnumValue) -> bool:
    """Return whether no code of the user's customises how the member is copied."""
    hooks = [guarded_attribute(machine, type(member.value), name) for name in _HOOKS[:4]]
    return not any(map(is_user_code, hooks))


def _tuple(machine: Machine, value: TupleValue, part: Part) -> Value | None:
    """Return a copied tuple, or the tuple itself if no item was copied."""
    items = value.realized(machine)
    copied = [part(item) for item in items]
    same = all(before is after for before, after in zip(items, copied, strict=True))
    return None if same else TupleValue(copied)


def _dictionary(
    machine: Machine, value: DictValue, part: Part, memo: dict[Value, Value]
) -> DictValue:
    if value.has_attributes(machine):
        value.refuse(machine, "copying with attributes")
    if isinstance(value, DefaultDictValue):
        copied: DictValue = DefaultDictValue(part(value.factory))
    else:
        copied = DictValue(kind=value.kind)
    memo[value] = copied
    for key, item in list(value.pairs.values()):
        copied.put(machine, part(key), part(item))
    return copied


def _tensor(machine: Machine, value: TensorValue, memo: dict[Value, Value]) -> Value:
    """Copy a tensor; views of one memory would be copied together, so they break."""
    meta = value.meta
    # Tensor.__deepcopy__ copies the whole storage, then sets strides, requires_grad, the attributes
    # of the object and `.grad`. clone() is equal to it only for a plain contiguous tensor.
    plain = value.kind.__name__ == "Tensor" and meta.is_contiguous() and not meta.requires_grad
    if not plain or (value.live is not None and vars(value.live)):
        value.refuse(machine, "copying")
    if value.source is not None:
        grad = value.get_attr(machine, "grad").realize(machine)
        if not (isinstance(grad, ConstantValue) and grad.value is None):
            value.refuse(machine, "copying with its gradient")
    # deepcopy keeps aliasing: two views of one memory give two views of one copy.
    memory = storage_under(meta)
    others = (known for known in memo if isinstance(known, TensorValue))
    if any(storage_under(known.meta) == memory for known in others):
        value.refuse(machine, "copying with another view of its memory")
    return record(machine, "clone", [value])


def _instance(
    machine: Machine, value: InstanceValue, part: Part, memo: dict[Value, Value]
) -> InstanceValue:
    kind = value.cls.live
    for name in _HOOKS:
        raw, _ = value.cls.find(machine, name)
        if raw is not NOTHING and raw is not attribute_of_class(object, name):
            value.refuse(machine, f"copying past {name}")
    # Without a `__dict__` the state is in slots or in C, and only Python's own copy reads it.
    if not kind.__dictoffset__:
        value.refuse(machine, "copying")
    copied = memo[value] = InstanceValue(value.cls)
    for key, content in list(value.table(machine).pairs.values()):
        copied.table(machine).put(machine, key, part(content))
    return copied
