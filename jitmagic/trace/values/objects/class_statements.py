"""Class statements inside the traced code.

Comes in: the function that is the body of the class. Goes out: what the body does, inlined, and a
value for the class that nobody has looked into: there is no such class, and a program that uses it
ends the trace before the statement. Libraries define classes that most of their calls never need.

Followed where making the class runs no code: no metaclass, no `__init_subclass__`, no
`__set_name__`, and a base, if any, that is torch's own.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ...breaks import GraphBreak, UnsupportedArguments
from ...builtins.registry import handles
from ...result import Recipe
from ..base import Args, Builder, Kwargs, Machine, Unrestorable, Value
from .class_facts import attribute_of_class, guard_attribute
from .classes import ClassValue, constructs
from .functions import FunctionValue

__all__ = ["ClassStatementValue", "NamesNow"]

_DESCRIPTORS = (staticmethod, classmethod, property)
_BASETYPE = 1 << 10  # Py_TPFLAGS_BASETYPE
_INIT_SUBCLASS = vars(object)["__init_subclass__"]


class ClassStatementValue(Value):
    """The class that a statement would make. All that is known of it is that it is true."""

    __slots__ = ("born", "name")

    def __init__(self, machine: Machine, name: str) -> None:
        super().__init__()
        self.born = machine.step
        self.name = name

    def truth(self, machine: Machine) -> bool:
        return True

    def recipe(self, builder: Builder) -> Recipe:
        raise Unrestorable(f"the class {self.name} made inside", self.born)

    def describe(self) -> str:
        return f"class {self.name} made inside"


class NamesNow(Value):
    """The names of a class body at one point of it."""

    __slots__ = ("table",)

    def __init__(self, table: Mapping[str, Value]) -> None:
        super().__init__()
        self.table = table


class DescriptorValue(Value):
    """A staticmethod, classmethod or property made by the traced code."""

    __slots__ = ("kind", "wrapped")

    def __init__(self, kind: type, wrapped: Sequence[Value]) -> None:
        super().__init__()
        self.kind = kind
        self.wrapped = wrapped

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def truth(self, machine: Machine) -> bool:
        return True

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(self.kind, tuple(map(builder, self.wrapped)))

    def parts(self) -> Iterable[Value]:
        return self.wrapped


@constructs(lambda kind: kind in _DESCRIPTORS)
def _make_descriptor(machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    if kwargs or not 0 < len(args) <= (4 if cls.live is property else 1):
        cls.refuse(machine, "a call with these arguments")
    return DescriptorValue(cls.live, args)


@handles(builtins.__build_class__)
def _build_class(machine: Any, args: Args, kwargs: Kwargs) -> Value:
    body, name, *bases = args
    assert isinstance(body, FunctionValue)
    text = name.as_constant(machine)
    if kwargs or len(bases) > 1 or not all(_is_quiet(machine, base) for base in bases):
        raise _refused(text, "making it runs other code, or may")
    for part, value in machine.class_names(body).items():
        if part == "__slots__" or _hears_of_it(machine, value.realize(machine)):
            raise _refused(text, f"its {part} may refuse it or do something with it")
    return ClassStatementValue(machine, text)


def _is_quiet(machine: Machine, base: Value) -> bool:
    """Whether a class may inherit from it, and nothing is run when one does."""
    if not isinstance(base, ClassValue):
        return False
    if type(base.live) is not type and type(base.live) is not type(torch.autograd.Function):
        return False  # nobody sees what torch's own metaclass does
    if attribute_of_class(base.live, "__init_subclass__") is not _INIT_SUBCLASS:
        return False
    guard_attribute(machine, base.live, "__init_subclass__", _INIT_SUBCLASS)
    return bool(base.live.__flags__ & _BASETYPE)


def _hears_of_it(machine: Machine, value: Value) -> bool:
    """Whether the object has a `__set_name__`."""
    if isinstance(value, FunctionValue | DescriptorValue | ClassStatementValue):
        return False
    return hasattr(value.python_type(machine), "__set_name__")


def _refused(name: str, why: str) -> GraphBreak:
    return GraphBreak(UnsupportedArguments.of(name=f"class {name}", what=why))
