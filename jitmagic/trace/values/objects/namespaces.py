"""Models global namespaces and Python modules.

Input: the dictionary of a frame's globals or of a module. Output: its names, read lazily and
guarded one by one. Writes become SetGlobal and DelGlobal effects in program order. Each dictionary
has one GlobalsValue per trace, even if several paths reach it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable

from ....guards.guard import GlobalMissing, Guard, IdentityIs, KeyAbsent
from ....guards.source import Builtin, Global, InstanceDict, Item, ModuleAttr, Source, TypeOf
from ...aliased_dicts import Access
from ...result import Constant, Recipe
from ...wrap import wraps
from ..base import Args, Builder, Kwargs, Machine, Value
from ..containers.mappings import DictValue
from ..containers.table_store import Pair, TableStore
from .class_facts import is_library_module

__all__ = ["GlobalsValue", "ModuleValue"]


class GlobalsValue(Value):
    """A namespace dict; `written` has the names that the trace changed (None: deleted)."""

    __slots__ = ("_absent", "_known", "_path", "_table", "live", "written")

    def __init__(
        self,
        live: dict[str, object],
        path: Callable[[str], Source],
        absent: Callable[[str], Guard],
        source: Source | None = None,
    ) -> None:
        super().__init__(source)
        self.live = live
        self._path = path
        self._absent = absent
        self._known: dict[str, Value] = {}
        self.written: dict[str, Value | None] = {}
        self._table: _NamesTable | None = None  # created by `table`

    @classmethod
    def of_root(cls, live: dict[str, object]) -> GlobalsValue:
        """Wrap the globals of the traced frame."""
        return cls(live, Global, lambda name: GlobalMissing(Global(name)))

    @classmethod
    def at(cls, live: dict[str, object], source: Source) -> GlobalsValue:
        """Wrap the globals of an inlined function, read from `source`."""
        return cls(
            live, lambda name: Item(source, name), lambda name: KeyAbsent(source, name), source
        )

    @classmethod
    def of_module(cls, module: types.ModuleType, source: Source) -> GlobalsValue:
        """Wrap the namespace of a module read from `source`."""
        table = InstanceDict(source)
        path = lambda name: ModuleAttr(source, name)  # noqa: E731
        return cls(vars(module), path, lambda name: KeyAbsent(table, name))

    def find(self, machine: Machine, name: str) -> Value | None:
        """Return the value of a global, or None if it is absent (guarded)."""
        # The program may also use the dictionary as an object, for which there is a DictValue.
        machine.aliased_dicts.use(id(self.live), Access.NAMESPACE)
        if name in self.written:
            return self.written[name]
        if name in self._known:
            return self._known[name]
        if name not in self.live:
            machine.guard(self._absent(name))
            return None
        value = machine.lazy(self.live[name], self._path(name), certain=False)
        self._known[name] = value
        return value

    def store(self, machine: Machine, name: str, value: Value | None) -> None:
        """Write a global, or delete it if `value` is None."""
        machine.aliased_dicts.use(id(self.live), Access.NAMESPACE, changing=True)
        self.written[name] = value
        machine.effects.set_global(self, name, value)

    def table(self, machine: Machine) -> DictValue:
        """Return the dictionary itself: `globals()`, `vars(module)`."""
        if self._table is None:
            self._table = _NamesTable(machine, self)
        return self._table

    def entries(self, machine: Machine) -> dict[str, Value]:
        self.refuse(machine, "all names of a module")

    def is_changed(self, machine: Machine) -> bool:
        return bool(self.written)

    def describe(self) -> str:
        return "a namespace"

    def builtin(self, machine: Machine, name: str) -> Value | None:
        """Return a builtin of code with these globals, or None if it is absent (guarded)."""
        # CPython stores the builtins module in `__main__`, and its dictionary elsewhere.
        found = self.live.get("__builtins__", __builtins__)
        table = found.__dict__ if isinstance(found, types.ModuleType) else found
        if not isinstance(table, dict):
            return None
        if name not in table:
            machine.guard(GlobalMissing(Builtin(name)))
            return None
        return machine.lazy(table[name], Builtin(name), certain=False)

    def recipe(self, builder: Builder) -> Recipe:
        return Constant(self.live)


class _NamesStore(TableStore):
    """A TableStore view of a GlobalsValue, which logs the changes itself."""

    __slots__ = ("names",)

    def __init__(self, machine: Machine, names: GlobalsValue) -> None:
        super().__init__()
        self.machine: Machine = machine
        self.names = names

    @property
    def pairs(self) -> dict[object, Pair]:
        entries = self.names.entries(self.machine).items()
        return {name: (self.machine.constant(name), value) for name, value in entries}

    def get(self, token: object) -> Value | None:
        if isinstance(token, Value):
            self.names.refuse(self.machine, "such a key of a namespace")
        found: Value | None = None
        if type(token) is str:
            found = self.names.find(self.machine, token)
        return found

    def length(self) -> int:
        return len(self.pairs)

    def put(self, token: object, key: Value, value: Value) -> None:
        self.names.store(self.machine, self._name(token), value)

    def erase(self, token: object, key: Value) -> bool:
        found = self.get(token) is not None
        if found:
            self.names.store(self.machine, self._name(token), None)
        return found

    def clear(self) -> None:
        for name in list(self.names.entries(self.machine)):
            self.names.store(self.machine, name, None)

    def _name(self, token: object) -> str:
        if not isinstance(token, str):
            self.names.refuse(self.machine, "such a key of a namespace")
        return str(token)

    def parts(self) -> list[Value]:
        return [self.names]


class _NamesTable(DictValue):
    """The dictionary that `globals()` or `vars(module)` returns."""

    __slots__ = ("names",)

    def __init__(self, machine: Machine, names: GlobalsValue) -> None:
        super().__init__(store=_NamesStore(machine, names))
        self.names = names

    def is_constant(self, machine: Machine) -> bool:
        return False

    def is_changed(self, machine: Machine) -> bool:
        return self.names.is_changed(machine)

    def changed(self, machine: Machine) -> None:
        """Do nothing: the namespace logs its changes itself."""

    def recipe(self, builder: Builder) -> Recipe:
        return builder(self.names)

    def empty_recipe(self) -> Recipe | None:
        return None

    def describe(self) -> str:
        return "the names of a namespace"


class ModuleValue(Value):
    """A Python module, known by identity."""

    __slots__ = ("module", "names")
    by_identity = True

    def __init__(self, module: types.ModuleType, names: GlobalsValue, source: Source) -> None:
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
            return self.names.table(machine)
        found = self.names.find(machine, name)
        if found is not None:
            return found
        if hasattr(types.ModuleType, name):
            self.refuse(machine, f"attribute {name!r}")
        getter = self.names.find(machine, "__getattr__")
        if getter is not None:
            return getter.realize(machine).call(machine, [machine.constant(name)], {})
        message = f"module '{self.module.__name__}' has no attribute '{name}'"
        raise machine.error(AttributeError, message)

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        self.names.store(machine, name, value)

    def del_attr(self, machine: Machine, name: str) -> None:
        self.get_attr(machine, name)
        self.names.store(machine, name, None)

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        raise machine.error(TypeError, "'module' object is not callable")

    def truth(self, machine: Machine) -> bool:
        return True

    def recipe(self, builder: Builder) -> Recipe:
        return Constant(self.module)

    def parts(self) -> Iterable[Value]:
        return ()


@wraps(types.ModuleType)
def _wrap_module(machine: Machine, obj: types.ModuleType, source: Source) -> Value:
    machine.guard(IdentityIs(source, obj))
    if not is_library_module(obj.__name__):  # assigning `module.__class__` can add properties
        machine.guard(IdentityIs(TypeOf(source), types.ModuleType))
    names = machine.globals_of(vars(obj), lambda: GlobalsValue.of_module(obj, source))
    return ModuleValue(obj, names, source)
