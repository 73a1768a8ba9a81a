"""Models immutable objects of torch.distributed: meshes, process groups, placements, DTensor specs.

Input: a live object, guarded by identity, or one that the trace makes of constants. Output: folded
attributes, methods and comparisons. The classes are found by name, because importing
torch.distributed.tensor takes 0.6 s.
"""

from __future__ import annotations

import types
from typing import NoReturn

from ....graph.distributed.objects import (
    FIXED_CLASSES,
    PLACEMENT,
    PROCESS_GROUP,
    names_of_class,
)
from ....guards.source import Source
from ...breaks import GraphBreak, UnsupportedArguments, UnsupportedAttribute
from ...wrap import by_identity, wraps_named
from ..base import Args, Kwargs, Machine, Value
from .classes import ClassValue, constructs
from .constants import ConstantMethodValue, ConstantValue, evaluate

__all__ = ["FixedValue"]

_QUERIES = frozenset(("rank", "size", "name"))  # methods of a group that do not communicate


class FixedValue(ConstantValue):
    """An immutable object; its public methods are pure."""

    __slots__ = ()

    def get_attr(self, machine: Machine, name: str) -> Value:
        value = self.as_constant(machine)
        found = evaluate(machine, getattr, value, name)
        if not isinstance(found, types.MethodType | types.BuiltinMethodType):
            return machine.constant(found)
        is_group = PROCESS_GROUP in names_of_class(self.python_type(machine))
        if (is_group and name not in _QUERIES) or name.startswith("_"):
            self._refuse(name)
        return ConstantMethodValue(self, name)

    def _refuse(self, name: str) -> NoReturn:
        raise GraphBreak(UnsupportedAttribute.of(name=name, type=self.describe()))

    def truth(self, machine: Machine) -> bool:
        return True

    def identity(self) -> object:
        return self.value


def _wrap(obj: object, source: Source) -> Value:
    return FixedValue(obj)


for _module, _name in FIXED_CLASSES:
    wraps_named(_module, _name)(by_identity(_wrap))


@constructs(lambda kind: PLACEMENT in names_of_class(kind), before_others=True)
def _placement(machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    """Make a placement of constants while tracing."""
    values = [value.realize(machine) for value in (*args, *kwargs.values())]
    if not all(value.is_constant(machine) for value in values):
        what = "arguments that are not constants"
        raise GraphBreak(UnsupportedArguments.of(name=cls.live.__name__, what=what))
    constants = [value.as_constant(machine) for value in values]
    named = dict(zip(kwargs, constants[len(args) :], strict=True))
    return FixedValue(evaluate(machine, lambda: cls.live(*constants[: len(args)], **named)))
