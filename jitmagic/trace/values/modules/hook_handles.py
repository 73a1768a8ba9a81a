"""Traces the registration and removal of hooks on modules (RemovableHandle).

Input: a new RemovableHandle for a table of hooks. Output: the handle as a new object. Its id comes
from torch's counter and differs in every call, so no guard may contain it; only an exit where the
handle is live takes a number. The weak reference to the table is treated as alive, since a removal
from a dead table has no visible effect.
"""

from __future__ import annotations

from torch.utils.hooks import RemovableHandle

from ...builtins.registry import handles
from ...residual_torch_calls import take_hook_number
from ...result import Recipe
from ..base import Args, Builder, Kwargs, Machine, Value
from ..containers.mappings import DictValue
from ..containers.sequences import ListValue, TupleValue
from ..objects.instances import InstanceValue
from ..objects.opaque import WithoutOperators
from ..objects.operators import is_none
from ..objects.weak_references import NewReference

__all__: list[str] = []

_TABLE, _MORE = "hooks_dict_ref", "extra_dict_ref"


class HookNumber(WithoutOperators):
    """The id of a new handle, which is the key of its hook."""

    __slots__ = ()

    def python_type(self, machine: Machine) -> type:
        return int

    def truth(self, machine: Machine) -> bool:
        self.refuse(machine, "bool()")

    # Equal to no other key: torch's counter only grows, so that no table has the number yet.
    def hash_key(self, machine: Machine) -> object:
        return self

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(take_hook_number, ())

    def describe(self) -> str:
        return "the number of a new hook"


@handles(RemovableHandle.__init__.__code__)
def _make_handle(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    function, handle, table = args
    if not isinstance(handle, InstanceValue) or not isinstance(table, DictValue):
        return machine.inline(function, args[1:], kwargs)
    more = kwargs.get("extra_dict")
    tables: list[Value] = [] if more is None or is_none(more) else [more]
    if isinstance(more, ListValue):
        tables = more.realized(machine)
    handle.set_attr(machine, _TABLE, NewReference(table))
    handle.set_attr(machine, "id", HookNumber())
    handle.set_attr(machine, _MORE, TupleValue([NewReference(extra) for extra in tables]))
    return machine.constant(None)


@handles(RemovableHandle.remove.__code__)
def _remove_hook(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    function, handle = args
    # A live handle has a real id and weak references, which torch's own code reads.
    if handle.source is not None or not isinstance(handle, InstanceValue):
        return machine.inline(function, args[1:], kwargs)
    number = handle.get_attr(machine, "id").realize(machine)
    more = handle.get_attr(machine, _MORE).realize(machine)
    references = [handle.get_attr(machine, _TABLE).realize(machine)]
    references += more.realized(machine) if isinstance(more, TupleValue) else []
    for reference in references:
        if not isinstance(reference, NewReference):
            return machine.inline(function, args[1:], kwargs)
        table = reference.target.realize(machine)
        # torch asks `self.id in hooks_dict` before it deletes: a second remove() is no error.
        table.call_method(machine, "pop", [number, machine.constant(None)], {})
    return machine.constant(None)
