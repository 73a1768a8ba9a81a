"""functools.update_wrapper and inspect.signature: names, attributes and parameters of a function.

update_wrapper, which `functools.wraps` and `contextlib.contextmanager` call, copies attributes to a
function that the traced code made, so that recipes restore them at an exit. A signature is read
from the code object, which is guarded as in every call of the function; Python makes a signature
that leaves the trace.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Sequence

from ...breaks import GraphBreak, UnsupportedArguments
from ...result import Recipe
from ...values.base import Args, Builder, CannotRebuild, Kwargs, Machine, ObservedError, Value
from ...values.containers.read_only import ReadOnlyTable
from ...values.objects.functions import BoundMethodValue, FunctionValue
from ..registry import handles, parameters_of

__all__: list[str] = []


# -- functools.update_wrapper ----------------------------------------------------------------------


@handles(functools.update_wrapper)
def _update_wrapper(machine: Machine, wrapper: Value, wrapped: Value, *names: Value) -> Value:
    given = [one.as_constant(machine) for one in names]
    usual = [functools.WRAPPER_ASSIGNMENTS, functools.WRAPPER_UPDATES][: len(given)]
    # A function from before the call would have to be changed in place; what is set here is only a
    # part of the recipe of a new one.
    is_new = isinstance(wrapper, FunctionValue) and wrapper.live is None
    if not is_new or not isinstance(wrapped, FunctionValue) or given != usual:
        what = f"{wrapper.describe()} for {wrapped.describe()}"
        raise GraphBreak(UnsupportedArguments.of(name="functools.update_wrapper", what=what))
    assert isinstance(wrapper, FunctionValue)
    for assigned in functools.WRAPPER_ASSIGNMENTS:
        try:
            _assign(machine, wrapper, assigned, wrapped.get_attr(machine, assigned))
        except ObservedError:  # update_wrapper skips missing attributes
            continue
    for name, value in (*_attributes(machine, wrapped), ("__wrapped__", wrapped)):
        wrapper.table(machine).put(machine, machine.constant(name), value)
    return wrapper


def _assign(machine: Machine, function: FunctionValue, name: str, value: Value) -> None:
    """Set one of the attributes that every function has."""
    match name:
        case "__annotations__":
            function.annotations = value
        case "__name__":
            function.name = str(value.realize(machine).as_constant(machine))
        case "__qualname__":
            function.qualname = str(value.realize(machine).as_constant(machine))
        # `__module__`, `__doc__` and, since Python 3.12, `__type_params__`.
        case _:
            function.slots[name] = value


def _attributes(machine: Machine, function: FunctionValue) -> Iterator[tuple[str, Value]]:
    """Return the contents of the function's `__dict__`."""
    if function.live is None or function.source is not None:
        yield from function.table(machine).as_names(machine).items()


# -- inspect.signature -----------------------------------------------------------------------------


class _Described(Value):
    """An object of inspect with the attributes that are known; only Python can rebuild it."""

    __slots__ = ("created_at_step", "kind", "known")
    always_true = True

    def __init__(self, machine: Machine, kind: type, known: dict[str, Value]) -> None:
        super().__init__()
        self.created_at_step = machine.step
        self.kind, self.known = kind, known

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def get_attr(self, machine: Machine, name: str) -> Value:
        return self.known[name] if name in self.known else super().get_attr(machine, name)

    def recipe(self, builder: Builder) -> Recipe:
        raise CannotRebuild("a signature", self.created_at_step)

    def describe(self) -> str:
        return self.kind.__name__.lower()


def _parameter(machine: Machine, name: str, kind: object) -> Value:
    known = {"name": machine.constant(name), "kind": machine.constant(kind)}
    return _Described(machine, inspect.Parameter, known)


class ParametersValue(ReadOnlyTable):
    """The mapping `signature.parameters`."""

    __slots__ = ("created_at_step",)

    def __init__(self, machine: Machine, found: Sequence[inspect.Parameter]) -> None:
        names = (machine.constant(one.name) for one in found)
        known = (_parameter(machine, one.name, one.kind) for one in found)
        super().__init__(machine, zip(names, known, strict=True))
        self.created_at_step = machine.step

    def recipe(self, builder: Builder) -> Recipe:
        raise CannotRebuild("the parameters of a signature", self.created_at_step)


@handles(inspect.signature)
def _signature(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    bound = isinstance(args[0], BoundMethodValue)
    function = args[0].function.realize(machine) if bound else args[0]  # type: ignore[attr-defined]
    if len(args) > 1 or kwargs or not isinstance(function, FunctionValue):
        raise GraphBreak(UnsupportedArguments.of(name="inspect.signature", what="not a function"))
    # inspect.signature follows `__wrapped__` and trusts `__signature__`, so for these the code
    # object alone would give another signature.
    for name in ("__wrapped__", "__signature__"):
        if _has(machine, function, name):
            function.refuse(machine, f"the signature with a {name}")
    found = parameters_of(function.code)
    if bound and not function.code.co_argcount:
        function.refuse(machine, "the signature of a method without self")
    parameters = ParametersValue(machine, found[1:] if bound else found)
    return _Described(machine, inspect.Signature, {"parameters": parameters})


def _has(machine: Machine, function: FunctionValue, name: str) -> bool:
    try:
        function.get_attr(machine, name)
    except ObservedError:
        return False
    return True
