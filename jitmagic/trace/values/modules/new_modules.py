"""Modules that the traced code makes: losses, activations, pools built where they are used.

Comes in: a call of a module class. Goes out: a record of attributes and tables, filled by its
`__init__`, inlined, and called like any module; an exit that hands it out makes the object and
gives it what is in the record, parameters too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...breaks import Construction, GraphBreak, UnknownObject, UnsupportedOperation
from ...builtins.registry import handler_of, handles
from ...result import Effect, Recipe
from ..base import Args, Builder, Kwargs, Machine, Value
from ..containers.mappings import DictValue
from ..containers.sets import SetValue
from ..objects.class_facts import (
    NOTHING,
    guard_attribute,
    guard_precedence,
    guarded_attribute,
    is_data_descriptor,
    is_standard,
)
from ..objects.classes import ClassValue, constructs
from ..objects.monkey_patches import MODULE, beneath
from ..objects.operators import is_none
from ..tensors.tensor import TensorValue
from ..tensors.torch_namespaces import inlined_function
from .module_hooks import has_global_hooks
from .nn_module import TABLES, NNModuleValue, is_buffer, is_parameter

__all__ = ["MadeModuleValue"]

_PASSING = "_non_persistent_buffers_set"
_initialise: Any = MODULE["__init__"]


class MadeModuleValue(NNModuleValue):
    """A module without a live object: all that it has is in its `__dict__`, its tables too."""

    __slots__ = ()

    def begin(self, machine: Machine) -> None:
        """`torch.nn.Module.__init__`; the tables of hooks are empty as long as it is a record."""
        if guarded_attribute(machine, self.cls.live, "call_super_init") is not False:
            self.refuse(machine, "Module.__init__ with call_super_init")
        self.set_entry(machine, "training", machine.constant(True))
        for table in TABLES:
            self.set_entry(machine, table, DictValue.of(machine, []))
        self.set_entry(machine, _PASSING, SetValue.of(machine, []))

    def _table(self, machine: Machine, name: str) -> DictValue:
        found = self.table(machine).store.get(name)
        if not isinstance(found, DictValue):
            message = "cannot assign module before Module.__init__() call"
            raise machine.error(AttributeError, message)
        return found

    # -- attributes ------------------------------------------------------------------------------

    def get_attr(self, machine: Machine, name: str) -> Value:
        if not self.leaves(machine, "__getattribute__") or name == "__dict__":
            self.refuse(machine, f"attribute {name!r}")
        raw = self.cls.peek(machine, name)
        if is_data_descriptor(raw):
            guard_precedence(machine, raw)
            return self._through(machine, name)
        if (own := self.table(machine).store.get(name)) is not None:
            return own
        if raw is not NOTHING:
            return self._of_class(machine, name)
        guard_attribute(machine, self.cls.live, name, NOTHING)
        if not self._leaves_tables(machine):
            return self.ask_class(machine, "__getattr__", name)
        return self.from_tables(machine, name)

    def behind(self, machine: Machine, start: type, name: str) -> Value | None:
        mro = self.cls.live.__mro__
        return self._of_torch(machine, name, mro.index(start) + 1) if start in mro else None

    def from_tables(self, machine: Machine, name: str) -> Value:
        for table in TABLES:
            found = self._table(machine, table).find(machine, machine.constant(name))
            if found is not None:
                return found
        raise self.no_attribute(machine, name)

    def register(self, machine: Machine, name: str, value: Value) -> None:
        """`torch.nn.Module.__setattr__`."""
        value, key = value.realize(machine), machine.constant(name)
        parameters, buffers, modules = (self._table(machine, table) for table in TABLES)
        others = [table.find(machine, key) for table in (parameters, buffers, modules)]
        if is_parameter(value):
            if name in self.attrs or others[1:] != [None, None]:
                self.refuse(machine, f"replacing the attribute {name!r}")
            self.call_method(machine, "register_parameter", [key, value], {})
        elif isinstance(value, NNModuleValue):
            if name in self.attrs or others[:2] != [None, None]:
                self.refuse(machine, f"replacing the attribute {name!r}")
            modules.set_item(machine, key, value)
        elif others[0] is not None:
            self.refuse(machine, f"replacing the parameter {name!r}")
        elif modules.find(machine, key) is not None:
            self.refuse(machine, f"replacing the submodule {name!r}")
        elif buffers.find(machine, key) is not None:
            if not is_none(value) and not isinstance(value, TensorValue):
                self.refuse(machine, f"such a value for the buffer {name!r}")
            buffers.set_item(machine, key, value)
        elif is_buffer(machine, value):
            self.refuse(machine, f"a new buffer {name!r}")
        else:
            self.store_attr(machine, name, value)

    def del_attr(self, machine: Machine, name: str) -> None:
        self.refuse(machine, f"deleting attribute {name!r}")

    # -- calls and exits -------------------------------------------------------------------------

    def call_forward(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        self._table(machine, "_modules")  # without __init__ there is nothing to call
        if has_global_hooks(machine):  # it has no tables of its own to look them up beside
            types = "modules with global hooks"
            raise GraphBreak(UnsupportedOperation.of(what="a call", types=types))
        forward = self.get_attr(machine, "forward").realize(machine)
        return forward.call(machine, args, kwargs)

    def recipe(self, builder: Builder) -> Recipe:
        if _PASSING not in self.attrs:  # `Module.__init__` was not called
            return super().recipe(builder)
        return builder.invoke(_bare_module, (builder(self.cls),))

    def fill(self, builder: Builder) -> Iterable[Effect]:
        """Tables are attributes too; none of it goes through the class's `__setattr__`."""
        for name, value in self.attrs.items():
            if value is not None:
                yield builder.set_attr(self, str(name), value, object.__setattr__)


def _bare_module(cls: type[torch.nn.Module]) -> torch.nn.Module:
    """As `torch.nn.Module.__init__` leaves it."""
    made = object.__new__(cls)
    _initialise(made)
    return made


@constructs(lambda kind: issubclass(kind, torch.nn.Module), before_others=True)
def _construct(machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    if issubclass(cls.live, torch.jit.ScriptModule | torch.nn.RNNBase):
        raise GraphBreak(Construction.of(what=f"{cls.live.__name__}()"))
    plain = cls.of_metaclass(machine, "__call__") is type.__call__
    if not plain or not is_standard(machine, cls.live, "__new__"):
        raise GraphBreak(UnknownObject.of(what="construction", type=cls.live.__name__))
    made = MadeModuleValue(cls, None, None)
    made.get_attr(machine, "__init__").realize(machine).call(machine, args, kwargs)
    return made


@handles(beneath(torch.nn.Module.__init__))
def _begin(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    module, *rest = args
    if not isinstance(module, MadeModuleValue) or rest or kwargs:
        raise GraphBreak(Construction.of(what="Module.__init__()"))
    module.begin(machine)
    return machine.constant(None)


def _registers(method: Any, table: str, fits: Callable[[Value], bool]) -> None:
    """A method that puts something that fits, or None, into a table of a module made here."""

    @handles(method)
    def _register(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        module, *given = args
        if not isinstance(module, MadeModuleValue):
            return _register_in_live(machine, method, args, kwargs)
        named = dict(zip(("name", "value", "persistent"), given, strict=False)) | dict(kwargs)
        value = next((named[k] for k in ("value", "tensor", "module", "param") if k in named), None)
        name = named.get("name")
        if name is None or value is None or not (is_none(value) or fits(value)):
            module.refuse(machine, f"{method.__name__} with these arguments")
        module._table(machine, table).set_item(machine, name, value)
        if table == "_buffers" and "persistent" in named:
            kept = named["persistent"].truth(machine)
            passing = module.attrs[_PASSING]
            assert passing is not None
            passing.call_method(machine, "discard" if kept else "add", [name], {})
        return machine.constant(None)


def _register_in_live(machine: Machine, method: Any, args: Args, kwargs: Kwargs) -> Value:
    module, *given = args
    if not kwargs and len(given) == 2 and is_parameter(given[1].realize(machine)):
        has = handler_of(hasattr)
        assert has is not None
        if not has(machine, [module, given[0]], {}).truth(machine):  # else it raises
            module.set_attr(machine, given[0].as_constant(machine), given[1])
            return machine.constant(None)
    return inlined_function(machine, method).call(machine, args, kwargs)


_registers(torch.nn.Module.register_buffer, "_buffers", lambda v: isinstance(v, TensorValue))
_registers(torch.nn.Module.register_parameter, "_parameters", is_parameter)
_registers(torch.nn.Module.add_module, "_modules", lambda v: isinstance(v, NNModuleValue))
