"""Models modules that the traced code creates, such as losses, activations and pools.

Input: a call of a module class. Output: a Value with attributes and tables that the inlined
`__init__` fills; calls of it are traced like those of any module. An exit where it is live builds
the object and sets its attributes, parameters included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...breaks import Construction, GraphBreak, UnknownObject, UnsupportedOperation
from ...builtins.registry import handler_of, handles
from ...residual_torch_calls import bare_module
from ...result import Effect, Recipe
from ..base import Args, Builder, Kwargs, Machine, Value
from ..containers.mappings import DictValue
from ..containers.sets import SetValue
from ..objects.class_facts import (
    guarded_attribute,
    is_standard,
)
from ..objects.classes import ClassValue, constructs
from ..objects.monkey_patches import unwrap_function
from ..objects.operators import is_none
from ..tensors.tensor import TensorValue
from ..tensors.torch_namespaces import inlined_function
from .module_hooks import has_global_hooks
from .nn_module import TABLES, NNModuleValue, is_parameter

__all__ = ["NewModuleValue"]

_NON_PERSISTENT = "_non_persistent_buffers_set"


class NewModuleValue(NNModuleValue):
    """A module without a live object; its `__dict__` holds its attributes and tables."""

    __slots__ = ()

    def initialize(self, machine: Machine) -> None:
        """Do what `torch.nn.Module.__init__` does, without the tables of hooks."""
        if guarded_attribute(machine, self.cls.live, "call_super_init") is not False:
            self.refuse(machine, "Module.__init__ with call_super_init")
        self.set_entry(machine, "training", machine.constant(True))
        for table in TABLES:
            self.set_entry(machine, table, DictValue.of(machine, []))
        self.set_entry(machine, _NON_PERSISTENT, SetValue.of(machine, []))

    def _table(self, machine: Machine, name: str) -> DictValue:
        found = self.table(machine).store.get(name)
        if not isinstance(found, DictValue):
            message = "cannot assign module before Module.__init__() call"
            raise machine.error(AttributeError, message)
        return found

    # -- attributes ------------------------------------------------------------------------------

    def own_table(self, machine: Machine) -> Value:
        self.refuse(machine, "attribute '__dict__'")  # the model lacks the tables of hooks

    def super_attr(self, machine: Machine, start: type, name: str) -> Value | None:
        mro = self.cls.live.__mro__
        return self._of_torch(machine, name, mro.index(start) + 1) if start in mro else None

    def _store_in_table(
        self, machine: Machine, part: str, name: str, old: Value | None, value: Value
    ) -> None:
        if name in self.attrs:
            self.refuse(machine, f"replacing the attribute {name!r}")
        key = machine.constant(name)
        if part == "_parameters":
            self.call_method(machine, "register_parameter", [key, value], {})
        else:
            self._table(machine, part).set_item(machine, key, value)

    # -- calls and exits -------------------------------------------------------------------------

    def call_forward(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        self._table(machine, "_modules")  # raises if __init__ was not called
        if has_global_hooks(machine):  # the value has no hook tables, which call_with_hooks reads
            types = "modules with global hooks"
            raise GraphBreak(UnsupportedOperation.of(what="a call", types=types))
        forward = self.get_attr(machine, "forward").realize(machine)
        return forward.call(machine, args, kwargs)

    def recipe(self, builder: Builder) -> Recipe:
        if _NON_PERSISTENT not in self.attrs:  # `Module.__init__` was not called
            return super().recipe(builder)
        return builder.invoke(bare_module, (builder(self.cls),))

    def fill(self, builder: Builder) -> Iterable[Effect]:
        """Yield the effects that set attributes and tables, with `object.__setattr__`."""
        for name, value in self.attrs.items():
            if value is not None:
                yield builder.set_attr(self, str(name), value, object.__setattr__)


@constructs(lambda kind: issubclass(kind, torch.nn.Module), before_others=True)
def _construct(machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    # A ScriptModule is a C++ object; RNNBase stores weak references to its parameters.
    if issubclass(cls.live, torch.jit.ScriptModule | torch.nn.RNNBase):
        raise GraphBreak(Construction.of(what=f"{cls.live.__name__}()"))
    plain = cls.metaclass_attribute(machine, "__call__") is type.__call__
    if not plain or not is_standard(machine, cls.live, "__new__"):
        raise GraphBreak(UnknownObject.of(what="construction", type=cls.live.__name__))
    module = NewModuleValue(cls, None, None)
    module.get_attr(machine, "__init__").realize(machine).call(machine, args, kwargs)
    return module


@handles(unwrap_function(torch.nn.Module.__init__))
def _initialize(machine: Machine, module: Value, *rest: Value, **named: Value) -> None:
    if not isinstance(module, NewModuleValue) or rest or named:
        raise GraphBreak(Construction.of(what="Module.__init__()"))
    module.initialize(machine)


def _registers(method: Any, table: str, fits: Callable[[Value], bool]) -> None:
    """Register a handler for a method that stores a value or None in a table of a new module."""

    @handles(method)
    def _register(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        module, *positional = args
        if not isinstance(module, NewModuleValue):
            return _register_in_live(machine, method, args, kwargs)
        named = dict(zip(("name", "value", "persistent"), positional, strict=False))
        name, value = named.get("name"), named.get("value")
        if name is None or value is None or not (is_none(value) or fits(value)):
            module.refuse(machine, f"{method.__name__} with these arguments")
        module._table(machine, table).set_item(machine, name, value)
        if table == "_buffers" and "persistent" in named:
            persistent = named["persistent"].truth(machine)
            excluded = module.attrs[_NON_PERSISTENT]
            assert excluded is not None
            excluded.call_method(machine, "discard" if persistent else "add", [name], {})
        return machine.constant(None)


def _register_in_live(machine: Machine, method: Any, args: Args, kwargs: Kwargs) -> Value:
    module, *rest = args
    if len(rest) == 2 and is_parameter(rest[1].realize(machine)):
        has = handler_of(hasattr)
        assert has is not None
        # register_parameter raises for a name that exists; the fallback below handles that.
        if not has(machine, [module, rest[0]], {}).truth(machine):
            module.set_attr(machine, rest[0].as_constant(machine), rest[1])
            return machine.constant(None)
    return inlined_function(machine, method).call(machine, args, kwargs)


_registers(torch.nn.Module.register_buffer, "_buffers", lambda v: isinstance(v, TensorValue))
_registers(torch.nn.Module.register_parameter, "_parameters", is_parameter)
_registers(torch.nn.Module.add_module, "_modules", lambda v: isinstance(v, NNModuleValue))
