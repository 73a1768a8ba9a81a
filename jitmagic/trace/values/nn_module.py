"""Modules: attributes out of their tables, calls through to `forward`, containers by their own
methods.

Comes in: a live nn.Module, guarded by exact type.  Goes out: parameters and buffers as graph inputs
by source, plain attributes with their guards, submodules, and calls inlined into the trace. No code
of the user runs for an attribute. Methods of torch's own module classes are inlined and trusted;
methods of the user's classes are guarded by their code.

One guard per called module says that it has no hooks and no `forward` of its own; a module that
jitmagic tagged is inlined like any other. Not guarded: a name put into `module.__dict__` past
`Module.__setattr__` that hides a parameter, buffer or submodule.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence

import torch

from ...guards.guard import EntriesEmpty, KeyAbsent, TypeIs
from ...guards.source import FunctionPart, InstanceDict, Item, Source, TypeAttr, TypeOf
from ..breaks import GraphBreak, RefusedTorchCall, UnknownObject, UnsupportedOperation
from ..builtins.registry import handles
from ..result import Recipe
from ..tables import Face
from ..wrap import wraps
from .base import Args, Builder, Kwargs, Machine, ObservedError, Value
from .class_facts import (
    NOTHING,
    attribute_of_class,
    belongs_to_torch,
    is_data_descriptor,
    is_standard,
    keep,
    keep_free,
    keep_order,
)
from .classes import ClassValue, bind, constructs
from .constants import ConstantValue
from .functions import BoundMethodValue
from .instances import InstanceValue
from .module_hooks import FORWARD_HOOKS, call_with_hooks
from .operators import unpack
from .sequences import SliceValue, TupleValue
from .tensor import TensorValue
from .trusted import trusted

__all__ = ["NNModuleValue"]

_TABLES = ("_parameters", "_buffers", "_modules")
_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_HOOKS = (*_BACKWARD_HOOKS, *FORWARD_HOOKS)
_ALWAYS = "_forward_hooks_always_called"  # also where forward raises
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _HOOKS)
_SLOT = "_compiled_call_impl"
_OWN_CALLS = ("forward", _SLOT, "_call_impl")


class NNModuleValue(InstanceValue):
    """One nn.Module. `attrs` holds what was read or written, whichever table it is in."""

    __slots__ = ("callable_as_is", "shifted")

    def __init__(self, cls: ClassValue, live: torch.nn.Module, source: Source) -> None:
        super().__init__(cls, live, source)
        self.callable_as_is = False  # the guard on hooks is installed
        self.shifted = False  # the traced code replaced a buffer: the live tables are out of date

    def hash_key(self, machine: Machine) -> object:
        machine.keep_apart(self)
        return self

    # -- attributes ------------------------------------------------------------------------------

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name == "__dict__" or not self.leaves(machine, "__getattribute__"):
            self.refuse(machine, f"attribute {name!r}")
        if name == "__class__" and is_standard(machine, self.cls.live, name):
            return self.cls
        raw = self.cls.peek(machine, name)
        if is_data_descriptor(raw):
            keep_order(machine, raw)
            return self._of_class(machine, name)
        own = self.own(machine, name)
        if own is not None:
            return own
        if raw is not NOTHING:
            return self._of_class(machine, name)
        if not self._leaves_tables(machine):
            return self._missing(machine, name)
        keep(machine, self.cls.live, name, NOTHING)
        raise self.no_attribute(machine, name)

    def _leaves_tables(self, machine: Machine) -> bool:
        """Whether names in the tables are found by torch's own `__getattr__`."""
        return self._as_torch(machine, "__getattr__")

    def _as_torch(self, machine: Machine, name: str) -> bool:
        """Whether the class has what nn.Module has under the name; relied on if so."""
        raw = attribute_of_class(self.cls.live, name)
        if raw is not attribute_of_class(torch.nn.Module, name):
            return False
        keep(machine, self.cls.live, name, raw)
        return True

    def no_attribute(self, machine: Machine, name: str) -> ObservedError:
        message = f"'{self.cls.live.__name__}' object has no attribute '{name}'"
        return machine.error(AttributeError, message)

    def _live_entry(self, machine: Machine, name: str) -> Value | None:
        """From the instance's dictionary or one of its tables."""
        assert self.source is not None
        own = self.use_table(machine)
        table = InstanceDict(self.source)
        raw = attribute_of_class(self.cls.live, name)
        if name in own:
            if self.shifted and name in _TABLES:
                self.refuse(machine, f"{name} after a buffer was replaced")
            keep_free(machine, self.cls.live, name, raw)
            return machine.lazy(own[name], Item(table, name), certain=False)
        # Else the class itself has it, or its own __getattr__ says whether tables are read.
        plain = raw is NOTHING and self._leaves_tables(machine)
        if plain and (found := self.in_tables(machine, name)) is not None:
            keep(machine, self.cls.live, name, NOTHING)
            return found
        if plain:
            self.guard_absent(machine, name, own)
        elif name not in _OWN_CALLS and not name.startswith("__"):
            machine.guard(KeyAbsent(table, name))
        return None

    def in_tables(self, machine: Machine, name: str) -> Value | None:
        """A parameter, buffer or submodule of that name."""
        assert self.source is not None
        own = object.__getattribute__(self.live, "__dict__")
        for part in _TABLES:
            entries = own.get(part)
            machine.tables.use(id(entries), Face.NAMESPACE)
            if isinstance(entries, Mapping) and name in entries:
                source = Item(Item(InstanceDict(self.source), part), name)
                return machine.lazy(entries[name], source, certain=False)
        return None

    def guard_absent(self, machine: Machine, name: str, own: dict[str, object]) -> None:
        assert self.source is not None
        table = InstanceDict(self.source)
        machine.guard(KeyAbsent(table, name))
        for part in _TABLES:
            if part in own:
                machine.guard(KeyAbsent(Item(table, part), name))

    def _of_class(self, machine: Machine, name: str) -> Value:
        """A class attribute: trusted where torch's class has it, guarded where the user's has."""
        kind = self.cls.live
        base = next((base for base in kind.__mro__ if name in vars(base)), kind)
        if not belongs_to_torch(base.__module__) or name in machine.class_of(kind, None).written:
            raw, value = self.cls.find(machine, name)
            return bind(machine, raw, value, self, self.cls, name)
        raw = vars(base)[name]
        keep(machine, kind, name, raw)
        if isinstance(raw, types.FunctionType):
            return BoundMethodValue(trusted(machine, raw), self)
        if isinstance(raw, property) and raw.fget is not None:
            return trusted(machine, raw.fget).call(machine, [self], {})
        if isinstance(raw, staticmethod | classmethod):
            function = trusted(machine, raw.__func__)
            return (
                function if isinstance(raw, staticmethod) else BoundMethodValue(function, self.cls)
            )
        if type(raw) is list:
            return machine.constant(tuple(raw))
        return trusted(machine, raw)

    def special(self, machine: Machine, name: str, *args: Value) -> Value | None:
        raw = attribute_of_class(self.cls.live, name)
        keep(machine, self.cls.live, name, raw)
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
        if not self._as_torch(machine, "__setattr__"):
            super().set_attr(machine, name, value)
            return
        value = value.realize(machine)
        own = object.__getattribute__(self.live, "__dict__")
        if (
            isinstance(value, NNModuleValue)
            or name in own["_modules"]
            or name in own["_parameters"]
        ):
            self.refuse(machine, f"replacing the submodule or parameter {name!r}")
        if isinstance(value, TensorValue) and issubclass(value.kind, torch.nn.Parameter):
            self.refuse(machine, "registering a parameter")
        if name in own["_buffers"]:
            self._replace_buffer(machine, name, value)
        else:
            self.store_attr(machine, name, value)

    def _replace_buffer(self, machine: Machine, name: str, value: Value) -> None:
        none = isinstance(value, ConstantValue) and value.value is None
        if not none and not isinstance(value, TensorValue):
            self.refuse(machine, f"such a value for the buffer {name!r}")
        if any(self.attrs.get(table) is not None for table in _TABLES):
            self.refuse(machine, "replacing a buffer of a module whose tables were read")
        keep(machine, self.cls.live, name, attribute_of_class(self.cls.live, name))
        self.shifted = True
        buffers = self.use_table(machine)["_buffers"]
        machine.tables.use(id(buffers), Face.NAMESPACE, changing=True)
        self.attrs[name] = value
        machine.effects.set_attr(self, name, value)

    def del_attr(self, machine: Machine, name: str) -> None:
        plain = self._as_torch(machine, "__delattr__")
        if not plain or name not in object.__getattribute__(self.live, "__dict__"):
            self.refuse(machine, f"deleting attribute {name!r}")
        self.store_attr(machine, name, None)

    # -- calls -----------------------------------------------------------------------------------

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        kind = self.cls.live
        # A GraphModule's own __call__ only adds to the traceback when its forward raises.
        called = issubclass(kind, torch.fx.GraphModule) or self._as_torch(machine, "__call__")
        if not called or not self._as_torch(machine, "_call_impl"):
            return super().call(machine, args, kwargs)
        if isinstance(self.live, torch.nn.RNNBase):
            why = "recurrent layers keep weak references to flattened weights"
            raise GraphBreak(RefusedTorchCall.of(name=f"torch.nn.{kind.__name__}", why=why))
        hooked = self._check_hooks(machine)
        forward = self.get_attr(machine, "forward").realize(machine)
        if hooked:
            return call_with_hooks(machine, self, forward, args, kwargs)
        return forward.call(machine, args, kwargs)

    def _check_hooks(self, machine: Machine) -> bool:
        """Whether there are forward hooks; break where others would run, guard that none does."""
        if self.callable_as_is:
            return False
        assert self.source is not None
        own = object.__getattribute__(self.live, "__dict__")
        hooked = any(own.get(name) for name in FORWARD_HOOKS)
        absent_hooks = (_ALWAYS, *_BACKWARD_HOOKS) if hooked else _HOOKS
        if any(own.get(name) for name in absent_hooks):
            types_ = f"{self.cls.live.__name__} with backward hooks, or hooks that run always"
            raise GraphBreak(UnsupportedOperation.of(what="a call", types=types_))
        if own.get(_SLOT) is not None:
            if not _is_tagged(own[_SLOT]):
                self.refuse(machine, "a call of a module compiled by torch")
            machine.guard(TypeIs(Item(InstanceDict(self.source), _SLOT), type(own[_SLOT])))
        absent = tuple(name for name in _OWN_CALLS if name not in own)
        machine.guard(EntriesEmpty(InstanceDict(self.source), absent_hooks, absent))
        _check_global_hooks(machine, self.source)
        self.callable_as_is = not hooked
        return hooked


class ModuleSlice(TupleValue):
    """`layers[1:]` of a ModuleList or Sequential: a new container of the same modules."""

    __slots__ = ("cls",)

    def __init__(self, cls: ClassValue, items: Sequence[Value]) -> None:
        super().__init__(items)
        self.cls = cls

    def like(self, items: Iterable[Value]) -> Value:
        return ModuleSlice(self.cls, list(items))

    def python_type(self, machine: Machine) -> type:
        return self.cls.live

    def is_constant(self, machine: Machine) -> bool:
        return False

    def get_attr(self, machine: Machine, name: str) -> Value:
        self.refuse(machine, f"attribute {name!r}")

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        self.refuse(machine, f"operator {op}")

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        return None

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if self.cls.live is not torch.nn.Sequential or len(args) != 1 or kwargs:
            self.refuse(machine, "a call")
        (value,) = args
        for item in self.items:
            value = item.realize(machine).call(machine, [value], {})
        return value

    def recipe(self, builder: Builder) -> Recipe:
        items = super().recipe(builder)
        if self.cls.live is torch.nn.ModuleList:
            return builder.invoke(torch.nn.ModuleList, (items,))
        return builder.invoke(sequential_of, (items,))

    def describe(self) -> str:
        return self.cls.live.__name__


def sequential_of(modules: Sequence[torch.nn.Module]) -> torch.nn.Sequential:
    """A Sequential of these modules."""
    return torch.nn.Sequential(*modules)


@handles(torch.nn.Module.__getattr__)
def _table_lookup(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """`super().__getattr__(name)` in a module class with a `__getattr__` of its own."""
    module, name = args
    if not isinstance(module, NNModuleValue):
        module.refuse(machine, "Module.__getattr__")
    wanted = name.as_constant(machine)
    if module.shifted and module.attrs.get(wanted) is not None:
        return module.attrs[wanted] or module
    found = module.in_tables(machine, wanted)
    if found is None:
        own = object.__getattribute__(module.live, "__dict__")
        module.guard_absent(machine, wanted, own)
        raise module.no_attribute(machine, wanted)
    return found


def _is_tagged(call: object) -> bool:
    """Whether what a module keeps in its slot is jitmagic's: it calls the class's forward."""
    return type(call).__module__ == "jitmagic._frame"


def _check_global_hooks(machine: Machine, source: Source) -> None:
    """Hooks for all modules of the process: one guard for a trace."""
    graph = machine.graph
    if "module hooks" in graph.noted:
        return
    graph.noted.add("module hooks")
    state = vars(torch.nn.modules.module)
    if any(state[name] for name in _GLOBAL_HOOKS):
        raise GraphBreak(UnsupportedOperation.of(what="a call", types="modules with global hooks"))
    method = TypeAttr(TypeOf(source), "_call_impl")
    machine.guard(EntriesEmpty(FunctionPart(method, "__globals__"), _GLOBAL_HOOKS))


@wraps(torch.nn.Module, subclasses=True)
def _wrap_module(machine: Machine, obj: torch.nn.Module, source: Source) -> Value:
    kind = type(obj)
    if isinstance(obj, torch.jit.ScriptModule) or kind.__module__.startswith("torch.nn.parallel"):
        raise GraphBreak(UnknownObject.of(what="use", type=kind.__name__))
    machine.guard(TypeIs(source, kind))
    return NNModuleValue(machine.class_of(kind, TypeOf(source)), obj, source)


@constructs(lambda kind: issubclass(kind, torch.nn.Module), before_others=True)
def _construct(machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    what = "making a module"
    raise GraphBreak(UnsupportedOperation.of(what=what, types=f"class {cls.live.__name__}"))
