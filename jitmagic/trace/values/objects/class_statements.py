"""Traces class statements whose class the traced code never uses.

Input: the function that is the class body. Output: its inlined effects and a placeholder Value. No
class exists while tracing, so any use of the placeholder breaks the graph before the statement. It
is worth modelling because libraries define classes inside functions, and most calls use none.

The creation of the class must run no other code: no metaclass, no `__init_subclass__`, no
`__set_name__`, and at most one base.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence

import torch

from ...breaks import GraphBreak, UnsupportedArguments
from ...builtins.registry import AS_GIVEN, handles
from ...result import Recipe
from ...state import Interpreter
from ..base import Args, Builder, CannotRebuild, Kwargs, Machine, Value
from .class_facts import attribute_of_class, guard_attribute
from .classes import ClassValue, constructs
from .functions import FunctionValue

__all__ = ["ClassBodyNames", "ClassStatementValue"]

_DESCRIPTORS = (staticmethod, classmethod, property)
_BASETYPE = 1 << 10  # Py_TPFLAGS_BASETYPE
_INIT_SUBCLASS = vars(object)["__init_subclass__"]


class ClassStatementValue(Value):
    """A placeholder for the class that a statement would create; supports `bool()` only."""

    __slots__ = ("created_at_step", "name")
    always_true = True

    def __init__(self, machine: Machine, name: str) -> None:
        super().__init__()
        self.created_at_step = machine.step
        self.name = name

    def recipe(self, builder: Builder) -> Recipe:
        raise CannotRebuild(
            f"the class {self.name}, defined in the traced code", self.created_at_step
        )

    def describe(self) -> str:
        return f"class {self.name}, defined in the traced code"


class ClassBodyNames(Value):
    """A snapshot of the names that a class body has defined so far."""

    __slots__ = ("table",)

    def __init__(self, table: Mapping[str, Value]) -> None:
        super().__init__()
        self.table = table


class DescriptorValue(Value):
    """A staticmethod, classmethod or property that the traced code creates."""

    __slots__ = ("kind", "wrapped")
    always_true = True

    def __init__(self, kind: type, wrapped: Sequence[Value]) -> None:
        super().__init__()
        self.kind = kind
        self.wrapped = wrapped

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(self.kind, tuple(map(builder, self.wrapped)))

    def parts(self) -> Iterable[Value]:
        return self.wrapped


@constructs(lambda kind: kind in _DESCRIPTORS)
def _make_descriptor(machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    if kwargs or not 0 < len(args) <= (4 if cls.live is property else 1):
        cls.refuse(machine, "a call with these arguments")
    return DescriptorValue(cls.live, args)


@handles(builtins.__build_class__, like=AS_GIVEN)
def _build_class(machine: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    body, name, *bases = args
    assert isinstance(body, FunctionValue)
    text = name.as_constant(machine)
    # Keywords name a metaclass or go to `__init_subclass__`. With two bases, type.__new__ may raise
    # TypeError: their MROs or their C layouts may conflict.
    if kwargs or len(bases) > 1 or not all(_runs_no_hook(machine, base) for base in bases):
        raise _refused(text, "making it runs other code, or may")
    for part, value in machine.class_names(body).items():
        # A name in `__slots__` that is also a class variable is a ValueError of type.__new__.
        if part == "__slots__" or _has_set_name(machine, value.realize(machine)):
            raise _refused(text, f"its {part} may refuse it or do something with it")
    return ClassStatementValue(machine, text)


def _runs_no_hook(machine: Machine, base: Value) -> bool:
    """Return whether subclassing the base is allowed and runs no user code."""
    if not isinstance(base, ClassValue):
        return False
    if type(base.live) is not type and type(base.live) is not type(torch.autograd.Function):
        return False  # only FunctionMeta is known to have no effect outside the new class
    if attribute_of_class(base.live, "__init_subclass__") is not _INIT_SUBCLASS:
        return False
    guard_attribute(machine, base.live, "__init_subclass__", _INIT_SUBCLASS)
    return bool(base.live.__flags__ & _BASETYPE)


def _has_set_name(machine: Machine, value: Value) -> bool:
    """Return whether the object may have a `__set_name__`, which class creation calls."""
    # property has a `__set_name__` in C, which only stores the name for error messages.
    if isinstance(value, FunctionValue | DescriptorValue | ClassStatementValue):
        return False
    return hasattr(value.python_type(machine), "__set_name__")


def _refused(name: str, why: str) -> GraphBreak:
    return GraphBreak(UnsupportedArguments.of(name=f"class {name}", what=why))
