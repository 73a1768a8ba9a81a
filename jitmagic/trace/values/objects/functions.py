"""Models Python functions, closure cells and bound methods.

Input: live functions or functions that the traced code defines. Output: calls that the machine
inlines. Live functions are guarded by their code object, not their identity: a closure that is
created anew in each call passes the guard, and a reload by %autoreload fails it.
"""

from __future__ import annotations

import types
from collections.abc import Iterable

from ....guards.guard import CellEmpty, IdentityIs, TypeIs
from ....guards.source import CellContents, FunctionPart, Item, SlotAttr, Source
from ....lazy_dataclass import dataclass
from ...builtins.registry import handler_of
from ...result import BuildCell, BuildFunction, Effect, Recipe, SetCell
from ...wrap import wraps
from ..base import Args, Builder, CannotRebuild, Kwargs, Machine, Value
from ..containers.mappings import DictValue, WithAttributes, entries_of_live
from .callables import BuiltinValue
from .class_facts import is_library_module
from .constants import ConstantValue
from .monkey_patches import unwrap_function
from .operators import is_none
from .tagged import tagged_value

__all__ = ["BoundMethodValue", "CellValue", "FunctionValue"]

# `__type_params__` exists since Python 3.12, `__annotate__` since 3.14.
_EXISTING = set(dir(types.FunctionType))
_NAMES = {"__name__", "__qualname__", "__module__", "__doc__", "__annotate__"} & _EXISTING
_DECLARED = {"__annotations__", "__type_params__"} & _EXISTING


class CellValue(Value):
    """A closure cell, which holds one variable that several functions share."""

    __slots__ = ("_live", "_read", "contents")

    def __init__(self, contents: Value | None = None, source: Source | None = None) -> None:
        super().__init__(source)
        self.contents = contents
        self._live: types.CellType | None = None
        self._read = True

    @classmethod
    def at(cls, live: types.CellType, source: Source) -> CellValue:
        """Wrap a cell that existed before the call; `load` reads its contents lazily."""
        cell = cls(None, source)
        cell._live, cell._read = live, False
        return cell

    def python_type(self, machine: Machine) -> type:
        return types.CellType

    def load(self, machine: Machine) -> Value | None:
        """Return the contents, or None if the cell is empty (guarded)."""
        if not self._read:
            self._read = True
            assert self._live is not None
            assert self.source is not None
            try:
                contents = self._live.cell_contents
            except ValueError:
                machine.guard(CellEmpty(self.source))
                return None
            self.contents = machine.lazy(contents, CellContents(self.source), certain=False)
        return self.contents

    def store(self, machine: Machine, contents: Value | None) -> None:
        self._read = True
        self.contents = contents
        machine.effects.contents(self)

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name != "cell_contents":
            self.refuse(machine, f"attribute {name!r}")
        contents = self.load(machine)
        if contents is None:
            raise machine.error(ValueError, "Cell is empty")
        return contents

    def recipe(self, builder: Builder) -> Recipe:
        # `fill` sets the contents afterwards: a recursive closure holds its own cell.
        return BuildCell(None)

    def fill(self, builder: Builder) -> Iterable[Effect]:
        """Yield the effect that sets the contents of a newly built cell."""
        if self.contents is not None:
            yield SetCell(builder(self), builder(self.contents))

    def replace(self, builder: Builder) -> Effect:
        """Return the effect that writes the contents to the live cell."""
        return SetCell(builder(self), None if self.contents is None else builder(self.contents))

    def parts(self) -> Iterable[Value]:
        return () if self.contents is None else (self.contents,)


class FunctionValue(WithAttributes):
    """A Python function. `live` is the object if it existed before the call.

    `slots` has the `__module__`, `__doc__` and `__annotate__` that the traced code has set.
    """

    __slots__ = (
        "annotations", "closure", "code", "defaults", "evaluated_at_step", "globals", "kwdefaults",
        "live", "name", "qualname", "slots",
    )  # fmt: skip

    def __init__(
        self,
        code: types.CodeType,
        globals_: DictValue,
        *,
        live: types.FunctionType | None = None,
        source: Source | None = None,
    ) -> None:
        super().__init__(source)
        self.code = code
        self.globals = globals_
        self.live = live
        self.name = live.__name__ if live else code.co_name
        self.qualname = live.__qualname__ if live else code.co_qualname
        self.defaults: Value = ConstantValue(None)
        self.kwdefaults: Value = ConstantValue(None)
        self.annotations: Value | None = None
        self.evaluated_at_step: int | None = None
        self.closure: tuple[Value, ...] = ()
        self.slots: dict[str, Value] = {}

    def python_type(self, machine: Machine) -> type:
        return types.FunctionType

    def identity(self) -> object:
        return self if self.live is None else self.live

    def hash_key(self, machine: Machine) -> object:
        self.guard_identity(machine)
        return self.identity()

    def guard_identity(self, machine: Machine) -> None:
        # Calls guard only the code object, which a closure created anew in each call shares.
        if self.live is not None and self.source is not None:
            machine.guard(IdentityIs(self.source, self.live))

    def truth(self, machine: Machine) -> bool:
        return True

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if (handler := handler_of(self.code)) is not None:  # a handler for every closure of it
            return handler(machine, [self, *args], kwargs)
        return machine.inline(self, args, kwargs)

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name == "__code__":
            return machine.constant(self.code)
        if name in ("__defaults__", "__kwdefaults__"):
            return self.defaults if name == "__defaults__" else self.kwdefaults
        if name in _NAMES:
            return self.slots.get(name) or self._name_attribute(machine, name)
        if name in _DECLARED:
            return self._declared(machine, name)
        if name == "__get__":
            return BinderValue(self)
        if self._is_unreachable or (name != "__dict__" and hasattr(types.FunctionType, name)):
            self.refuse(machine, f"attribute {name!r}")
        if name == "__dict__":
            return self.own_table(machine)
        if (found := self.table(machine).store.get(name)) is not None:
            return found
        message = f"'function' object has no attribute '{name}'"
        raise machine.error(AttributeError, message)

    def _name_attribute(self, machine: Machine, name: str) -> Value:
        """Return `__name__`, `__qualname__`, `__module__`, `__doc__` or `__annotate__`.

        For a function that the traced code defines they follow from its code and globals.
        """
        if self.live is None and name in ("__name__", "__qualname__"):
            return machine.constant(self.name if name == "__name__" else self.qualname)
        if self.live is None and name == "__annotate__":
            return machine.constant(None)
        if self.live is None:
            cells = tuple(types.CellType() for _ in self.code.co_freevars)
            # CPython takes the docstring from the code's constants when it creates a function.
            doc = types.FunctionType(self.code, self.globals.store.live, closure=cells).__doc__
            return machine.constant(doc) if name == "__doc__" else self._own_module(machine)
        if self.source is not None:
            source = SlotAttr(self.source, name)
            return machine.lazy(getattr(self.live, name), source, certain=False)
        if not is_library_module(self.live.__globals__.get("__name__")):
            self.refuse(machine, f"attribute {name!r}")
        return machine.constant(getattr(self.live, name))

    def _declared(self, machine: Machine, name: str) -> Value:
        """Return `__annotations__` or `__type_params__`."""
        if self.live is not None:
            if self.source is None:
                self.refuse(machine, f"attribute {name!r}")
            if self._evaluates(machine, name):
                return self._cached_annotations(machine, self.source)
            return machine.lazy(getattr(self.live, name), SlotAttr(self.source, name))
        if name == "__type_params__":  # non-empty ones need an opcode that breaks the graph
            return machine.constant(())
        if self.annotations is None:
            self.annotations = self._evaluated_annotations(machine)
        return self.annotations

    def _evaluates(self, machine: Machine, name: str) -> bool:
        """Return whether a read of the live function's attribute may run code of the user."""
        # Since CPython 3.14, the first read of `__annotations__` calls `__annotate__`, if any.
        is_lazy = name == "__annotations__" and "__annotate__" in _NAMES
        return is_lazy and not is_none(self.get_attr(machine, "__annotate__").realize(machine))

    def _cached_annotations(self, machine: Machine, source: Source) -> Value:
        # Python evaluates and caches them after the break, then the guard asks for another trace.
        part = FunctionPart(source, "__annotations__")
        if (cached := part.follow(self.live)) is None:
            machine.guard(IdentityIs(part, None))
            self.refuse(machine, "attribute '__annotations__' before Python evaluates it")
        return machine.lazy(cached, part)

    def _evaluated_annotations(self, machine: Machine) -> Value:
        annotate = self.slots.get("__annotate__")
        if annotate is None or is_none(annotate.realize(machine)):
            return DictValue.of(machine, ())
        self.evaluated_at_step = machine.step
        return annotate.realize(machine).call(machine, [machine.constant(1)], {})  # Format.VALUE

    def _own_module(self, machine: Machine) -> Value:
        return self.globals.store.get("__name__") or machine.constant(None)

    @property
    def _is_unreachable(self) -> bool:
        """Return whether it is a live function that no guard reads and no exit can write to."""
        return self.live is not None and self.source is None

    def live_table(self) -> dict[str, object]:
        assert self.live is not None
        return self.live.__dict__

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        if self._is_unreachable or hasattr(types.FunctionType, name):
            self.refuse(machine, f"setting attribute {name!r}")
        self.table(machine).set_item(machine, machine.constant(name), value)

    def attribute_effect(self, builder: Builder, name: str, value: Value | None) -> Effect | None:
        plain = not hasattr(types.FunctionType, name)
        return super().attribute_effect(builder, name, value) if plain else None

    def recipe(self, builder: Builder) -> Recipe:
        def optional(value: Value | None) -> Recipe | None:
            return None if value is None or is_none(value) else builder(value)

        if self.evaluated_at_step is not None:  # setting one part of a function clears the other
            what = "a function with evaluated annotations and __annotate__"
            raise CannotRebuild(what, self.evaluated_at_step)
        return BuildFunction(
            code=self.code,
            globals=builder(self.globals),
            name=self.name,
            qualname=self.qualname,
            defaults=optional(self.defaults),
            kwdefaults=optional(self.kwdefaults),
            closure=tuple(builder(cell) for cell in self.closure),
            annotations=optional(self.annotations),
        )

    def fill(self, builder: Builder) -> Iterable[Effect]:
        """Yield the effects that set the attributes of a function defined by the traced code."""
        for name, value in self.slots.items():
            yield builder.set_attr(self, name, value)
        yield from super().fill(builder)

    def parts(self) -> Iterable[Value]:
        own = (self.defaults, self.kwdefaults, *self.closure, *self.slots.values())
        return (*own, *self.attribute_parts())

    def describe(self) -> str:
        return f"function {self.qualname}"


@dataclass(frozen=True, slots=True)
class _MethodKey:
    """The hash key of a bound method: equal keys bind the same function to the same object."""

    function: object
    owner: object


class BinderValue(Value):
    """The method `function.__get__`, which binds the function to an object."""

    __slots__ = ("function",)

    def __init__(self, function: FunctionValue) -> None:
        super().__init__()
        self.function = function

    def python_type(self, machine: Machine) -> type:
        return types.MethodWrapperType

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        is_bound = len(args) in (1, 2) and not kwargs
        owner = args[0].realize(machine) if is_bound else None
        if owner is None or is_none(owner):
            self.refuse(machine, "a call with these arguments")
        return BoundMethodValue(self.function, owner)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(getattr, (builder(self.function), builder.constant("__get__")))

    def parts(self) -> Iterable[Value]:
        return (self.function,)

    def describe(self) -> str:
        return f"{self.function.describe()}.__get__"


class BoundMethodValue(Value):
    """A Python function (or other callable) bound to its first argument."""

    __slots__ = ("function", "owner")
    always_true = True

    def __init__(self, function: Value, owner: Value, source: Source | None = None) -> None:
        super().__init__(source)
        self.function = function
        self.owner = owner

    def python_type(self, machine: Machine) -> type:
        return types.MethodType

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        return self.function.realize(machine).call(machine, [self.owner, *args], kwargs)

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name in ("__self__", "__func__"):
            return self.owner if name == "__self__" else self.function
        return self.function.realize(machine).get_attr(machine, name)

    def hash_key(self, machine: Machine) -> object:
        owner = self.owner.realize(machine)
        # method.__hash__ uses the identity of `__self__`, which an equal atom need not share.
        if isinstance(owner, ConstantValue):
            self.refuse(machine, "hash()")
        owner.guard_identity(machine)
        machine.guard_distinct_key(owner)
        return _MethodKey(self.function.realize(machine).hash_key(machine), owner.identity())

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if not isinstance(other, BoundMethodValue) or op not in ("==", "!="):
            return None
        pairs = ((self.function, other.function), (self.owner, other.owner))
        # Since Python 3.8, method_richcompare compares `__self__` by identity and not by `==`.
        same = all(a.realize(machine) is b.realize(machine) for a, b in pairs)
        return machine.constant(same == (op == "=="))

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(types.MethodType, (builder(self.function), builder(self.owner)))

    def parts(self) -> Iterable[Value]:
        return self.function, self.owner


@wraps(types.FunctionType)
def _wrap_function(machine: Machine, obj: types.FunctionType, source: Source) -> Value:
    # The wrapped function is read from the wrapper's closure, so a replacement fails a guard.
    if (inner := unwrap_function(obj)) is not obj:
        machine.guard(TypeIs(source, types.FunctionType))
        machine.guard(IdentityIs(FunctionPart(source, "__code__"), obj.__code__))
        index = [cell.cell_contents for cell in obj.__closure__ or ()].index(inner)
        return machine.wrap(inner, CellContents(Item(FunctionPart(source, "__closure__"), index)))
    if (tagged := tagged_value(machine, obj, source)) is not None:
        return tagged
    if handler_of(obj) is not None:  # modelled as a whole, as C functions are
        machine.guard(IdentityIs(source, obj))
        return BuiltinValue(obj, source)
    return _plain_function(machine, obj, source)


def _plain_function(machine: Machine, obj: types.FunctionType, source: Source) -> Value:
    # Guarded by its code, not its identity: a lambda created anew in each call is the same program.
    machine.guard(TypeIs(source, types.FunctionType))
    machine.guard(IdentityIs(FunctionPart(source, "__code__"), obj.__code__))
    # Two functions can share the code but not the globals, as `types.FunctionType(f.__code__,
    # other)`. Without a path to these globals, the second read the names of the first.
    names = entries_of_live(machine, obj.__globals__, FunctionPart(source, "__globals__"))
    function = FunctionValue(obj.__code__, names, live=obj, source=source)
    function.defaults = machine.lazy(obj.__defaults__, FunctionPart(source, "__defaults__"))
    function.kwdefaults = machine.lazy(obj.__kwdefaults__, FunctionPart(source, "__kwdefaults__"))
    # The guard on the code fixes the number of cells: CPython refuses to assign a `__code__` with
    # another number of free variables.
    cells = FunctionPart(source, "__closure__")
    function.closure = tuple(
        machine.lazy(cell, Item(cells, index)) for index, cell in enumerate(obj.__closure__ or ())
    )
    return function


@wraps(types.MethodType)
def _wrap_method(machine: Machine, obj: types.MethodType, source: Source) -> Value:
    machine.guard(TypeIs(source, types.MethodType))
    function = machine.lazy(obj.__func__, FunctionPart(source, "__func__"))
    return BoundMethodValue(
        function, machine.lazy(obj.__self__, FunctionPart(source, "__self__")), source
    )


@wraps(types.CellType)
def _wrap_cell(machine: Machine, obj: types.CellType, source: Source) -> Value:
    machine.guard(TypeIs(source, types.CellType))
    return CellValue.at(obj, source)
