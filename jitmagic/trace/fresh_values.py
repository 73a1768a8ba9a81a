"""Wraps Python objects that the trace itself creates: folded results and constants of the code.

Input: an atom, class, enum member, library function or type form, or a container of these. Output:
a Value without a source. A container becomes a new container Value, so that mutations by the traced
program do not reach the constant.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..graph.distributed.objects import is_fixed_class
from ..graph.symbolic.sym_node import as_dimension
from ..late import late_names
from .breaks import GraphBreak, UnknownObject
from .values.base import Machine, Value
from .values.containers.mappings import DictValue
from .values.containers.sequences import ListValue, SizeValue, SliceValue, TupleValue
from .values.numbers.number import dimension_value
from .values.numpy_scalars import ARRAY_SCALARS
from .values.objects.callables import BuiltinValue
from .values.objects.constants import ATOMS, ConstantValue
from .values.objects.enums import EnumValue
from .values.objects.fixed_objects import FixedValue
from .values.objects.identity import IdentityValue
from .values.objects.type_forms import TYPE_FORMS, TypeFormValue

if TYPE_CHECKING:
    from .values.containers.set_store import SetStore
    from .values.containers.sets import SetValue
else:
    late_names(
        globals(),
        {
            "trace.values.containers.set_store": "SetStore",
            "trace.values.containers.sets": "SetValue",
        },
    )

__all__ = ["fresh_value"]


def _dict(machine: Machine, obj: dict[object, object]) -> Value:
    pairs = ((machine.constant(key), machine.constant(value)) for key, value in obj.items())
    return DictValue.of(machine, pairs)


def _items(machine: Machine, obj: Any) -> list[Value]:
    return [machine.constant(item) for item in obj]


def _dimension(machine: Machine, obj: Any) -> Value:
    size = as_dimension(obj)
    if size is obj:
        raise GraphBreak(UnknownObject.of(what="a ragged size", type="NestedTensor"))
    return dimension_value(machine, size)


_MAKERS: dict[type, Callable[[Machine, Any], Value]] = {
    tuple: lambda machine, obj: TupleValue(_items(machine, obj)),
    list: lambda machine, obj: ListValue(_items(machine, obj)),
    torch.SymInt: _dimension,
    torch.SymBool: lambda machine, obj: ConstantValue(bool(obj)),
    torch.Size: lambda machine, obj: SizeValue(_items(machine, obj)),
    # The order of a set depends on its insertions and resizes, which an exit cannot repeat. A
    # frozenset is immutable, so an exit can use the object itself.
    set: lambda machine, obj: SetValue(SetStore.of_constant(machine, obj)),
    frozenset: lambda machine, obj: SetValue(SetStore.of_constant(machine, obj)),
    dict: _dict,
    slice: lambda machine, obj: SliceValue(_items(machine, (obj.start, obj.stop, obj.step))),
}


def fresh_value(machine: Machine, obj: object) -> Value:
    """Return a sourceless Value for `obj`; break the graph for objects of any other kind."""
    kind = type(obj)
    # The exact type, because a subclass of int or str may override the operators.
    if kind in ATOMS or kind in ARRAY_SCALARS:
        return ConstantValue(obj)
    if (maker := _MAKERS.get(kind)) is not None:
        return maker(machine, obj)
    if isinstance(obj, type):
        value = machine.class_of(obj, None)
        assert isinstance(value, Value)
        return value
    if isinstance(obj, enum.Enum):
        return EnumValue(obj)
    if isinstance(obj, types.BuiltinFunctionType | types.FunctionType):
        return BuiltinValue(obj)
    if isinstance(obj, TYPE_FORMS):
        return TypeFormValue(obj)
    if is_fixed_class(kind):
        return FixedValue(obj)
    if kind is object:
        return IdentityValue(obj)
    raise GraphBreak(UnknownObject.of(what="a result", type=kind.__name__))
