"""Modules: attributes out of their tables, calls through to `forward`, containers by their own
methods.

Comes in: a live nn.Module, guarded by exact type.  Goes out: parameters and buffers as graph inputs
by source, plain attributes with their guards, submodules, and calls inlined into the trace. No code
of the user runs for an attribute. Methods of torch's own module classes are inlined, as facts about
the class; the user's (also those put into a class of torch) are guarded by their code.

One guard per module says that it has no hooks, no `forward` of its own, and no entry in its
`__dict__` that would hide a parameter, buffer or submodule that was read; a module that jitmagic
tagged is inlined like any other.
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
    """One nn.Module. Its tables of parameters, buffers and submodules are dictionaries like any:
    each has one model, whether it is reached through a name in it, as `module._buffers`, or from
    another module that shares it.
    """

    __slots__ = ("callable_as_is", "in_tables", "lacking", "tables")
    searched = TABLES

    def __init__(
        self, cls: ClassValue, live: torch.nn.Module | None, source: Source | None
    ) -> None:
        super().__init__(cls, live, source)
        self.callable_as_is = False  # the guard on hooks is installed
        self.tables: dict[str, DictValue] = {}  # those that were used
        self.in_tables: dict[str, bool] = {}  # names that `__dict__` lacks
        self.lacking: set[tuple[str, str]] = set()  # tables, and names that they lack

    # -- attributes ------------------------------------------------------------------------------

    def get_attr(self, machine: Machine, name: str) -> Value:
        if not self.leaves(machine, "__getattribute__"):
            self.refuse(machine, f"attribute {name!r}")
        if name == "__dict__":
            return self.own_table(machine)
        raw = self.cls.peek(machine, name)
        if is_data_descriptor(raw):
            guard_precedence(machine, raw)
            return self._through(machine, name)
        own = self.own(machine, name)
        if own is not None:
            return own
        if raw is not NOTHING:
            return self._of_class(machine, name)
        if not self._leaves_tables(machine):
            guard_attribute(machine, self.cls.live, name, NOTHING)
            return self.ask_class(machine, "__getattr__", name)
        guard_attribute(machine, self.cls.live, name, NOTHING)
        raise self.no_attribute(machine, name)

    def _through(self, machine: Machine, name: str) -> Value:
        """A data descriptor; where a property's getter finds no attribute, `__getattr__` is
        asked."""
        try:
            return self._of_class(machine, name)
        except ObservedError as observed:
            if not observed.error.matches(machine, AttributeError):
                raise
        if self._leaves_tables(machine):
            return self.from_tables(machine, name)
        return self.ask_class(machine, "__getattr__", name)

    def plain_attr(self, machine: Machine, name: str) -> Value:
        self.refuse(machine, "object.__getattribute__()")

    # -- where names are found -------------------------------------------------------------------

    def _leaves_tables(self, machine: Machine) -> bool:
        """Whether names in the tables are found by torch's own `__getattr__`."""
        return self.as_torch(machine, "__getattr__")

    def as_torch(self, machine: Machine, name: str) -> bool:
        """Whether the class has what nn.Module has under the name; relied on if so."""
        raw = attribute_of_class(self.cls.live, name)
        if raw is NOTHING or raw is not MODULE.get(name):
            return False
        guard_attribute(machine, self.cls.live, name, raw)
        return True

    def own(self, machine: Machine, name: str) -> Value | None:
        """From the instance's dictionary or one of its tables."""
        if self._has_entry(machine, name):
            raw = attribute_of_class(self.cls.live, name)
            guard_not_shadowed(machine, self.cls.live, name, raw)
            return self.table(machine).store.get(name)
        if name not in self.in_tables:
            self.in_tables[name] = self._is_in_tables(machine, name)
        return self.registered(machine, name) if self.in_tables[name] else None

    def _is_in_tables(self, machine: Machine, name: str) -> bool:
        """Return whether torch's `__getattr__` is asked for a name that `__dict__` lacks; else the
        class has it, or its own `__getattr__` says whether tables are read. Relied on.
        """
        plain = attribute_of_class(self.cls.live, name) is NOTHING and self._leaves_tables(machine)
        if plain:
            guard_attribute(machine, self.cls.live, name, NOTHING)
        if plain or (name not in _OWN_CALLS and not name.startswith("__")):
            self._guard_lacks(machine, name)
        return plain

    def _has_entry(self, machine: Machine, name: str) -> bool:
        """Return whether `__dict__` has the name; not relied on."""
        store = self.table(machine).store
        there = name in store.live if store.is_as_found else store.get(name) is not None
        return bool(there)

    def _guard_lacks(self, machine: Machine, name: str) -> None:
        """Rely on `__dict__` not having the name: an entry would win over the tables, because
        `object.__getattribute__` comes before `__getattr__`."""
        if self.source is not None and name not in self.live_table():
            machine.guard(EntriesEmpty(InstanceDict(self.source), (), (name,)))

    def tables_after(self, machine: Machine, name: str) -> list[DictValue] | None:
        if (own := super().tables_after(machine, name)) is not None:
            return own
        if not self._leaves_tables(machine):
            return None
        found = [self.part(machine, part) for part in self.searched]
        tables = [table for table in found if table is not None]
        return [self.table(machine), *tables] if len(tables) == len(found) else None

    def part(self, machine: Machine, name: str) -> DictValue | None:
        """One of the tables; None: it has no such one."""
        store = self.table(machine).store
        if self.source is None or not store.is_as_found:
            held = store.get(name)
            found = None if held is None else held.realize(machine).as_dictionary(machine)
        else:
            entries, path = self.live_table().get(name), Item(InstanceDict(self.source), name)
            known = isinstance(entries, dict)
            found = entries_of_live(machine, entries, path) if known else None  # type: ignore[arg-type]
        if found is not None:
            self.tables[name] = found
        return found

    def holder(self, machine: Machine, name: str) -> tuple[str, DictValue, Value] | None:
        """The first table that has the name, and what it has; relied on, on its absence too."""
        lacking, found = [], None
        for part in TABLES:
            table = self.part(machine, part)
            if table is None:
                continue
            if table.store.is_as_found and name not in table.store.live:
                lacking.append((part, table))
            elif (held := table.store.get(name)) is not None:
                found = part, table, held
                break
        self._guard_tables_lack(machine, name, lacking)
        return found

    def registered(self, machine: Machine, name: str) -> Value | None:
        """A parameter, buffer or submodule of that name."""
        found = self.holder(machine, name)
        return None if found is None else found[2]

    def _guard_tables_lack(
        self, machine: Machine, name: str, lacking: list[tuple[str, DictValue]]
    ) -> None:
        """That an empty table stays empty costs no guard of its own: it is checked with the tables
        of hooks."""
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
        """`torch.nn.Module.__getattr__`."""
        found = self.registered(machine, name)
        if found is not None:
            return found
        raise self.no_attribute(machine, name)

    def _of_class(self, machine: Machine, name: str) -> Value:
        """A class attribute: known where torch made it, followed by a path where the user did."""
        known = self._of_torch(machine, name)
        if known is not None:
            return known
        raw, value = self.cls.find(machine, name)
        return bind(machine, raw, value, self, self.cls, name)

    def _of_torch(self, machine: Machine, name: str, start: int = 0) -> Value | None:
        """What torch made and has under the name, from position `start` of the MRO on."""
        kind = self.cls.live
        base = next((base for base in kind.__mro__[start:] if name in vars(base)), kind)
        users = not belongs_to_torch(base.__module__) or not is_library_made(vars(base).get(name))
        if users or name in machine.class_of(kind, None).written:
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
            items = unpack(machine, self)
            return ModuleSlice(self.cls, items[key.as_constant(machine)])
        return super().get_item(machine, key)

    # -- writing ---------------------------------------------------------------------------------

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        if not self.as_torch(machine, "__setattr__"):
            super().set_attr(machine, name, value)
        else:
            self.register(machine, name, value)

    def register(self, machine: Machine, name: str, value: Value) -> None:
        """`torch.nn.Module.__setattr__`."""
        value = value.realize(machine)
        part, table, held = self.holder(machine, name) or ("", None, None)
        if is_parameter(value) or isinstance(value, NNModuleValue):
            wanted = "_parameters" if is_parameter(value) else "_modules"
            if part not in ("", wanted):
                self.refuse(machine, f"such a value for {name!r} of a module's {part}")
            self._store_part(machine, wanted, name, held, value)
        elif table is not None and held is not None:
            if part != "_buffers":
                self.refuse(machine, f"replacing the submodule or parameter {name!r}")
            self._replace_buffer(machine, table, name, held, value)
        elif is_buffer(machine, value):
            self.refuse(machine, f"a new buffer {name!r}")
        else:
            self.store_attr(machine, name, value)

    def _store_part(
        self, machine: Machine, part: str, name: str, held: Value | None, value: Value
    ) -> None:
        """A parameter or submodule that takes another's place, or has a new name."""
        own = self._has_entry(machine, name)
        is_same = not own and held is not None and held.realize(machine) is value
        if is_same and _registers_quietly(machine):
            return
        fleeting = self.live_table().get("_non_persistent_buffers_set")
        apart = not isinstance(fleeting, set) or name in fleeting
        apart = apart or guarded_attribute(machine, self.cls.live, name) is not NOTHING
        quiet = self.as_torch(machine, "register_parameter") and _registers_quietly(machine)
        table = self.part(machine, part)
        if apart or not quiet or table is None:
            self.refuse(machine, f"such a value for {name!r} of a module's {part}")
        if own:  # it was a plain attribute: None, up to the first call
            self.set_entry(machine, name, None)
        else:
            self._guard_lacks(machine, name)
        table.set_item(machine, machine.constant(name), value)

    def _replace_buffer(
        self, machine: Machine, buffers: DictValue, name: str, held: Value, value: Value
    ) -> None:
        none = isinstance(value, ConstantValue) and value.value is None
        if not none and not isinstance(value, TensorValue):
            self.refuse(machine, f"such a value for the buffer {name!r}")
        if not _registers_quietly(machine):
            self.refuse(machine, "setting a buffer where hooks see it")
        if held.realize(machine) is not value:  # it is what `self.count += 1` stores
            buffers.set_item(machine, machine.constant(name), value)

    def del_attr(self, machine: Machine, name: str) -> None:
        plain = self.as_torch(machine, "__delattr__")
        if not plain or self.holder(machine, name) is not None:
            self.refuse(machine, f"deleting attribute {name!r}")
        self.store_attr(machine, name, None)

    def parts(self) -> Iterable[Value]:
        return (*super().parts(), *self.tables.values())

    # -- calls -----------------------------------------------------------------------------------

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        kind = self.cls.live
        # A GraphModule's own __call__ only adds to the traceback when its forward raises.
        called = issubclass(kind, torch.fx.GraphModule) or self.as_torch(machine, "__call__")
        if not called or not self.as_torch(machine, "_call_impl"):
            return super().call(machine, args, kwargs)
        return self.call_forward(machine, args, kwargs)

    def call_forward(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        """`torch.nn.Module.__call__`: `forward`, with its hooks around it."""
        hooked = self._check_hooks(machine)
        forward = self.get_attr(machine, "forward").realize(machine)
        if hooked:
            return call_with_hooks(machine, self, forward, args, kwargs)
        return forward.call(machine, args, kwargs)

    def _check_hooks(self, machine: Machine) -> bool:
        """Whether there are hooks, which are read around the call; guard that there are no more."""
        changed = self._changed_hooks(machine)
        if self.callable_as_is and not changed:
            return False
        assert self.source is not None
        own = self.live_table()
        if any(name not in own for name in _HOOKS):  # its __init__ did not call Module's
            self.refuse(machine, "a call without tables of hooks")
        there = {name: changed.get(name, bool(own.get(name))) for name in _HOOKS}
        hooked = any(there.values())
        absent_hooks = () if hooked else _HOOKS
        if own.get(_SLOT) is not None:
            if not _is_tagged(own[_SLOT]):
                self.refuse(machine, "a call of a module compiled by torch")
            machine.guard(TypeIs(Item(InstanceDict(self.source), _SLOT), type(own[_SLOT])))
        absent = tuple(name for name in _OWN_CALLS if name not in own)
        empty = tuple(name for name in absent_hooks if name not in changed)
        machine.guard(EntriesEmpty(InstanceDict(self.source), empty, absent))
        global_hooks = has_global_hooks(machine)
        self.callable_as_is = not hooked and not changed and not global_hooks
        return hooked or global_hooks

    def _changed_hooks(self, machine: Machine) -> dict[str, bool]:
        """The tables of hooks that the traced code has changed, and whether they hold any now."""
        known = self.attrs
        read = {name: known.get(name) for name in _HOOKS}
        tables = {name: one.realize(machine) for name, one in read.items() if one is not None}
        return {
            name: table.truth(machine)
            for name, table in tables.items()
            if table.is_changed(machine)
        }


def _registers_quietly(machine: Machine) -> bool:
    """Return whether no hook runs where a parameter, buffer or submodule is stored; guarded
    if so.
    """
    module = torch.nn.modules.module
    if any(vars(module)[table] for table in _REGISTRATION_HOOKS):
        return False
    tables = InstanceDict(ImportedModule(module.__name__))
    machine.guard(EntriesEmpty(tables, _REGISTRATION_HOOKS))
    return True


def is_parameter(value: Value) -> bool:
    return isinstance(value, TensorValue) and issubclass(value.kind, torch.nn.Parameter)


def is_buffer(machine: Machine, value: Value) -> bool:
    """Whether a tensor says itself that it is one: modules register it under its name."""
    return isinstance(value, TensorValue) and is_instance(machine, value, torch.nn.Buffer)


@handles(torch.nn.Module.__getattr__)
def _table_lookup(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """`super().__getattr__(name)` in a module class with a `__getattr__` of its own."""
    module, name = args
    if not isinstance(module, NNModuleValue):
        module.refuse(machine, "Module.__getattr__")
    return module.from_tables(machine, name.as_constant(machine))


@handles(torch.nn.Module.__setattr__)
def _set_in_module(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """`super().__setattr__(name, value)` in a module class with a `__setattr__` of its own."""
    module, name, value = args
    if not isinstance(module, NNModuleValue):
        module.refuse(machine, "Module.__setattr__")
    module.register(machine, name.as_constant(machine), value)
    return machine.constant(None)


@handles(torch.nn.Module.__call__)
def _call_module(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """`super().__call__(...)` in a module class with a `__call__` of its own."""
    module = args[0]
    if not isinstance(module, NNModuleValue) or not module.as_torch(machine, "_call_impl"):
        module.refuse(machine, "Module.__call__")
    return module.call_forward(machine, args[1:], kwargs)


def _is_tagged(call: object) -> bool:
    """Whether what a module keeps in its slot is jitmagic's: it calls the class's forward."""
    return type(call).__module__ == "jitmagic._frame"


@wraps(torch.nn.Module, subclasses=True)
def _wrap_module(machine: Machine, obj: torch.nn.Module, source: Source) -> Value:
    kind = type(obj)
    if isinstance(obj, torch.jit.ScriptModule) or kind.__module__.startswith("torch.nn.parallel"):
        raise GraphBreak(UnknownObject.of(what="use", type=kind.__name__))
    machine.guard(TypeIs(source, kind))
    return NNModuleValue(machine.class_of(kind, TypeOf(source)), obj, source)
