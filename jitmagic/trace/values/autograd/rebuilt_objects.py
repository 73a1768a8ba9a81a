"""Rebuilds objects of a frame when its backward runs in eager.

Input: values of the frame that were stored on the `ctx` of an autograd function, or passed to a
function that is recomputed. Output: recipes (graph/targets/object_makers.py) that build the objects
from the tensors and sizes that the graph saved and the live objects that the call saved. Objects
created by the frame are built anew each time; live objects are taken from those of the call.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any

from ....graph.targets.object_makers import (
    Constant,
    Context,
    Filled,
    Function,
    Held,
    Instance,
    Left,
    Make,
    Mapped,
    NamedItems,
    Partial,
    Result,
)
from ....torch_types import AnyFunction
from ..base import Machine, Value
from ..containers.mappings import DictValue
from ..containers.namedtuples import NamedTupleValue
from ..containers.sequences import ListValue, TupleValue
from ..containers.sets import SetValue
from ..numbers.number import NumberValue
from ..objects.callables import BuiltinValue
from ..objects.classes import ClassValue
from ..objects.constants import ConstantValue
from ..objects.functions import BoundMethodValue, CellValue, FunctionValue
from ..objects.instances import InstanceValue
from ..objects.partials import PartialValue
from ..tensors.tensor import TensorValue
from .backward_facts import BackwardFacts, unwrapped
from .traced_backwards import SavedObjects

__all__ = ["ObjectRebuilder"]


class ObjectRebuilder:
    """Plans how to build the `ctx` of one call from saved values; `facts` reports refusals.

    `in_backward`: the call is in another backward, where no objects of the frame's call are saved.
    """

    def __init__(
        self, machine: Machine, facts: BackwardFacts, *, in_backward: bool = False
    ) -> None:
        self._machine, self._facts, self._in_backward = machine, facts, in_backward
        self._held = machine.notes.root.of(SavedObjects)
        self._left: list[object] = []  # tensors and numbers: nodes, or Sizes

    def original(
        self, cls: ClassValue, attributes: dict[str, Value]
    ) -> tuple[Make, tuple[Any, ...]]:
        """Return the builder of the class and attributes of `ctx`, and the tensors and sizes that
        it needs.
        """
        function = self._maker(cls)
        return Context(function, self._named(attributes)), tuple(self._left)

    def rebuilt(self, values: Sequence[Value]) -> tuple[Make, tuple[Any, ...]]:
        """Return the builder of a list of objects, and the tensors and sizes that it needs."""
        return self._filled(list, values), tuple(self._left)

    def _maker(self, value: Value) -> Make:
        value = unwrapped(value)
        # Before the source, where another number may be when the backward runs: the graph saved the
        # one of this forward.
        if isinstance(value, NumberValue) and value.is_plain:
            kind = None if value.scalar.is_size else value.kind
            return self._taken(value.scalar.form, kind)
        if value.source is not None and self._in_backward:
            if value.by_identity:
                return Constant(value.identity())
            raise self._facts.refused("it calls itself with an object of the program")
        if value.source is not None:
            return Held(self._held.index(value.source))
        if isinstance(value, TensorValue):
            return self._taken(value.node)
        return self._maker_of_own(value)

    def _taken(self, node: object, kind: type | None = None) -> Make:
        self._left.append(node)
        return Left(len(self._left) - 1, kind)

    def _maker_of_own(self, value: Value) -> Make:
        match value:
            case ConstantValue(value=constant) | BuiltinValue(obj=constant):
                return Constant(constant)
            case ClassValue(live=live) | FunctionValue(live=live) if live is not None:
                return Constant(live)
            case BoundMethodValue():
                return self._result(types.MethodType, (value.function, value.owner))
            case CellValue(contents=contents):
                # CellType() is an empty cell, which raises when it is read; CellType(None) holds
                # None.
                return self._result(types.CellType, () if contents is None else (contents,))
            case FunctionValue():
                return self._maker_of_function(value)
            # Before TupleValue, its base class, whose case would build it from one iterable.
            case NamedTupleValue():
                return NamedItems(value.cls.live, self._makers(value.items))
            case TupleValue():
                return self._filled(value.python_type(self._machine), value.items)
            case PartialValue():
                parts = self._filled(list, (value.function, *value.args))
                return Partial(parts, self._named(value.kwargs))
            case ListValue():
                return self._filled(list, value.items)
            case DictValue(kind=kind):
                keys = self._filled(list, value.keys())
                return Mapped(kind, keys, self._filled(list, value.values()))
            case SetValue():
                return self._filled(set, list(value.parts()))
            case InstanceValue():
                return self._maker_of_instance(value)
        return Constant(value.as_constant(self._machine))

    def _makers(self, parts: Sequence[Value]) -> tuple[Make, ...]:
        return tuple([self._maker(part) for part in parts])

    def _named(self, parts: Mapping[str, Value]) -> tuple[tuple[str, Make], ...]:
        return tuple([(name, self._maker(part)) for name, part in parts.items()])

    def _result(self, function: AnyFunction, parts: Sequence[Value]) -> Make:
        return Result(function, self._makers(parts))

    def _filled(self, kind: AnyFunction, parts: Sequence[Value]) -> Filled:
        return Filled(kind, self._makers(parts))

    def _maker_of_function(self, value: FunctionValue) -> Make:
        defaults, named = self._makers((value.defaults, value.kwdefaults))
        cells = self._filled(tuple, value.closure)
        return Function(value.code, value.globals.store.live, value.name, defaults, named, cells)

    def _maker_of_instance(self, value: InstanceValue) -> Make:
        cls = self._maker(value.cls)
        found = {name: one for name, one in value.slots.items() if one is not None}
        for key, one in () if value.names is None else value.names.pairs.values():
            found[str(key.realize(self._machine).as_constant(self._machine))] = one
        return Instance(cls, self._named(found))
