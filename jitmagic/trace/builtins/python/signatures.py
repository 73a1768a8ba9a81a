"""inspect.signature of a Python function: the names and kinds of its parameters.

Reads the code object of a function or bound method, which is guarded as in every call of it. Python
makes a signature that leaves the trace.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator

from ...breaks import GraphBreak, UnsupportedArguments
from ...result import Recipe
from ...values.base import Args, Builder, CannotRebuild, Kwargs, Machine, ObservedError, Value
from ...values.containers.mappings import DictValue
from ...values.containers.read_only import ReadOnlyTable
from ...values.objects.functions import BoundMethodValue, FunctionValue
from ..registry import handles

__all__: list[str] = []

_KIND = inspect.Parameter


class _Signed(Value):
    """A value that only Python can rebuild."""

    __slots__ = ("born",)

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.born = machine.step

    def truth(self, machine: Machine) -> bool:
        return True

    def recipe(self, builder: Builder) -> Recipe:
        raise CannotRebuild("a signature", self.born)


class SignatureValue(_Signed):
    """inspect.Signature."""

    __slots__ = ("parameters",)

    def __init__(self, machine: Machine, parameters: DictValue) -> None:
        super().__init__(machine)
        self.parameters = parameters

    def python_type(self, machine: Machine) -> type:
        return inspect.Signature

    def get_attr(self, machine: Machine, name: str) -> Value:
        return self.parameters if name == "parameters" else super().get_attr(machine, name)


class ParameterValue(_Signed):
    """inspect.Parameter."""

    __slots__ = ("kind", "name")

    def __init__(self, machine: Machine, name: str, kind: object) -> None:
        super().__init__(machine)
        self.name = name
        self.kind = kind

    def python_type(self, machine: Machine) -> type:
        return inspect.Parameter

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name in ("name", "kind"):
            return machine.constant(self.name if name == "name" else self.kind)
        return super().get_attr(machine, name)


class ParametersValue(ReadOnlyTable):
    """The mapping `signature.parameters`."""

    __slots__ = ("born",)

    def __init__(self, machine: Machine, found: Iterator[tuple[str, object]]) -> None:
        named = ((name, ParameterValue(machine, name, kind)) for name, kind in found)
        super().__init__(machine, ((machine.constant(name), value) for name, value in named))
        self.born = machine.step

    def recipe(self, builder: Builder) -> Recipe:
        raise CannotRebuild("the parameters of a signature", self.born)


def _parameters(code: types.CodeType) -> Iterator[tuple[str, object]]:
    """Return (name, kind) of all parameters in the order of a signature."""
    # In co_varnames, keyword-only parameters come before *args and **kwargs.
    names = code.co_varnames
    positional = code.co_argcount
    keyword_only = names[positional : positional + code.co_kwonlyargcount]
    stars = iter(names[positional + code.co_kwonlyargcount :])
    for place, name in enumerate(names[:positional]):
        by_place = place < code.co_posonlyargcount
        yield name, _KIND.POSITIONAL_ONLY if by_place else _KIND.POSITIONAL_OR_KEYWORD
    if code.co_flags & inspect.CO_VARARGS:
        yield next(stars), _KIND.VAR_POSITIONAL
    for name in keyword_only:
        yield name, _KIND.KEYWORD_ONLY
    if code.co_flags & inspect.CO_VARKEYWORDS:
        yield next(stars), _KIND.VAR_KEYWORD


@handles(inspect.signature)
def _signature(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    bound = isinstance(args[0], BoundMethodValue)
    function = args[0].function.realize(machine) if bound else args[0]  # type: ignore[attr-defined]
    if len(args) > 1 or kwargs or not isinstance(function, FunctionValue):
        raise GraphBreak(UnsupportedArguments.of(name="inspect.signature", what="not a function"))
    for name in ("__wrapped__", "__signature__"):
        if _has(machine, function, name):
            function.refuse(machine, f"the signature with a {name}")
    found = _parameters(function.code)
    if bound and not (function.code.co_argcount and next(found)):
        function.refuse(machine, "the signature of a method without self")
    return SignatureValue(machine, ParametersValue(machine, found))


def _has(machine: Machine, function: FunctionValue, name: str) -> bool:
    try:
        function.get_attr(machine, name)
    except ObservedError:
        return False
    return True
