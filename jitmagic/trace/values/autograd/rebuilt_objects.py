"""Rebuilds objects of a frame when its backward runs in eager.

Input: values of the frame that were stored on the `ctx` of an autograd function, or passed to a
function that is recomputed. Output: functions that build the objects from the tensors and sizes
that the graph saved (`left`) and the live objects that the call saved (`held`). Objects created by
the frame are built anew each time; live objects are taken from `held`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

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
from .backward_facts import BackwardFacts, SavedObjects, unwrapped

__all__ = ["ObjectRebuilder"]

Make = Callable[[Sequence[object], tuple[object, ...]], Any]
"""Builds an object from the tensors and sizes of the graph and the objects saved by the call."""


class ObjectRebuilder:
    """Plans how to build the `ctx` of one call from saved values; `facts` reports refusals."""

    def __init__(self, machine: Machine, facts: BackwardFacts) -> None:
        self._machine, self._facts = machine, facts
        self._held = machine.notes.root.of(SavedObjects)
        self._left: list[object] = []  # tensors and numbers: nodes, or Sizes

    def original(
        self, cls: ClassValue, attributes: dict[str, Value]
    ) -> tuple[Make, tuple[Any, ...]]:
        """Return the builder of the class and attributes of `ctx`, and the tensors and sizes that
        it needs.
        """
        function = self._maker(cls)
        makers = {name: self._maker(value) for name, value in attributes.items()}

        def make(left: Sequence[object], held: tuple[object, ...]) -> object:
            named = {name: maker(left, held) for name, maker in makers.items()}
            return function(left, held), named

        return make, tuple(self._left)

    def rebuilt(self, values: Sequence[Value]) -> tuple[Make, tuple[Any, ...]]:
        """Return the builder of a list of objects, and the tensors and sizes that it needs."""
        return self._gathered(list, values), tuple(self._left)

    def _maker(self, value: Value) -> Make:
        value = unwrapped(value)
        # Before the source, where another number may be when the backward runs: the graph saved the
        # one of this forward.
        if isinstance(value, NumberValue) and value.is_plain:
            return self._number(value)
        if value.source is not None:
            held = self._held.index(value.source)
            return lambda left, held_: held_[held]
        if isinstance(value, TensorValue):
            return self._taken(value.node)
        return self._maker_of_own(value)

    def _number(self, value: NumberValue) -> Make:
        take, kind = self._taken(value.scalar.form), value.kind
        if value.scalar.is_size:
            return take
        return lambda left, held: kind(take(left, held))

    def _taken(self, node: object) -> Make:
        index = len(self._left)
        self._left.append(node)
        return lambda left, held: left[index]

    def _maker_of_own(self, value: Value) -> Make:
        match value:
            case ConstantValue(value=constant) | BuiltinValue(obj=constant):
                return lambda left, held: constant
            case ClassValue(live=live) | FunctionValue(live=live) if live is not None:
                return lambda left, held: live
            case BoundMethodValue():
                return self._combined(types.MethodType, (value.function, value.owner))
            case CellValue(contents=contents):
                # CellType() is an empty cell, which raises when it is read; CellType(None) holds
                # None.
                return self._combined(types.CellType, () if contents is None else (contents,))
            case FunctionValue():
                return self._maker_of_function(value)
            # Before TupleValue, its base class, whose case would build it from one iterable.
            case NamedTupleValue():
                # A `__new__` of the class takes the fields as separate arguments.
                return self._gathered(partial(tuple.__new__, value.cls.live), value.items)
            case TupleValue():
                return self._gathered(value.python_type(self._machine), value.items)
            case PartialValue():
                return self._maker_of_partial(value)
            case ListValue():
                return self._gathered(list, value.items)
            case DictValue(kind=kind):
                keys, values = (
                    self._gathered(list, value.keys()),
                    self._gathered(list, value.values()),
                )
                return lambda left, held: kind(
                    zip(keys(left, held), values(left, held), strict=True)
                )
            case SetValue():
                return self._gathered(set, list(value.parts()))
            case InstanceValue():
                return self._maker_of_instance(value)
        constant = value.as_constant(self._machine)
        return lambda left, held: constant

    def _combined(self, function: Callable[..., object], parts: Sequence[Value]) -> Make:
        makers = [self._maker(part) for part in parts]
        return lambda left, held: function(*(maker(left, held) for maker in makers))

    def _gathered(self, kind: AnyFunction, parts: Sequence[Value]) -> Make:
        makers = [self._maker(part) for part in parts]
        return lambda left, held: kind([maker(left, held) for maker in makers])

    def _maker_of_function(self, value: FunctionValue) -> Make:
        code, names, name = value.code, value.globals.store.live, value.name
        parts = (value.defaults, value.kwdefaults)
        defaults, named = (self._maker(part) for part in parts)
        cells = self._gathered(tuple, value.closure)

        def make(left: Sequence[object], held: tuple[object, ...]) -> object:
            given = name, defaults(left, held), cells(left, held)
            made = types.FunctionType(code, names, *given)
            made.__kwdefaults__ = named(left, held)
            return made

        return make

    def _maker_of_partial(self, value: PartialValue) -> Make:
        parts = self._gathered(list, (value.function, *value.args))
        named = {name: self._maker(arg) for name, arg in value.kwargs.items()}

        def make(left: Sequence[object], held: tuple[object, ...]) -> object:
            given = {name: maker(left, held) for name, maker in named.items()}
            return partial(*parts(left, held), **given)

        return make

    def _maker_of_instance(self, value: InstanceValue) -> Make:
        cls = self._maker(value.cls)
        found = {name: one for name, one in value.slots.items() if one is not None}
        for key, one in () if value.names is None else value.names.pairs.values():
            found[str(key.realize(self._machine).as_constant(self._machine))] = one
        attributes = {name: self._maker(one) for name, one in found.items()}

        # Neither `__init__` nor a user's `__setattr__` may run again: their effects happened in the
        # forward.
        def make(left: Sequence[object], held: tuple[object, ...]) -> object:
            made = object.__new__(cls(left, held))
            for name, maker in attributes.items():
                object.__setattr__(made, name, maker(left, held))
            return made

        return make
