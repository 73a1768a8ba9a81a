"""Models torch's own modules, classes and Python functions, with one guard per namespace.

Input: an object found in a namespace or class of torch. Output: its value, without a Source. The
namespace's one guard checks that it still holds the object (guards.NamespaceFacts), and recipes
refer to the object itself, a constant of the process. A monkey patch there has a Source instead and
is traced like user code. Reading mutable state in such a namespace is a graph break.
"""

from __future__ import annotations

import builtins
import enum
import sys
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ....compat.functions import VF
from ....guards.guard import IdentityIs, NameFact, NamespaceFacts
from ....guards.source import ImportedModule, InstanceDict, ModuleAttr, Source
from ....late import late_names
from ...breaks import GraphBreak, StateSet, UnknownObject
from ...builtins.registry import handler_of, load_named
from ...result import Constant, Effect, Recipe
from ...wrap import intercepts
from ..base import Args, Builder, Kwargs, Machine, Value
from ..containers.mappings import DictValue
from ..containers.table_store import TableStore
from ..objects.callables import BuiltinValue
from ..objects.class_facts import (
    NOTHING,
    attribute_of_class,
    belongs_to_torch,
    guarded_attribute,
    is_data_descriptor,
)
from ..objects.constants import ATOMS
from ..objects.functions import BoundMethodValue, CellValue, FunctionValue
from ..objects.monkey_patches import is_library_made, unwrap_function
from ..objects.namespaces import ModuleValue, NamespaceValue
from .torch_function import operators_of, registers_inliner, torch_function

if TYPE_CHECKING:
    from ...builtins.pytorch.process_state import read_state
    from ..contexts.torch_contexts import no_grad
else:
    late_names(
        globals(),
        {
            "trace.builtins.pytorch.process_state": "read_state",
            "trace.values.contexts.torch_contexts": "no_grad",
        },
    )

__all__ = ["TorchPythonFunction", "inlined_function", "torch_object"]

_STATE = {("torch.nn.utils.parametrize", "_cache_enabled")}  # names that torch reassigns
_INLINED_CLASSES = ("torch.distributions.", "torch.optim.")
_CONSTANTS = (*ATOMS, tuple, object)  # a plain object() is the default of an omitted argument
_CUBLAS = type(torch.backends.cuda.matmul)
_MODELLED = (
    types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type,
    enum.Enum, _CUBLAS,
)  # fmt: skip
_AUTOCAST = ModuleAttr(ImportedModule("torch.amp.autocast_mode"), "autocast")


class TorchStore(TableStore):
    """The names of a torch module, guarded without a path."""

    __slots__ = ()

    def _can_look_up(self, token: object) -> bool:
        return type(token) is str

    def _original(self, token: object) -> Value | None:
        if token not in self._known:
            assert self.machine is not None
            self._known[token] = found = None
            if token in self.live:
                found = _named(self.machine, self.live, str(token))
            else:
                self.machine.guard(NamespaceFacts(self.live, (NameFact(str(token), absent=True),)))
            self._known[token] = found
        return self._known[token]

    # `vars(torch)` has about 1,500 names: a walk over them would guard each one.
    def _live_pairs(self) -> NoReturn:
        raise GraphBreak(UnknownObject.of(what="all names", type="torch module"))


class TorchNamespace(NamespaceValue):
    """The names of a torch module."""

    __slots__ = ()

    def builtin(self, machine: Machine, name: str) -> Value | None:
        return _named(machine, vars(builtins), name) if name in vars(builtins) else None


def _named(machine: Machine, table: dict[str, object], name: str) -> Value:
    """Return the value of a name in a namespace of torch, and guard it."""
    value, module = table[name], str(table["__name__"])
    if (module, name) in _STATE or not _is_known(value):
        if getattr(sys.modules.get(module), "__dict__", None) is not table:
            raise GraphBreak(UnknownObject.of(what="use", type=type(value).__name__))
        return machine.lazy(value, ModuleAttr(ImportedModule(module), name))
    # A monkey patch is no original and has a path of its own above; here the object is the
    # library's, which lives as long as the process.
    machine.guard(NamespaceFacts(table, (NameFact(name, value),)))
    return torch_object(machine, value)


def _is_known(value: object) -> bool:
    """Return whether an object is a constant, or a library's original of a supported kind."""
    if type(value) in _CONSTANTS:
        return True
    modelled = isinstance(value, _MODELLED) or handler_of(value) is not None
    return modelled and is_library_made(value)


class TorchModule(ModuleValue):
    """A Python module of torch; `torch.nn.functional` needs no guard where `torch` has one."""

    __slots__ = ()

    def get_attr(self, machine: Machine, name: str) -> Value:
        # torch's `__getattr__` imports some submodules on access, and so does this. Importing
        # torch.onnx in advance cost 43 of the 312 ms of a first compile.
        if name not in vars(self.module):
            load_named(f"{self.module.__name__}.{name}")
        if type(self.module) is types.ModuleType or name in vars(self.module):
            return super().get_attr(machine, name)
        raw = guarded_attribute(machine, type(self.module), name)
        if isinstance(raw, torch.backends.ContextProp):
            return _backend_flag(machine, raw.getter)
        if isinstance(raw, property):
            return torch_object(machine, raw.fget).call(machine, [self], {})
        own = self.names.store.get(name)  # an assigned name precedes the lookups below
        if own is not None:
            return own
        if isinstance(raw, types.FunctionType):
            return BoundMethodValue(torch_object(machine, raw), self)
        if type(raw) in ATOMS:
            return machine.constant(raw)
        if raw is not attribute_of_class(types.ModuleType, name):
            raise GraphBreak(UnknownObject.of(what=f"property {name!r}", type="torch module"))
        wrapped = vars(self.module).get("m")  # torch.backends wraps the module in an attribute `m`
        if isinstance(wrapped, types.ModuleType) and name in vars(wrapped):
            return _named(machine, vars(wrapped), name)
        try:
            value = getattr(self.module, name)  # torch._VF has a `__getattr__`
        except AttributeError as error:
            raise machine.error(AttributeError, *error.args) from None
        return torch_object(machine, value)

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        if is_data_descriptor(attribute_of_class(type(self.module), name)):
            raise GraphBreak(StateSet.of(name=f"{self.module.__name__}.{name}"))
        super().set_attr(machine, name, value)

    def recipe(self, builder: Builder) -> Recipe:
        return Constant(self.module)


def _backend_flag(machine: Machine, getter: object) -> Value:
    """Return the value of a flag of torch.backends; most getters are C functions."""
    if isinstance(getter, types.BuiltinFunctionType):
        return read_state(machine, getter)
    return torch_object(machine, getter).call(machine, [], {})


class BackendFlags(Value):
    """torch.backends.cuda.matmul: an object without attributes, whose class computes the flags by a
    Python `__getattr__`, which is inlined.
    """

    __slots__ = ("live",)

    def __init__(self, live: object) -> None:
        super().__init__()
        self.live = live

    def python_type(self, machine: Machine) -> type:
        return type(self.live)

    def get_attr(self, machine: Machine, name: str) -> Value:
        if attribute_of_class(type(self.live), name) is not NOTHING:
            self.refuse(machine, f"attribute {name!r}")
        ask = guarded_attribute(machine, type(self.live), "__getattr__")
        guarded_attribute(machine, type(self.live), name)
        return torch_object(machine, ask).call(machine, [self, machine.constant(name)], {})

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        raise GraphBreak(StateSet.of(name=f"torch.backends.cuda.matmul.{name}"))

    def recipe(self, builder: Builder) -> Recipe:
        return Constant(self.live)


class _TorchCell(CellValue):
    """A closure cell of a torch function; its contents are wrapped only when they are read."""

    __slots__ = ("cell",)

    def __init__(self, cell: types.CellType) -> None:
        super().__init__()
        self.cell, self._read = cell, False

    def load(self, machine: Machine) -> Value | None:
        if not self._read:
            self._read = True
            # Wrapped when the function is modelled, one cell with an unsupported object would break
            # calls that never read it.
            self.contents = torch_object(machine, self.cell.cell_contents)
        return self.contents

    def recipe(self, builder: Builder) -> Recipe:
        return Constant(self.cell)

    def fill(self, builder: Builder) -> Iterable[Effect]:
        return ()


class TorchPythonFunction(FunctionValue):
    """A Python function of torch that is inlined."""

    __slots__ = ()

    def recipe(self, builder: Builder) -> Recipe:
        return Constant(self.live)


def torch_object(machine: Machine, obj: Any) -> Value:
    """Return the value of an object of torch."""
    if type(obj) in _CONSTANTS or isinstance(obj, enum.Enum):
        return machine.constant(obj)
    if isinstance(obj, types.ModuleType):
        return operators_of(obj) or _module(machine, obj, None)
    if isinstance(obj, types.FunctionType):
        obj = unwrap_function(obj)
        if (function := torch_function(obj)) is not None:
            return function
        # Of another library: functools.update_wrapper; typing_extensions.NamedTuple, in a cast.
        is_known = handler_of(obj) is not None or obj.__module__ == "typing_extensions"
        return BuiltinValue(obj) if is_known else inlined_function(machine, obj)
    if isinstance(obj, types.BuiltinFunctionType):
        return torch_function(obj) or BuiltinValue(obj)
    if isinstance(obj, type):
        return _class(machine, obj)
    if isinstance(obj, types.MethodType) and type(obj.__self__) is torch.no_grad:
        # The function of a `@torch.no_grad()` decorator in torch's own code.
        return no_grad().get_attr(machine, obj.__name__)
    if type(obj) in (list, dict, set, frozenset):  # may be mutable state
        raise GraphBreak(UnknownObject.of(what="a table of torch", type=type(obj).__name__))
    if type(obj) is _CUBLAS:
        return BackendFlags(obj)
    if handler_of(obj) is not None:  # a cached function, say
        return BuiltinValue(obj)
    raise GraphBreak(UnknownObject.of(what="use", type=type(obj).__name__))


def _class(machine: Machine, obj: type) -> Value:
    """Return the value of a class of torch; attributes of an inlined class are guarded."""
    if obj is torch.autocast:
        autocast: Value = machine.class_of(obj, _AUTOCAST)
        return autocast
    module = sys.modules.get(obj.__module__)
    if obj.__module__.startswith(_INLINED_CLASSES) and vars(module).get(obj.__name__) is obj:
        path = ModuleAttr(ImportedModule(obj.__module__), obj.__name__)
        inlined: Value = machine.class_of(obj, path)
        return inlined
    of_torch: Value = machine.constant(obj)
    return of_torch


def inlined_function(
    machine: Machine, obj: types.FunctionType, source: Source | None = None
) -> FunctionValue:
    """Return the value of a Python function of torch that is inlined."""
    value = TorchPythonFunction(
        obj.__code__, _names(machine, obj.__globals__), live=obj, source=source
    )
    if obj.__defaults__ is not None:
        value.defaults = machine.constant(obj.__defaults__)
    value.closure = tuple(_TorchCell(cell) for cell in obj.__closure__ or ())
    if obj.__kwdefaults__ is not None:
        pairs = [(machine.constant(k), machine.constant(v)) for k, v in obj.__kwdefaults__.items()]
        value.kwdefaults = DictValue.of(machine, pairs)
    return value


@registers_inliner
def _inline(machine: Machine, function: types.FunctionType, args: Args, kwargs: Kwargs) -> Value:
    return inlined_function(machine, function).call(machine, args, kwargs)


def _names(machine: Machine, namespace: dict[str, object]) -> DictValue:
    path = InstanceDict(ImportedModule(str(namespace.get("__name__"))))
    make = lambda: TorchNamespace(store=TorchStore.of_live(machine, namespace, path))  # noqa: E731
    names: DictValue = machine.globals_of(namespace, make)
    return names


def _module(machine: Machine, obj: object, source: Source | None) -> ModuleValue:
    return TorchModule(obj, _names(machine, vars(obj)), source)  # type: ignore[arg-type]


@intercepts(types.ModuleType, type(VF))
def _intercept_module(machine: Machine, obj: Any, source: Source) -> Value | None:
    if not belongs_to_torch(obj.__name__):
        return None
    machine.guard(IdentityIs(source, obj))
    return operators_of(obj) or _module(machine, obj, source)


@intercepts(types.FunctionType)
def _intercept_inlined(machine: Machine, obj: Any, source: Source) -> Value | None:
    plain = not obj.__closure__ and belongs_to_torch(obj.__module__)
    if not plain or not belongs_to_torch(obj.__globals__.get("__name__")):
        return None
    machine.guard(IdentityIs(source, obj))
    return inlined_function(machine, obj, source)
