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
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from ...guards.guard import EntriesEmpty, KeyAbsent, TypeIs
from ...guards.source import FunctionPart, InstanceDict, Item, Source, TypeAttr, TypeOf
from ..breaks import GraphBreak, RefusedTorchCall, UnknownObject, UnsupportedOperation
from ..builtins.registry import handles
from ..result import Recipe
from ..tables import Face
from ..wrap import wraps
from .base import Args, Builder, Kwargs, Machine, ObservedError, Value
from .classes import NOTHING, ClassValue, attribute_of_class, bind, constructs
from .constants import ConstantValue
from .functions import BoundMethodValue
from .instances import InstanceValue
from .iterators import SequenceIterator
from .operators import unpack
from .sequences import SliceValue, TupleValue
from .tensor import TensorValue
from .trusted import belongs_to_torch, trusted

__all__ = ["NNModuleValue"]

_TABLES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
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
        kind = self.cls.live
        if name == "__class__":
            return self.cls
        if _own(kind, "__getattribute__", object):
            self.refuse(machine, f"attribute {name!r}")
        if name == "__dict__":
            return self.namespace(machine)
        raw = attribute_of_class(kind, name)
        if isinstance(raw, property):
            return self._property(machine, name)
        own = self.own(machine, name)
        if own is not None:
            return own
        if raw is not NOTHING:
            return self._of_class(machine, name)
        if not self._plain_lookup:
            return self._by_class(machine, "__getattr__", name)
        self._rely_on_class(machine, name)
        raise self.no_attribute(machine, name)

    def _property(self, machine: Machine, name: str) -> Value:
        """A property whose getter finds no attribute is none: `__getattr__` is asked."""
        try:
            return self._of_class(machine, name)
        except ObservedError as observed:
            if not issubclass(observed.error.python_type(machine), AttributeError):
                raise
            if self._plain_lookup:
                raise
        return self._by_class(machine, "__getattr__", name)

    def dict_entry(self, machine: Machine, name: str) -> Value | None:
        """What is in one of the tables is not in the dictionary itself."""
        own = self.use_table(machine)
        if self.shifted:
            self.refuse(machine, "__dict__ after a buffer was replaced")
        if not any(name in own.get(part, ()) for part in _TABLES):  # type: ignore[operator]
            return self.own(machine, name)
        assert self.source is not None
        machine.guard(KeyAbsent(InstanceDict(self.source), name))
        return None

    def plain_attr(self, machine: Machine, name: str) -> Value:
        self.refuse(machine, "object.__getattribute__()")

    @property
    def _plain_lookup(self) -> bool:
        """Whether names in the tables are found by torch's own `__getattr__`."""
        found = attribute_of_class(self.cls.live, "__getattr__")
        return found is torch.nn.Module.__dict__["__getattr__"]

    def no_attribute(self, machine: Machine, name: str) -> ObservedError:
        message = f"'{self.cls.live.__name__}' object has no attribute '{name}'"
        return machine.error(AttributeError, message)

    def _live_entry(self, machine: Machine, name: str) -> Value | None:
        """From the instance's dictionary or one of its tables."""
        assert self.source is not None
        own = self.use_table(machine)
        table = InstanceDict(self.source)
        if name in own:
            if self.shifted and name in _TABLES:
                self.refuse(machine, f"{name} after a buffer was replaced")
            return machine.lazy(own[name], Item(table, name), certain=False)
        plain = self._plain_lookup  # else the class's own __getattr__ says whether tables are read
        if plain and (found := self.in_tables(machine, name)) is not None:
            return found
        if plain and attribute_of_class(self.cls.live, name) is NOTHING:
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
        base = next(base for base in kind.__mro__ if name in vars(base))
        if not belongs_to_torch(base.__module__) or name in machine.class_of(kind, None).written:
            raw, value = self.cls.find(machine, name)
            return bind(machine, raw, value, self, self.cls, name)
        raw = vars(base)[name]
        self._rely_on_class(machine, name)
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

    def _rely_on_class(self, machine: Machine, name: str) -> None:
        """Guard what a class of the user's inherits from torch's, or lacks: it may get its own."""
        kind = self.cls.live
        if not belongs_to_torch(kind.__module__):
            self.cls.rely_on(machine, name, attribute_of_class(kind, name))

    def special(self, machine: Machine, name: str, *args: Value) -> Value | None:
        self._rely_on_class(machine, name)
        raw = attribute_of_class(self.cls.live, name)
        if raw is NOTHING or isinstance(raw, types.WrapperDescriptorType):
            return None
        method = self._of_class(machine, name).realize(machine)
        return method.call(machine, list(args), {}).realize(machine)

    def truth(self, machine: Machine) -> bool:
        for name in ("__bool__", "__len__"):
            self._rely_on_class(machine, name)
        if not hasattr(self.cls.live, "__len__") and not hasattr(self.cls.live, "__bool__"):
            return True
        return super().truth(machine)

    def get_item(self, machine: Machine, key: Value) -> Value:
        kind = self.cls.live
        if isinstance(key, SliceValue) and kind in (torch.nn.ModuleList, torch.nn.Sequential):
            items = unpack(machine, self)
            return ModuleSlice(self.cls, items[key.as_constant(machine)])
        return super().get_item(machine, key)

    # -- writing ---------------------------------------------------------------------------------

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        if _own(self.cls.live, "__setattr__", torch.nn.Module):
            super().set_attr(machine, name, value)
        else:
            self.register(machine, name, value)

    def register(self, machine: Machine, name: str, value: Value) -> None:
        """`torch.nn.Module.__setattr__`."""
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
        self.shifted = True
        buffers = self.use_table(machine)["_buffers"]
        machine.tables.use(id(buffers), Face.NAMESPACE, changing=True)
        self.attrs[name] = value
        machine.effects.set_attr(self, name, value)

    def del_attr(self, machine: Machine, name: str) -> None:
        if name not in object.__getattribute__(self.live, "__dict__"):
            self.refuse(machine, f"deleting attribute {name!r}")
        self.store_attr(machine, name, None)

    # -- calls -----------------------------------------------------------------------------------

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        kind = self.cls.live
        # A GraphModule's own __call__ only adds to the traceback when its forward raises.
        own_call = kind.__call__ is torch.nn.Module.__call__
        plain = (
            (own_call or issubclass(kind, torch.fx.GraphModule))
            and kind._call_impl is torch.nn.Module._call_impl  # type: ignore[attr-defined]
        )
        if not plain:
            return super().call(machine, args, kwargs)
        self._rely_on_class(machine, "__call__")
        return self.call_forward(machine, args, kwargs)

    def call_forward(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        """`torch.nn.Module.__call__`: hooks, of which there are none, and `forward`."""
        kind = self.cls.live
        if isinstance(self.live, torch.nn.RNNBase):
            why = "recurrent layers keep weak references to flattened weights"
            raise GraphBreak(RefusedTorchCall.of(name=f"torch.nn.{kind.__name__}", why=why))
        self._check_hooks(machine)
        return self.get_attr(machine, "forward").realize(machine).call(machine, args, kwargs)

    def _check_hooks(self, machine: Machine) -> None:
        """Break where hooks would run; guard that there are none."""
        if self.callable_as_is:
            return
        assert self.source is not None
        own = object.__getattribute__(self.live, "__dict__")
        if any(own.get(name) for name in _HOOKS):
            types_ = f"{self.cls.live.__name__} with forward or backward hooks"
            raise GraphBreak(UnsupportedOperation.of(what="a call", types=types_))
        if own.get(_SLOT) is not None:
            if not _is_tagged(own[_SLOT]):
                self.refuse(machine, "a call of a module compiled by torch")
            machine.guard(TypeIs(Item(InstanceDict(self.source), _SLOT), type(own[_SLOT])))
        absent = tuple(name for name in _OWN_CALLS if name not in own)
        machine.guard(EntriesEmpty(InstanceDict(self.source), _HOOKS, absent))
        _check_global_hooks(machine, self.source)
        self.callable_as_is = True


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

    def iterate(self, machine: Machine) -> Value:
        return _ModuleIterator(self)

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


class _ModuleIterator(SequenceIterator):
    """Over a ModuleSlice: what a container of modules gives is an iterator over its dictionary."""

    __slots__ = ()

    def python_type(self, machine: Machine) -> type:
        return type(iter({}.values()))

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(advanced, (builder(self.container), builder.constant(self.index)))


def advanced(modules: Iterable[torch.nn.Module], count: int) -> Iterator[torch.nn.Module]:
    """An iterator over modules that has given `count` of them."""
    iterator = iter(modules)
    for _ in range(count):
        next(iterator)
    return iterator


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
    if not isinstance(module, NNModuleValue):
        module.refuse(machine, "Module.__call__")
    if module.cls.find_surely(machine, "_call_impl")[0] is not vars(torch.nn.Module)["_call_impl"]:
        module.refuse(machine, "Module.__call__")
    return module.call_forward(machine, args[1:], kwargs)


def _own(kind: type, name: str, base: type) -> bool:
    """Whether the class has another `name` than `base`."""
    return attribute_of_class(kind, name) is not vars(base)[name]


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
