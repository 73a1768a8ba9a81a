"""Models the namespaces of frames and modules, and Python modules.

Input: the dictionary of a frame's globals or of a module. Output: its DictValue, with the paths and
guards of its names. A dictionary has one DictValue per trace: code that reads `globals()`, or the
same dictionary under another name, sees what a `global` statement has written, and the reverse.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from functools import partial

from ....guards.guard import GlobalMissing, Guard, IdentityIs, KeyAbsent
from ....guards.source import (
    Builtin,
    Global,
    Globals,
    InstanceDict,
    Item,
    ModuleAttr,
    Source,
    TypeOf,
)
from ...result import Constant, Recipe
from ...wrap import wraps
from ..base import Args, Builder, Kwargs, Machine, Value
from ..containers.mappings import DictValue
from ..containers.table_store import TableStore
from .class_facts import is_library_module

__all__ = ["ModuleValue", "NamespaceValue", "builtin_named", "frame_globals", "module_names"]


class NamespaceValue(DictValue):
    """The dictionary of the frame's globals or of a module: the same object in every call."""

    __slots__ = ()
    by_identity = True

    @property
    def is_value_guarded(self) -> bool:
        return True

    def identity(self) -> object:
        return self.store.live

    def is_constant(self, machine: Machine) -> bool:
        return False

    def builtin(self, machine: Machine, name: str) -> Value | None:
        """Return a builtin of code with these globals, or None if it is absent (guarded)."""
        return _builtin(machine, self, name)

    def recipe(self, builder: Builder) -> Recipe:
        return Constant(self.store.live)

    def describe(self) -> str:
        return "a namespace"


def frame_globals(machine: Machine, live: dict[str, object]) -> DictValue:
    """Return the globals of the traced frame."""
    return _shared(machine, live, Globals(), Global, lambda name: GlobalMissing(Global(name)))


def module_names(machine: Machine, module: types.ModuleType, source: Source) -> DictValue:
    """Return the namespace of a module that `source` leads to in every call."""
    table = InstanceDict(source)
    named, absent = partial(ModuleAttr, source), partial(KeyAbsent, table)
    return _shared(machine, vars(module), table, named, absent)


def _shared(
    machine: Machine,
    live: dict[str, object],
    source: Source,
    named: Callable[[str], Source],
    absent: Callable[[str], Guard],
) -> DictValue:
    def entry(table: Source, key: object) -> Source:
        # `globals()[3] = x` is valid, but no attribute path reads a key that is not a str.
        return named(key) if type(key) is str else Item(table, key)

    def lacks(table: Source, key: object) -> Guard:
        return absent(key) if type(key) is str else KeyAbsent(table, key)

    def make() -> NamespaceValue:
        return NamespaceValue(store=TableStore.of_live(machine, live, source, entry, lacks))

    # With two models of one dictionary, `alias is globals()` was False, and neither would see what
    # the program writes through the other.
    names: DictValue = machine.globals_of(live, make)
    return names


def builtin_named(machine: Machine, names: DictValue, name: str) -> Value | None:
    """Return a builtin of code with these globals, or None if it is absent (guarded)."""
    if isinstance(names, NamespaceValue):
        return names.builtin(machine, name)
    return _builtin(machine, names, name)


def _builtin(machine: Machine, names: DictValue, name: str) -> Value | None:
    # CPython stores the builtins module in `__main__`, and its dictionary elsewhere.
    found = names.store.live.get("__builtins__", __builtins__)
    table = found.__dict__ if isinstance(found, types.ModuleType) else found
    if not isinstance(table, dict):
        return None
    if name not in table:
        machine.guard(GlobalMissing(Builtin(name)))
        return None
    return machine.lazy(table[name], Builtin(name), certain=False)


class ModuleValue(Value):
    """A Python module, known by identity."""

    __slots__ = ("module", "names")
    always_true = True
    by_identity = True

    def __init__(self, module: types.ModuleType, names: DictValue, source: Source) -> None:
        super().__init__(source)
        self.module = module
        self.names = names

    def python_type(self, machine: Machine) -> type:
        return types.ModuleType

    def identity(self) -> object:
        return self.module

    def hash_key(self, machine: Machine) -> object:
        return self.module

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name == "__dict__":
            self.names.observe(machine)
            return self.names
        found = self.names.store.get(name)
        if found is not None:
            return found
        if hasattr(types.ModuleType, name):
            self.refuse(machine, f"attribute {name!r}")
        # PEP 562: a missing attribute calls the function `__getattr__` in the module's dictionary.
        getter = self.names.store.get("__getattr__")
        if getter is not None:
            return getter.realize(machine).call(machine, [machine.constant(name)], {})
        message = f"module '{self.module.__name__}' has no attribute '{name}'"
        raise machine.error(AttributeError, message)

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        self.names.set_item(machine, machine.constant(name), value)

    def del_attr(self, machine: Machine, name: str) -> None:
        self.get_attr(machine, name)
        self.names.del_item(machine, machine.constant(name))

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        raise machine.error(TypeError, "'module' object is not callable")

    def recipe(self, builder: Builder) -> Recipe:
        return Constant(self.module)

    def parts(self) -> Iterable[Value]:
        return ()


@wraps(types.ModuleType)
def _wrap_module(machine: Machine, obj: types.ModuleType, source: Source) -> Value:
    machine.guard(IdentityIs(source, obj))
    if not is_library_module(obj.__name__):  # assigning `module.__class__` can add properties
        machine.guard(IdentityIs(TypeOf(source), types.ModuleType))
    return ModuleValue(obj, module_names(machine, obj, source), source)
