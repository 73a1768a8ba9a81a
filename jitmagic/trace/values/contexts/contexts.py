"""Models context managers of torch: one class for their instances and a row for each kind.

Input: calls of the classes and functions that have a row, and live instances of some. Output:
changes of the state of the trace. A row says which constants a call takes, what entering changes,
and what leaving restores; `with`, decorators and graph breaks inside a block work the same for all.
At such a break the context is built on the stack, already entered. torch_contexts.py has the rows.

torch.autocast is written in Python and is inlined; builtins/pytorch/autocast.py has the functions
that it calls.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NoReturn

from ....guards.guard import TypeIs, ValueEquals
from ....guards.source import InstanceDict, Item, Source
from ...breaks import GraphBreak, UnsupportedArguments
from ...builtins.registry import handles
from ...residual_calls import entered_block
from ...result import Perform, Recipe
from ...wrap import wraps
from ..base import Args, Builder, Kwargs, Machine, Value
from ..objects.callables import BuiltinMethodValue
from ..objects.functions import FunctionValue
from ..objects.opaque import WithoutOperators

__all__ = [
    "ContextClass",
    "ContextValue",
    "Row",
    "set_at_exit",
    "wrap_live",
]

ContextClass = Callable[..., Any]
"""A class of context managers, or a function that makes them, as contextlib does."""


class Row:
    """A kind of context manager that has no effect on what is traced; subclasses have one."""

    decorates = True
    attributes: ClassVar[tuple[str, ...]] = ()  # parameters that an instance has as attributes

    def __init__(self, kind: ContextClass, *parameters: str) -> None:
        self.kind, self.parameters = kind, parameters
        handles(kind)(self.make)

    def make(self, machine: Machine, args: Args, kwargs: Kwargs) -> ContextValue:
        """Return the context that a call creates."""
        if len(args) > len(self.parameters) or not kwargs.keys() <= set(self.parameters):
            self.refuse("such an argument")
        named = {**dict(zip(self.parameters, args, strict=False)), **kwargs}
        arguments = {}
        for name, value in named.items():
            if not (real := value.realize(machine)).is_constant(machine):
                self.refuse("such an argument")
            arguments[name] = real.as_constant(machine)
        return ContextValue(self, arguments)

    def refuse(self, what: str) -> NoReturn:
        raise GraphBreak(UnsupportedArguments.of(name=self.kind.__name__, what=what))

    def enter(self, machine: Machine, context: ContextValue) -> object:
        """Change the state of the trace; return what `leave` needs to restore it."""

    def leave(self, machine: Machine, context: ContextValue, before: object) -> None:
        """Restore the state of the trace."""

    def leave_by_exception(self, machine: Machine, context: ContextValue, before: object) -> None:
        """Restore the state of the trace where an exception leaves the block."""
        self.leave(machine, context, before)

    def result(self, machine: Machine, context: ContextValue) -> Value:
        """Return the value of `with ... as`."""
        return machine.constant(None)

    def recipe(self, builder: Builder, context: ContextValue) -> Recipe:
        """Return the recipe of a context that is not entered."""
        named = {name: builder.constant(value) for name, value in context.arguments.items()}
        return builder.invoke(self.kind, (), **named)

    def entered(self, builder: Builder, context: ContextValue, before: object) -> Recipe:
        """Return the recipe of the `__exit__` of an entered context."""
        named = {name: builder.constant(value) for name, value in context.arguments.items()}
        return builder.invoke(entered_block, (builder.constant(self.kind),), **named)


def set_at_exit(
    machine: Machine,
    setter: Callable[..., object],
    changed: Callable[[], tuple[object, ...] | None],
) -> None:
    """Have each exit call `setter` with what `changed()` returns then, unless that is None.

    It returns constants or Values. Later calls with the same setter do nothing.
    """
    setters = machine.notes.of(_Setters)
    # The closure of the first call knows the state at the entry, with which an exit compares.
    if setter in setters:
        return
    setters.add(setter)

    def hook(builder: Builder) -> None:
        if (values := changed()) is not None:
            recipes = (builder(v) if isinstance(v, Value) else builder.constant(v) for v in values)
            builder.effect(Perform(builder.constant(setter), tuple(recipes)))

    machine.at_exit(hook)


class _Setters(set[object]):
    """The setters that exits of one graph call."""


class ContextValue(WithoutOperators):
    """A context manager; `before` is the state that a live or entered one restores."""

    __slots__ = ("arguments", "before", "live", "row")

    def __init__(
        self,
        row: Row,
        arguments: dict[str, object],
        live: Any = None,
        source: Source | None = None,
    ) -> None:
        super().__init__(source)
        self.row, self.arguments, self.live = row, arguments, live
        self.before: object = False

    def python_type(self, machine: Machine) -> type:
        if not isinstance(self.row.kind, type):
            self.refuse(machine, "its type")
        return self.row.kind

    def truth(self, machine: Machine) -> bool:
        return True

    def enter(self, machine: Machine) -> tuple[Value, Value]:
        self.before = self.row.enter(machine, self)
        return Entered(self, self.before), self.row.result(machine, self)

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name in self.row.attributes and name in self.arguments:
            return machine.constant(self.arguments[name])
        if name == "clone" and self.row.attributes:
            return BuiltinMethodValue(self, self.python_type(machine), name)
        if name == "prev" and self.row.attributes:
            return machine.constant(self.restored(machine))
        if name == "__exit__" and self.live is not None:  # a resume function may run in its block
            return Entered(self, self.restored(machine))
        self.refuse(machine, f"attribute {name!r}")

    def restored(self, machine: Machine) -> object:
        """Return the state that leaving restores, guarded for a live context."""
        if self.live is not None:
            assert self.source is not None
            self.before = self.live.prev
            machine.guard(ValueEquals(Item(InstanceDict(self.source), "prev"), self.before))
        return self.before

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        function = args[0].realize(machine) if len(args) == 1 and not kwargs else self
        if not isinstance(function, FunctionValue) or not self.row.decorates:
            self.refuse(machine, "decorating a function")
        # torch enters the context anew each time such a function resumes its generator
        # (_wrap_generator in torch/utils/_contextlib.py).
        if function.code.co_flags & inspect.CO_GENERATOR:
            self.refuse(machine, "decorating a function")
        return DecoratedFunction(self, function)

    def recipe(self, builder: Builder) -> Recipe:
        return self.row.recipe(builder, self)

    def describe(self) -> str:
        return f"{self.row.kind.__name__} context"


class Entered(WithoutOperators):
    """The bound `__exit__` of a context that has been entered."""

    __slots__ = ("before", "context")

    def __init__(self, context: ContextValue, before: object) -> None:
        super().__init__()
        self.context, self.before = context, before

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        # None of these contexts suppresses an exception, so `__exit__` returns None.
        row, kind = self.context.row, args[0].realize(machine) if args else machine.constant(None)
        is_normal = kind.is_constant(machine) and kind.as_constant(machine) is None
        leave = row.leave if is_normal else row.leave_by_exception
        leave(machine, self.context, self.before)
        return machine.constant(None)

    def truth(self, machine: Machine) -> bool:
        return True

    def recipe(self, builder: Builder) -> Recipe:
        return self.context.row.entered(builder, self.context, self.before)


class DecoratedFunction(WithoutOperators):
    """A function that a context decorates, as `torch.no_grad()(function)`."""

    __slots__ = ("context", "function")

    def __init__(self, context: ContextValue, function: FunctionValue) -> None:
        super().__init__()
        self.context, self.function = context, function

    def python_type(self, machine: Machine) -> type:
        return types.FunctionType

    def truth(self, machine: Machine) -> bool:
        return True

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        # As torch's decorator does, use a new context for each call: with one object, the `prev` of
        # a recursive call would replace that of the outer one.
        leave, _ = ContextValue(self.context.row, self.context.arguments).enter(machine)
        try:
            return self.function.call(machine, args, kwargs)
        finally:
            leave.call(machine, (), {})

    def recipe(self, builder: Builder) -> Recipe:
        return builder.call(builder(self.context), builder(self.function))

    def parts(self) -> Iterable[Value]:
        return (self.context, self.function)

    def describe(self) -> str:
        return f"decorated {self.function.describe()}"


def wrap_live(row: Row, arguments: dict[str, object]) -> None:
    """Register live instances of a kind, whose attributes are `arguments` and `row.parameters`."""
    kind = row.kind
    assert isinstance(kind, type)

    @wraps(kind)
    def wrap(machine: Machine, obj: Any, source: Source) -> Value:
        machine.guard(TypeIs(source, kind))
        read = {name: getattr(obj, name) for name in row.parameters}
        for name, value in read.items():
            machine.guard(ValueEquals(Item(InstanceDict(source), name), value))
        return ContextValue(row, {**arguments, **read}, obj, source)
