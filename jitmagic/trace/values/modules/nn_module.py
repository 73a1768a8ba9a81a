"""Models live nn.Modules: attributes, parameter tables, calls of `forward`, containers.

Input: a live nn.Module, guarded by its exact type. Output: parameters and buffers as graph inputs,
plain attributes, submodules, and inlined calls. Reading an attribute while tracing runs no user
code. Methods of torch's own module classes are inlined under a guard of the class; the user's
methods, and monkey patches of torch classes, are guarded by their code.

One EntriesEmpty guard per module checks that it has no hooks, no `forward` in its `__dict__`, and
no `__dict__` entry that would shadow a parameter, buffer or submodule that was read. A module
tagged by jitmagic is inlined like any other.
"""

from __future__ import annotations

import types
from collections.abc import Iterable

import torch

from ....guards.guard import EntriesEmpty, TypeIs
from ....guards.source import ImportedModule, InstanceDict, Item, Source, TypeOf
from ...breaks import GraphBreak, UnknownObject
from ...builtins.registry import handles
from ...wrap import wraps
from ..base import Args, Kwargs, Machine, ObservedError, Value
from ..containers.mappings import DictValue, entries_of_live
from ..containers.sequences import SliceValue
from ..objects.class_facts import (
    NOTHING,
    attribute_of_class,
    belongs_to_torch,
    guard_attribute,
    guard_not_shadowed,
    guard_precedence,
    guarded_attribute,
    is_data_descriptor,
    is_instance,
)
from ..objects.classes import ClassValue, bind
from ..objects.constants import ConstantValue
from ..objects.functions import BoundMethodValue
from ..objects.instances import InstanceValue
from ..objects.monkey_patches import MODULE, is_library_made
from ..objects.operators import unpack
from ..tensors.tensor import TensorValue
from ..tensors.torch_namespaces import torch_object
from .backward_hooks import BACKWARD_HOOKS
from .module_hooks import FORWARD_HOOKS, call_with_hooks, has_global_hooks
from .module_slices import ModuleSlice

__all__ = ["TABLES", "NNModuleValue", "is_buffer", "is_parameter"]

TABLES = ("_parameters", "_buffers", "_modules")
_HOOKS = (*BACKWARD_HOOKS, *FORWARD_HOOKS)
_REGISTRATION_HOOKS = tuple(
    f"_global_{part}_registration_hooks" for part in ("parameter", "buffer", "module")
)
_SLOT = "_compiled_call_impl"
_OWN_CALLS = ("forward", _SLOT, "_call_impl")


class NNModuleValue(InstanceValue):
    """A live nn.Module.

    Each table of parameters, buffers or submodules has one DictValue, even if the program also
    reaches it as `module._buffers` or through another module that shares it.
    """

    __slots__ = ("hooks_guarded", "in_tables", "lacking", "tables")
    searched = TABLES

    def __init__(
        self, cls: ClassValue, live: torch.nn.Module | None, source: Source | None
    ) -> None:
        super().__init__(cls, live, source)
        self.hooks_guarded = False  # a guard checks that there are no hooks
        self.tables: dict[str, DictValue] = {}  # tables that were used
        self.in_tables: dict[str, bool] = {}  # results of `_is_in_tables`
        self.lacking: set[tuple[str, str]] = set()  # (table, name) guarded as absent

    # -- attributes ------------------------------------------------------------------------------

    def get_attr(self, machine: Machine, name: str) -> Value:
        if not self.inherits_default(machine, "__getattribute__"):
            self.refuse(machine, f"attribute {name!r}")
        if name == "__dict__":
            return self.own_table(machine)
        raw = self.cls.peek(machine, name)
        if is_data_descriptor(raw):
            guard_precedence(machine, raw)
            return self._data_descriptor(machine, name)
        own = self.own(machine, name)
        if own is not None:
            return own
        if raw is not NOTHING:
            return self._of_class(machine, name)
        if not self._uses_torch_getattr(machine):
            guard_attribute(machine, self.cls.live, name, NOTHING)
            return self.call_accessor(machine, "__getattr__", name)
        guard_attribute(machine, self.cls.live, name, NOTHING)
        raise self.no_attribute(machine, name)

    def _data_descriptor(self, machine: Machine, name: str) -> Value:
        """Read a data descriptor; call `__getattr__` if its getter raises AttributeError."""
        try:
            return self._of_class(machine, name)
        except ObservedError as observed:
            if not observed.error.matches(machine, AttributeError):
                raise
        if self._uses_torch_getattr(machine):
            return self.from_tables(machine, name)
        return self.call_accessor(machine, "__getattr__", name)

    def plain_attr(self, machine: Machine, name: str) -> Value:
        self.refuse(machine, "object.__getattribute__()")

    # -- lookup ----------------------------------------------------------------------------------

    def _uses_torch_getattr(self, machine: Machine) -> bool:
        """Return whether torch's own `__getattr__` looks names up in the tables."""
        return self.inherits_module(machine, "__getattr__")

    def inherits_module(self, machine: Machine, name: str) -> bool:
        """Return whether the class inherits the attribute from nn.Module; guarded if True."""
        raw = attribute_of_class(self.cls.live, name)
        if raw is NOTHING or raw is not MODULE.get(name):
            return False
        guard_attribute(machine, self.cls.live, name, raw)
        return True

    def own(self, machine: Machine, name: str) -> Value | None:
        """Return an entry of the `__dict__` or of one of the tables, or None."""
        if self._has_entry(machine, name):
            raw = attribute_of_class(self.cls.live, name)
            guard_not_shadowed(machine, self.cls.live, name, raw)
            return self.table(machine).store.get(name)
        if name not in self.in_tables:
            self.in_tables[name] = self._is_in_tables(machine, name)
        return self.registered(machine, name) if self.in_tables[name] else None

    def _is_in_tables(self, machine: Machine, name: str) -> bool:
        """Return whether a lookup of the name that `__dict__` lacks ends in torch's `__getattr__`.

        False if the class has the attribute or overrides `__getattr__`. Guarded.
        """
        plain = attribute_of_class(self.cls.live, name) is NOTHING
        plain = plain and self._uses_torch_getattr(machine)
        if plain:
            guard_attribute(machine, self.cls.live, name, NOTHING)
        if plain or (name not in _OWN_CALLS and not name.startswith("__")):
            self._guard_lacks(machine, name)
        return plain

    def _has_entry(self, machine: Machine, name: str) -> bool:
        """Return whether `__dict__` has the name, without a guard."""
        store = self.table(machine).store
        found = name in store.live if store.is_read_by_key else store.get(name) is not None
        return bool(found)

    def _guard_lacks(self, machine: Machine, name: str) -> None:
        """Guard that `__dict__` lacks the name.

        An entry would shadow the tables, since Python calls `__getattr__` only if
        `object.__getattribute__` fails.
        """
        if self.source is not None and name not in self.live_table():
            machine.guard(EntriesEmpty(InstanceDict(self.source), (), (name,)))

    def tables_after(self, machine: Machine, name: str) -> list[DictValue] | None:
        if (own := super().tables_after(machine, name)) is not None:
            return own
        if not self._uses_torch_getattr(machine):
            return None
        found = [self.module_table(machine, part) for part in self.searched]
        tables = [table for table in found if table is not None]
        return [self.table(machine), *tables] if len(tables) == len(found) else None

    def module_table(self, machine: Machine, name: str) -> DictValue | None:
        """Return one of the tables, or None if it is absent or not a dictionary."""
        store = self.table(machine).store
        if self.source is None or not store.is_read_by_key:
            entry = store.get(name)
            found = None if entry is None else entry.realize(machine).as_dictionary(machine)
        else:
            entries, path = self.live_table().get(name), Item(InstanceDict(self.source), name)
            known = isinstance(entries, dict)
            found = entries_of_live(machine, entries, path) if known else None  # type: ignore[arg-type]
        if found is not None:
            self.tables[name] = found
        return found

    def find_registered(self, machine: Machine, name: str) -> tuple[str, DictValue, Value] | None:
        """Return (table name, table, value) of the first table with the name, or None; guarded."""
        lacking, found = [], None
        for part in TABLES:
            table = self.module_table(machine, part)
            if table is None:
                continue
            if table.store.is_read_by_key and name not in table.store.live:
                lacking.append((part, table))
            elif (value := table.store.get(name)) is not None:
                found = part, table, value
                break
        self._guard_tables_lack(machine, name, lacking)
        return found

    def registered(self, machine: Machine, name: str) -> Value | None:
        """Return the parameter, buffer or submodule of that name, or None."""
        found = self.find_registered(machine, name)
        return None if found is None else found[2]

    def _guard_tables_lack(
        self, machine: Machine, name: str, lacking: list[tuple[str, DictValue]]
    ) -> None:
        """Guard that the tables lack the name.

        For an empty table, the module's EntriesEmpty guard on hook tables covers this table too.
        """
        for part, table in lacking:
            if (part, name) in self.lacking:
                continue
            self.lacking.add((part, name))
            assert self.source is not None
            assert table.source is not None
            if table.store.live:
                machine.guard(EntriesEmpty(table.source, (), (name,)))
            else:
                machine.guard(EntriesEmpty(InstanceDict(self.source), (part,)))

    def from_tables(self, machine: Machine, name: str) -> Value:
        """Return what `torch.nn.Module.__getattr__` returns."""
        found = self.registered(machine, name)
        if found is not None:
            return found
        raise self.no_attribute(machine, name)

    def _of_class(self, machine: Machine, name: str) -> Value:
        """Return a class attribute; one that torch defined needs no guard on its code."""
        builtin = self._of_torch(machine, name)
        if builtin is not None:
            return builtin
        raw, value = self.cls.find(machine, name)
        return bind(machine, raw, value, self, self.cls, name)

    def _of_torch(self, machine: Machine, name: str, start: int = 0) -> Value | None:
        """Return an attribute that torch defined, from position `start` of the MRO on, or None."""
        kind = self.cls.live
        base = next((base for base in kind.__mro__[start:] if name in vars(base)), kind)
        by_torch = belongs_to_torch(base.__module__) and is_library_made(vars(base).get(name))
        if not by_torch or machine.class_of(kind, None).stored(name) is not None:
            return None
        raw = vars(base)[name]
        guard_attribute(machine, kind, name, raw, start)
        if isinstance(raw, types.FunctionType):
            return BoundMethodValue(torch_object(machine, raw), self)
        if isinstance(raw, property) and raw.fget is not None:
            return torch_object(machine, raw.fget).call(machine, [self], {})
        if isinstance(raw, staticmethod | classmethod):
            function = torch_object(machine, raw.__func__)
            return (
                function if isinstance(raw, staticmethod) else BoundMethodValue(function, self.cls)
            )
        return torch_object(machine, raw)

    def special(self, machine: Machine, name: str, *args: Value) -> Value | None:
        raw = guarded_attribute(machine, self.cls.live, name)
        if raw is NOTHING or isinstance(raw, types.WrapperDescriptorType):
            return None
        method = self._of_class(machine, name).realize(machine)
        return method.call(machine, list(args), {}).realize(machine)

    def get_item(self, machine: Machine, key: Value) -> Value:
        kind = self.cls.live
        if isinstance(key, SliceValue) and kind in (torch.nn.ModuleList, torch.nn.Sequential):
            names = unpack(machine, self.get_attr(machine, "_modules").realize(machine))
            whole = ModuleSlice(self.cls, unpack(machine, self), names)
            return whole.get_item(machine, key)
        return super().get_item(machine, key)

    # -- writing ---------------------------------------------------------------------------------

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        if not self.inherits_module(machine, "__setattr__"):
            super().set_attr(machine, name, value)
        else:
            self.register(machine, name, value)

    def register(self, machine: Machine, name: str, value: Value) -> None:
        """Do what `torch.nn.Module.__setattr__` does."""
        value = value.realize(machine)
        part, table, old = self.find_registered(machine, name) or ("", None, None)
        if is_parameter(value) or isinstance(value, NNModuleValue):
            wanted = "_parameters" if is_parameter(value) else "_modules"
            if part not in ("", wanted):
                self.refuse(machine, f"such a value for {name!r} of a module's {part}")
            self._store_in_table(machine, wanted, name, old, value)
        elif table is not None and old is not None:
            if part != "_buffers":
                self.refuse(machine, f"replacing the submodule or parameter {name!r}")
            self._replace_buffer(machine, table, name, old, value)
        elif is_buffer(machine, value):
            self.refuse(machine, f"a new buffer {name!r}")
        else:
            self.store_attr(machine, name, value)

    def _store_in_table(
        self, machine: Machine, part: str, name: str, old: Value | None, value: Value
    ) -> None:
        """Replace a parameter or submodule, or add one under a new name."""
        own = self._has_entry(machine, name)
        # Storing a submodule where it is already is no change; as a break, it cut the router of
        # each layer of Switch Transformers.
        is_same = not own and old is not None and old.realize(machine) is value
        if is_same and _runs_no_registration_hook(machine):
            return
        # Module.__setattr__ also discards the name from this set, which the model does not follow.
        excluded = self.live_table().get("_non_persistent_buffers_set")
        special = not isinstance(excluded, set) or name in excluded
        special = special or guarded_attribute(machine, self.cls.live, name) is not NOTHING
        plain = self.inherits_module(machine, "register_parameter")
        plain = plain and _runs_no_registration_hook(machine)
        table = self.module_table(machine, part)
        if special or not plain or table is None:
            self.refuse(machine, f"such a value for {name!r} of a module's {part}")
        if own:  # a plain attribute, such as None until a lazy layer is built
            self.set_entry(machine, name, None)
        else:
            self._guard_lacks(machine, name)
        table.set_item(machine, machine.constant(name), value)

    def _replace_buffer(
        self, machine: Machine, buffers: DictValue, name: str, old: Value, value: Value
    ) -> None:
        none = isinstance(value, ConstantValue) and value.value is None
        if not none and not isinstance(value, TensorValue):
            self.refuse(machine, f"such a value for the buffer {name!r}")
        if not _runs_no_registration_hook(machine):
            self.refuse(machine, "setting a buffer with registration hooks")
        if old.realize(machine) is not value:  # `self.count += 1` stores the same tensor
            buffers.set_item(machine, machine.constant(name), value)

    def del_attr(self, machine: Machine, name: str) -> None:
        plain = self.inherits_module(machine, "__delattr__")
        if not plain or self.find_registered(machine, name) is not None:
            self.refuse(machine, f"deleting attribute {name!r}")
        self.store_attr(machine, name, None)

    def parts(self) -> Iterable[Value]:
        return (*super().parts(), *self.tables.values())

    # -- calls -----------------------------------------------------------------------------------

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        kind = self.cls.live
        # A GraphModule's own __call__ only adds to the traceback when its forward raises.
        called = issubclass(kind, torch.fx.GraphModule) or self.inherits_module(machine, "__call__")
        if not called or not self.inherits_module(machine, "_call_impl"):
            return super().call(machine, args, kwargs)
        return self.call_forward(machine, args, kwargs)

    def call_forward(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        """Do what `torch.nn.Module.__call__` does: call `forward` and the hooks around it."""
        hooked = self._check_hooks(machine)
        forward = self.get_attr(machine, "forward").realize(machine)
        if hooked:
            return call_with_hooks(machine, self, forward, args, kwargs)
        return forward.call(machine, args, kwargs)

    def _check_hooks(self, machine: Machine) -> bool:
        """Return whether there are hooks; if there are none, guard that."""
        changed = self._changed_hooks(machine)
        if self.hooks_guarded and not changed:
            return False
        assert self.source is not None
        own = self.live_table()
        if any(name not in own for name in _HOOKS):  # `__init__` did not call Module.__init__
            self.refuse(machine, "a call without tables of hooks")
        hooked = any(changed.get(name, bool(own.get(name))) for name in _HOOKS)
        absent_hooks = () if hooked else _HOOKS
        # Module.__call__ prefers `_compiled_call_impl`, which Module.compile() sets.
        if own.get(_SLOT) is not None:
            if not _is_tagged(own[_SLOT]):
                self.refuse(machine, "a call of a module compiled by torch")
            machine.guard(TypeIs(Item(InstanceDict(self.source), _SLOT), type(own[_SLOT])))
        absent = tuple(name for name in _OWN_CALLS if name not in own)
        empty = tuple(name for name in absent_hooks if name not in changed)
        machine.guard(EntriesEmpty(InstanceDict(self.source), empty, absent))
        global_hooks = has_global_hooks(machine)
        self.hooks_guarded = not hooked and not changed and not global_hooks
        return hooked or global_hooks

    def _changed_hooks(self, machine: Machine) -> dict[str, bool]:
        """Map each table of hooks that the traced code has changed to whether it has hooks now."""
        known = self.attrs
        read = {name: known.get(name) for name in _HOOKS}
        tables = {name: value.realize(machine) for name, value in read.items() if value is not None}
        return {
            name: table.truth(machine)
            for name, table in tables.items()
            if table.is_changed(machine)
        }


def _runs_no_registration_hook(machine: Machine) -> bool:
    """Return whether storing a parameter, buffer or submodule runs no hook; guarded if True."""
    module = torch.nn.modules.module
    if any(vars(module)[table] for table in _REGISTRATION_HOOKS):
        return False
    tables = InstanceDict(ImportedModule(module.__name__))
    machine.guard(EntriesEmpty(tables, _REGISTRATION_HOOKS))
    return True


def is_parameter(value: Value) -> bool:
    return isinstance(value, TensorValue) and issubclass(value.kind, torch.nn.Parameter)


def is_buffer(machine: Machine, value: Value) -> bool:
    """Return whether the tensor is a torch.nn.Buffer, which a module registers on assignment."""
    # torch.nn.Buffer(...) returns a plain torch.Tensor with `_is_buffer` set, which its metaclass
    # asks for in __instancecheck__: the class of the value is not enough.
    return isinstance(value, TensorValue) and is_instance(machine, value, torch.nn.Buffer)


@handles(torch.nn.Module.__getattr__)
def _table_lookup(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Trace `super().__getattr__(name)` in a module class that overrides `__getattr__`."""
    module, name = args
    if not isinstance(module, NNModuleValue):
        module.refuse(machine, "Module.__getattr__")
    return module.from_tables(machine, name.as_constant(machine))


@handles(torch.nn.Module.__setattr__)
def _set_in_module(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Trace `super().__setattr__(name, value)` in a module class that overrides `__setattr__`."""
    module, name, value = args
    if not isinstance(module, NNModuleValue):
        module.refuse(machine, "Module.__setattr__")
    module.register(machine, name.as_constant(machine), value)
    return machine.constant(None)


@handles(torch.nn.Module.__call__)
def _call_module(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Trace `super().__call__(...)` in a module class that overrides `__call__`."""
    module = args[0]
    if not isinstance(module, NNModuleValue) or not module.inherits_module(machine, "_call_impl"):
        module.refuse(machine, "Module.__call__")
    return module.call_forward(machine, args[1:], kwargs)


def _is_tagged(call: object) -> bool:
    """Return whether jitmagic set the module's `_compiled_call_impl`, which calls `forward`."""
    return type(call).__module__ == "jitmagic._frame"


@wraps(torch.nn.Module, subclasses=True)
def _wrap_module(machine: Machine, obj: torch.nn.Module, source: Source) -> Value:
    kind = type(obj)
    if isinstance(obj, (torch.jit.ScriptModule, torch.nn.DataParallel)):
        raise GraphBreak(UnknownObject.of(what="use", type=kind.__name__))
    machine.guard(TypeIs(source, kind))
    return NNModuleValue(machine.class_of(kind, TypeOf(source)), obj, source)
