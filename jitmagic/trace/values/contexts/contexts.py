"""Models grad mode: no_grad, enable_grad and set_grad_enabled as contexts, calls and decorators.

Input: these classes, and live instances of them. Output: changes of the grad mode of the graph. At
a graph break inside such a block, an effect sets the thread to the traced mode, and a context that
is already entered is built on the stack. inference.py has inference_mode. torch.autocast is written
in Python and is inlined; builtins/pytorch/autocast.py has the functions that it calls.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch

from ....graph.builder import GraphBuilder
from ....guards.guard import IdentityIs, TypeIs, ValueEquals
from ....guards.source import InstanceDict, Item, Source
from ...breaks import GraphBreak, RefusedTorchCall, UnsupportedArguments
from ...builtins.registry import handles
from ...result import Perform, Recipe
from ...wrap import intercepts, wraps
from ..base import Args, Builder, Kwargs, Machine, Value
from ..objects.callables import BuiltinValue
from ..objects.classes import ClassValue, constructs
from ..objects.constants import ConstantValue
from ..objects.functions import FunctionValue
from ..objects.opaque import WithoutOperators
from .inference import InferenceBlock

__all__ = ["GradContext", "context_class", "set_grad_mode"]

_GRAD_CLASSES: dict[type, bool | None] = {
    torch.no_grad: False,
    torch.enable_grad: True,
    torch.set_grad_enabled: None,
}
_REFUSED: dict[type, str] = {
    torch.cuda.amp.autocast: "it warns that it is deprecated",
    torch.cpu.amp.autocast_mode.autocast: "it warns that it is deprecated",
    torch.autograd.profiler.profile: "profiling runs as plain Python",
    torch.autograd.set_detect_anomaly: "anomaly detection changes the state of the process",
    torch.autograd.detect_anomaly: "anomaly detection changes the state of the process",
}


def set_grad_mode(machine: Machine, mode: bool) -> None:
    """Change the grad mode of the graph, and of the thread at an exit."""
    graph = machine.graph
    if mode and (graph.inference.is_on or torch.is_inference_mode_enabled()):
        why = "inside inference mode no gradients are recorded"
        raise GraphBreak(RefusedTorchCall.of(name="set_grad_enabled", why=why))
    if "grad mode" not in machine.notes.marks:
        machine.notes.marks.add("grad mode")
        entry = graph.grad_enabled
        # One hook per trace suffices: an exit compares the final mode with that of the entry.
        machine.at_exit(lambda builder: _set_mode_at_exit(graph, entry, builder))
    graph.set_grad_enabled(mode)


def _set_mode_at_exit(graph: GraphBuilder, entry: bool, builder: Builder) -> None:
    if graph.grad_enabled != entry:
        setter = builder.constant(torch._C._set_grad_enabled)
        builder.effect(Perform(setter, (builder.constant(graph.grad_enabled),)))


class GradContext(Value):
    """An instance of no_grad, enable_grad or set_grad_enabled."""

    __slots__ = ("kind", "mode", "previous")

    def __init__(self, kind: type, mode: bool, source: Source | None = None) -> None:
        super().__init__(source)
        self.kind = kind
        self.mode = mode
        self.previous = False

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def truth(self, machine: Machine) -> bool:
        return True

    def enter(self, machine: Machine) -> tuple[Value, Value]:
        self.previous = machine.graph.grad_enabled
        set_grad_mode(machine, self.mode)
        return _GradModeExit(self.kind, self.mode, self.previous), machine.constant(None)

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name in ("mode", "prev"):
            return machine.constant(self.mode if name == "mode" else self.previous)
        if name == "clone":
            return _Clone(self)
        self.refuse(machine, f"attribute {name!r}")

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        function = args[0].realize(machine) if len(args) == 1 and not kwargs else self
        plain = isinstance(function, FunctionValue) and self.kind is not torch.set_grad_enabled
        if not plain or function.code.co_flags & inspect.CO_GENERATOR:  # type: ignore[attr-defined]
            self.refuse(machine, "decorating a function")
        assert isinstance(function, FunctionValue)
        return DecoratedFunction(self, function)

    def recipe(self, builder: Builder) -> Recipe:
        mode = (builder.constant(self.mode),) if self.kind is torch.set_grad_enabled else ()
        return builder.invoke(self.kind, mode)


class DecoratedFunction(WithoutOperators):
    """A function that a grad-mode context decorates, as `torch.no_grad()(function)`."""

    __slots__ = ("context", "function")

    def __init__(self, context: GradContext, function: FunctionValue) -> None:
        super().__init__()
        self.context, self.function = context, function

    def python_type(self, machine: Machine) -> type:
        return types.FunctionType

    def truth(self, machine: Machine) -> bool:
        return True

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        before = machine.graph.grad_enabled
        set_grad_mode(machine, self.context.mode)
        try:
            return self.function.call(machine, args, kwargs)
        finally:
            set_grad_mode(machine, before)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.call(builder(self.context), builder(self.function))

    def parts(self) -> Iterable[Value]:
        return (self.context, self.function)

    def describe(self) -> str:
        return f"decorated {self.function.describe()}"


class _Clone(Value):
    """The bound method `context.clone`, which decorated functions call."""

    __slots__ = ("context",)

    def __init__(self, context: GradContext) -> None:
        super().__init__()
        self.context = context

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if self.context.kind is torch.set_grad_enabled:
            set_grad_mode(machine, self.context.mode)
        return GradContext(self.context.kind, self.context.mode)


class _GradModeExit(Value):
    """The bound `__exit__` of a context that has been entered."""

    __slots__ = ("kind", "mode", "previous")

    def __init__(self, kind: type, mode: bool, previous: bool) -> None:
        super().__init__()
        self.kind = kind
        self.mode = mode
        self.previous = previous

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        set_grad_mode(machine, self.previous)
        return machine.constant(None)

    def truth(self, machine: Machine) -> bool:
        return True

    def recipe(self, builder: Builder) -> Recipe:
        previous = builder.constant(self.previous)
        return builder.invoke(exit_of_entered_context, (builder.constant(self.kind), previous))


def exit_of_entered_context(kind: type, previous: bool) -> Callable[..., Any]:
    """Return the `__exit__` of a grad-mode context that restores the mode `previous`."""
    context = torch.no_grad() if kind is torch.set_grad_enabled else kind()
    context.prev = previous
    leave: Callable[..., Any] = context.__exit__
    return leave


def _construct(machine: Machine, kind: Any, args: Args, kwargs: Kwargs) -> Value:
    """Model a call of one of the context classes."""
    if kind in _REFUSED:
        raise GraphBreak(RefusedTorchCall.of(name=kind.__qualname__, why=_REFUSED[kind]))
    if kind is torch.inference_mode:
        return _inference_block(machine, args, kwargs)
    fixed = _GRAD_CLASSES[kind]
    if fixed is not None:
        if args or kwargs:
            _refuse(kind, "a function to decorate")
        return GradContext(kind, fixed)
    (wanted,) = [*args, *kwargs.values()]
    mode = wanted.realize(machine)
    if not isinstance(mode, ConstantValue):
        _refuse(kind, "such an argument")
    setter = _SetGradEnabled(kind, bool(mode.as_constant(machine)))
    setter.previous = machine.graph.grad_enabled
    set_grad_mode(machine, setter.mode)
    return setter


def _inference_block(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    modes = [mode.realize(machine) for mode in (*args, *kwargs.values())]
    is_on = all(mode.is_constant(machine) and mode.as_constant(machine) is True for mode in modes)
    if not is_on or machine.graph.root is not machine.graph:
        _refuse(torch.inference_mode, "a function to decorate, or False")
    return InferenceBlock(set_grad_mode)


def _refuse(kind: type, what: str) -> NoReturn:
    raise GraphBreak(UnsupportedArguments.of(name=kind.__name__, what=what))


class ContextClass(BuiltinValue):
    """One of torch's context classes; a call creates the context."""

    __slots__ = ()

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        return _construct(machine, self.obj, args, kwargs)

    def is_constant(self, machine: Machine) -> bool:
        return True

    def as_constant(self, machine: Machine) -> object:
        return self.obj


class _SetGradEnabled(GradContext):
    """A `set_grad_enabled(mode)`, which changes the mode when it is created."""

    __slots__ = ()

    def enter(self, machine: Machine) -> tuple[Value, Value]:
        set_grad_mode(machine, self.mode)
        return _GradModeExit(self.kind, self.mode, self.previous), machine.constant(None)

    def recipe(self, builder: Builder) -> Recipe:
        previous = builder.constant(self.previous)
        return builder.invoke(applied_grad_setter, (builder.constant(self.mode), previous))


def applied_grad_setter(mode: bool, previous: bool) -> torch.set_grad_enabled:
    """Build a set_grad_enabled object without its constructor, which would set the mode again."""
    setter = torch.set_grad_enabled.__new__(torch.set_grad_enabled)
    setter.mode, setter.prev = mode, previous
    return setter


def _is_known(kind: type) -> bool:
    return kind in _GRAD_CLASSES or kind in _REFUSED or kind is torch.inference_mode


@constructs(_is_known, before_others=True)  # they are plain classes too
def _construct_by_type(machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    """Model `type(context)()`, whose class has no source."""
    return _construct(machine, cls.live, args, kwargs)


def context_class(obj: object) -> Value | None:
    """Return the value of a torch context class, or None for another object."""
    return ContextClass(obj) if isinstance(obj, type) and _is_known(obj) else None


@intercepts(type)
def _intercept_class(machine: Machine, obj: Any, source: Source) -> Value | None:
    value = context_class(obj)
    if value is not None:
        value.source = source
        machine.guard(IdentityIs(source, obj))
    return value


@wraps(torch.no_grad, torch.enable_grad, torch.set_grad_enabled)
def _wrap_context(machine: Machine, obj: Any, source: Source) -> Value:
    machine.guard(TypeIs(source, type(obj)))
    mode = _GRAD_CLASSES[type(obj)]
    if mode is None:
        mode = obj.mode
        machine.guard(ValueEquals(Item(InstanceDict(source), "mode"), mode))
    return _LiveContext(type(obj), mode, obj, source)


class _LiveContext(GradContext):
    """A live context; a resume function may run inside its block and call its `__exit__`."""

    __slots__ = ("live",)

    def __init__(self, kind: type, mode: bool, live: Any, source: Source) -> None:
        super().__init__(kind, mode, source)
        self.live = live

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name in ("prev", "__exit__"):
            assert self.source is not None
            self.previous = self.live.prev
            machine.guard(ValueEquals(Item(InstanceDict(self.source), "prev"), self.previous))
            if name == "__exit__":
                return _GradModeExit(self.kind, self.mode, self.previous)
        return super().get_attr(machine, name)


@handles(torch.is_grad_enabled)
def _is_grad_enabled(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if machine.graph.modes_vary:
        why = "a backward runs with or without gradients being recorded"
        raise GraphBreak(RefusedTorchCall.of(name="torch.is_grad_enabled", why=why))
    return machine.constant(machine.graph.grad_enabled)


@handles(torch._C._set_grad_enabled)
def _set_grad_enabled(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    set_grad_mode(machine, bool(args[0].as_constant(machine)))
    return machine.constant(None)
