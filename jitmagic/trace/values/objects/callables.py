"""Models callables implemented in C: functions, and bound methods of built-in types.

Input: a C function, method descriptor or bound built-in method. Output: the result of its handler
in builtins/registry.py, or an UnknownCFunction break.
"""

from __future__ import annotations

import types
from collections.abc import Callable

import torch

from ....guards.guard import IdentityIs, TypeIs, ValueEquals
from ....guards.source import FunctionPart, SlotAttr, Source
from ....late_tables import EVERY, LateTable
from ...breaks import GraphBreak, UnknownCFunction
from ...builtins.registry import handler_of, method_of
from ...result import Constant, Recipe
from ...wrap import intercepts, wraps
from ..base import Args, Builder, Kwargs, Machine, Value

__all__ = [
    "BuiltinMethodValue",
    "BuiltinValue",
    "bind_builtin",
    "builtin_value",
    "makes_builtins",
    "name_of",
]

_METHODS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
# Types whose bound methods are identified by (owner, name). An instance of a built-in container has
# no `__dict__` that could override one; for a tensor, the model reads methods from the class.
_OWNERS = frozenset(
    {torch.Tensor, torch.nn.Parameter, list, dict, set, frozenset, tuple, str, bytes}
)


def name_of(obj: object) -> str:
    """Return a dotted name for messages."""
    name = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None) or repr(obj)
    module = getattr(obj, "__module__", None)
    return f"{module}.{name}" if module and module != "builtins" else str(name)


class BuiltinValue(Value):
    """A callable written in C, guarded by identity."""

    __slots__ = ("obj",)
    always_true = True
    by_identity = True

    def __init__(self, obj: object, source: Source | None = None) -> None:
        super().__init__(source)
        self.obj = obj

    def python_type(self, machine: Machine) -> type:
        return type(self.obj)

    def identity(self) -> object:
        return self.obj

    def hash_key(self, machine: Machine) -> object:
        return self.obj

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return machine.constant(getattr(self.obj, name))
        self.refuse(machine, f"attribute {name!r}")

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        handler = handler_of(self.obj)
        if handler is not None:
            return handler(machine, args, kwargs)
        # `str.upper(s)` is `s.upper()`: the handler of the bound method serves both forms.
        if isinstance(self.obj, _METHODS) and args:
            owner = args[0].realize(machine)
            kind = owner.python_type(machine)
            of, name = self.obj.__objclass__, self.obj.__name__
            if issubclass(kind, of) and not owner.opaque:
                # `list.append(stack, x)` calls list's method even if a subclass overrides it.
                exact = kind is of  # no subclass overrides the method
                bound = (
                    owner.get_attr(machine, name)
                    if exact
                    else bind_builtin(machine, owner, of, name)
                )
                if not any(self._is_same(part) for part in bound.parts()):
                    return bound.call(machine, args[1:], kwargs)
        raise GraphBreak(UnknownCFunction.of(name=name_of(self.obj)))

    def _is_same(self, other: Value) -> bool:
        """Return whether the other value models the same function: calling it would recurse."""
        return isinstance(other, BuiltinValue) and other.obj is self.obj

    def recipe(self, builder: Builder) -> Recipe:
        return Constant(self.obj)

    def describe(self) -> str:
        return f"built-in {name_of(self.obj)}"


class UnknownMethodValue(Value):
    """A bound method of an object without a model, guarded by its type alone.

    Each read creates a new bound method, so an identity guard would recompile the resume function
    after a graph break in every call.
    """

    __slots__ = ("live",)
    always_true = True
    opaque = True

    def __init__(self, live: types.BuiltinMethodType, source: Source) -> None:
        super().__init__(source)
        self.live = live

    def python_type(self, machine: Machine) -> type:
        return types.BuiltinMethodType

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        raise GraphBreak(UnknownCFunction.of(name=name_of(self.live)))


Maker = Callable[[object], "BuiltinValue | None"]
_MAKERS: LateTable[str, list[Maker]] = LateTable("makers of builtins")


def makes_builtins(maker: Maker) -> Maker:
    """Register a maker of values for some C callables in built-in classes; it returns None for
    others."""
    _MAKERS.setdefault(EVERY, []).append(maker)
    return maker


def builtin_value(obj: object) -> BuiltinValue:
    """Return a sourceless value of a C callable in an immutable class, which needs no guard."""
    values = (maker(obj) for maker in _MAKERS.get(EVERY, ()))
    return next((value for value in values if value is not None), None) or BuiltinValue(obj)


class BuiltinMethodValue(Value):
    """A method of a built-in type bound to its owner."""

    __slots__ = ("kind", "name", "owner")
    always_true = True

    def __init__(self, owner: Value, kind: type, name: str) -> None:
        super().__init__()
        self.owner = owner
        self.kind = kind
        self.name = name

    def python_type(self, machine: Machine) -> type:
        return types.BuiltinMethodType

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        handler = method_of(self.kind, self.name)
        if handler is None:
            raise GraphBreak(UnknownCFunction.of(name=f"{self.kind.__name__}.{self.name}"))
        return handler(machine, self.owner, args, kwargs)

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name == "__self__":
            return self.owner
        self.refuse(machine, f"attribute {name!r}")

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(getattr, (builder(self.owner), builder.constant(self.name)))

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        self.refuse(machine, f"comparison {op}")  # each read creates a new, equal method

    def describe(self) -> str:
        return f"method {self.name} of {self.kind.__name__}"


def bind_builtin(machine: Machine, owner: Value, kind: type, name: str) -> Value:
    """Return method `name` of a value that is modelled as the built-in type `kind`."""
    if method_of(kind, name) is None and not hasattr(kind, name):
        message = f"'{kind.__name__}' object has no attribute '{name}'"
        raise machine.error(AttributeError, message)
    if not callable(getattr(kind, name)):
        owner.refuse(machine, f"attribute {name!r}")
    return BuiltinMethodValue(owner, kind, name)


@wraps(
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
def _wrap_builtin(machine: Machine, obj: object, source: Source) -> Value:
    if isinstance(obj, types.BuiltinMethodType) and type(obj.__self__) in _OWNERS:
        return _bound_method(machine, obj, source)
    if isinstance(obj, types.BuiltinMethodType) and _is_created_by_read(obj):
        machine.guard(TypeIs(source, types.BuiltinMethodType))
        return UnknownMethodValue(obj, source)
    machine.guard(IdentityIs(source, obj))
    return BuiltinValue(obj, source)


def _is_created_by_read(method: types.BuiltinMethodType) -> bool:
    """Return whether each attribute read creates the method; modules and classes store theirs."""
    # The `__self__` of `math.sin` is its module, of `dict.fromkeys` the class, of `torch.add` None.
    owner = method.__self__
    is_stored = owner is None or isinstance(owner, types.ModuleType | type)
    return not is_stored and handler_of(method) is None


@intercepts(types.FunctionType)
def _known_function(machine: Machine, obj: types.FunctionType, source: Source) -> Value | None:
    """Wrap a Python function of the standard library that has a handler (copy.deepcopy)."""
    if handler_of(obj) is None or obj.__module__.startswith("torch"):
        return None
    machine.guard(IdentityIs(source, obj))
    return BuiltinValue(obj, source)


def _bound_method(machine: Machine, obj: types.BuiltinMethodType, source: Source) -> Value:
    """Wrap a bound method like `x.add`, guarded by its name and owner."""
    machine.guard(TypeIs(source, types.BuiltinMethodType))
    machine.guard(ValueEquals(SlotAttr(source, "__name__"), obj.__name__))
    owner = machine.wrap(obj.__self__, FunctionPart(source, "__self__"))
    return owner.get_attr(machine, obj.__name__)
