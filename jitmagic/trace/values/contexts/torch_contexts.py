"""Rows of torch's context managers: grad mode, inference mode, flags of libraries, profiler marks.

Input: calls with constants. Output: the grad and inference mode of the graph, and state that no
traced operation reads, which only an exit sets. A context whose effect cannot be traced breaks the
graph with its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING, ClassVar

import torch
from torch.autograd.profiler import record_function

from ....compat.autograd import is_profiler_enabled
from ....compat.modes import is_multithreading_enabled, switch_grad_mode, switch_multithreading
from ....graph.node_meta import specs_in
from ....late import late_names
from ....lazy_dataclass import dataclass
from ...breaks import GraphBreak, RefusedTorchCall
from ...builtins.registry import handles, method
from ...residual_calls import applied_context
from ...result import Recipe
from ..base import Args, Builder, CannotRebuild, Kwargs, Machine, Value
from .contexts import ContextClass, ContextValue, Row, set_at_exit, wrap_live

if TYPE_CHECKING:
    from ...builtins.pytorch.process_state import FLAGS_ARE_SET, read_state
else:
    late_names(globals(), {"trace.builtins.pytorch.process_state": "FLAGS_ARE_SET, read_state"})

__all__ = ["no_grad", "set_grad_mode"]


# ------------------------------------------------------------------------------ modes of the thread


@dataclass(frozen=True)
class State:
    """State that contexts change: `now` reads the value in the trace, `change` sets it."""

    now: Callable[[Machine], bool]
    change: Callable[[Machine, bool], None]


def set_grad_mode(machine: Machine, mode: bool) -> None:
    """Change the grad mode of the graph, and of the thread at an exit."""
    graph = machine.graph
    if mode and (graph.inference.is_on or torch.is_inference_mode_enabled()):
        why = "inside inference mode no gradients are recorded"
        raise GraphBreak(RefusedTorchCall.of(name="set_grad_enabled", why=why))
    entry = graph.grad_enabled
    changed = lambda: None if graph.grad_enabled == entry else (graph.grad_enabled,)  # noqa: E731
    set_at_exit(machine, switch_grad_mode, changed)
    graph.set_grad_enabled(mode)


class _Untraced(dict[Callable[[bool], None], bool]):
    """Values, by their setter, of state that no traced operation reads."""


def _untraced(read: Callable[[], bool], write: Callable[[bool], None]) -> State:
    """Model state that no traced operation reads; the functions that read and write it, too."""

    def now(machine: Machine) -> bool:
        if machine.graph.inference.is_on:  # which sets it, too
            why = "inference mode changes its result"
            raise GraphBreak(RefusedTorchCall.of(name=read.__name__, why=why))
        values = machine.notes.root.of(_Untraced)
        if write not in values:
            values[write] = read_state(machine, read).as_constant(machine)
        return values[write]

    def change(machine: Machine, value: bool) -> None:
        values, entry = machine.notes.root.of(_Untraced), now(machine)
        changed = lambda: None if values[write] == entry else (values[write],)  # noqa: E731
        set_at_exit(machine, write, changed)
        values[write] = value

    @handles(read)
    def _read(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        return machine.constant(now(machine))

    @handles(write)
    def _write(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        (value,) = args
        change(machine, value.as_constant(machine))
        return machine.constant(None)

    return State(now, change)


class StateRow(Row):
    """A context that sets a state to `mode`, a fixed one or its argument.

    A class with the argument sets the state when it is created, so that it is a function as well.
    """

    attributes: ClassVar[tuple[str, ...]] = ("mode",)

    def __init__(self, kind: type, state: State, mode: bool | None = None) -> None:
        super().__init__(kind, *(("mode",) if mode is None else ()))
        self.state, self.mode = state, mode
        self.decorates = mode is not None
        wrap_live(self, {"mode": mode})
        method(kind, "clone")(self._clone)

    def make(self, machine: Machine, args: Args, kwargs: Kwargs) -> ContextValue:
        # `@torch.no_grad` without parentheses is valid: then the constructor gets the function.
        if self.mode is not None and (args or kwargs):
            self.refuse("a function to decorate")
        made = super().make(machine, args, kwargs)
        if self.mode is not None:
            made.arguments["mode"] = self.mode
        else:
            made.before = self.state.now(machine)
            self.state.change(machine, bool(made.arguments["mode"]))
        return made

    def _clone(self, machine: Machine, context: Value, args: Args, kwargs: Kwargs) -> ContextValue:
        assert isinstance(context, ContextValue)
        modes = [machine.constant(context.arguments[name]) for name in self.parameters]
        return self.make(machine, modes, {})

    def enter(self, machine: Machine, context: ContextValue) -> object:
        # `set_grad_enabled(False)` changes the mode in its constructor, and `__exit__` restores the
        # mode from before that call, not from before the `with`.
        is_set = self.mode is None  # since it was created
        before = context.restored(machine) if is_set else self.state.now(machine)
        self.state.change(machine, bool(context.arguments["mode"]))
        return before

    def leave(self, machine: Machine, context: ContextValue, before: object) -> None:
        self.state.change(machine, bool(before))

    def recipe(self, builder: Builder, context: ContextValue) -> Recipe:
        if self.mode is not None:
            return builder.invoke(self.kind, ())
        return self._applied(builder, context, context.before)

    def entered(self, builder: Builder, context: ContextValue, before: object) -> Recipe:
        made = self._applied(builder, context, before)
        return builder.call(builder.constant(getattr), made, builder.constant("__exit__"))

    def _applied(self, builder: Builder, context: ContextValue, before: object) -> Recipe:
        parts = self.kind, context.arguments["mode"], before
        return builder.invoke(applied_context, tuple(map(builder.constant, parts)))


_GRAD = State(lambda machine: machine.graph.grad_enabled, set_grad_mode)
_NO_GRAD = StateRow(torch.no_grad, _GRAD, False)
StateRow(torch.enable_grad, _GRAD, True)
StateRow(torch.set_grad_enabled, _GRAD)
# Says in which threads a backward runs on a device, not what it computes.
StateRow(
    torch.autograd.set_multithreading_enabled,
    _untraced(is_multithreading_enabled, switch_multithreading),
)


def no_grad() -> ContextValue:
    """Return a new `torch.no_grad()`."""
    return ContextValue(_NO_GRAD, {"mode": False})


@handles(torch.is_grad_enabled)
def _is_grad_enabled(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if machine.graph.modes_vary:
        why = "a backward runs with or without gradients being recorded"
        raise GraphBreak(RefusedTorchCall.of(name="torch.is_grad_enabled", why=why))
    return machine.constant(machine.graph.grad_enabled)


@handles(switch_grad_mode)
def _set_grad_enabled(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    set_grad_mode(machine, bool(args[0].as_constant(machine)))
    return machine.constant(None)


class _InferenceRow(Row):
    """torch.inference_mode, traced under no_grad; inference.py marks the tensors in it."""

    def make(self, machine: Machine, args: Args, kwargs: Kwargs) -> ContextValue:
        made = super().make(machine, args, kwargs)
        is_on = all(mode is True for mode in made.arguments.values())
        if not is_on or machine.graph.root is not machine.graph:
            self.refuse("a function to decorate, or False")
        return made

    def enter(self, machine: Machine, context: ContextValue) -> object:
        graph = machine.graph
        before = graph.grad_enabled, graph.inference.is_on, machine.step
        # If the caller has entered inference_mode already, the block changes nothing.
        if not torch.is_inference_mode_enabled():
            set_grad_mode(machine, False)
            graph.inference.is_on = graph.inference.used = True
        return before

    def leave(self, machine: Machine, context: ContextValue, before: object) -> None:
        assert isinstance(before, tuple)
        grad_mode, was_on, _ = before
        if not torch.is_inference_mode_enabled():
            machine.graph.inference.is_on = was_on
            set_grad_mode(machine, grad_mode)

    def entered(self, builder: Builder, context: ContextValue, before: object) -> Recipe:
        # The break moves before the block, and Python enters the real context.
        assert isinstance(before, tuple)
        raise CannotRebuild("a block of inference mode", before[2])


_InferenceRow(torch.inference_mode, "mode")


# ----------------------------------------------------------------------------------- other contexts


class _DeviceFlags(Row):
    """Flags of a library for devices, around code for the CPU, which does not use the library."""

    decorates = False

    def __init__(self, kind: ContextClass) -> None:
        super().__init__(kind, *signature(kind).parameters)

    def enter(self, machine: Machine, context: ContextValue) -> object:
        machine.notes.marks.add(FLAGS_ARE_SET)
        return len(machine.graph.graph.nodes)

    def leave(self, machine: Machine, context: ContextValue, before: object) -> None:
        machine.notes.marks.discard(FLAGS_ARE_SET)
        assert isinstance(before, int)
        nodes = list(machine.graph.graph.nodes)[before:]
        if any(spec.device.type != "cpu" for node in nodes for spec in specs_in(node)):
            name = f"{self.kind.__module__}.{self.kind.__name__}"
            why = "it selects kernels of a device"
            raise GraphBreak(RefusedTorchCall.of(name=name, why=why))


# transformers computes ctc_loss in such a block (Wav2Vec2) on any device. On the CPU the flags have
# no effect, and training is one graph.
_DeviceFlags(torch.backends.cudnn.flags)
_DeviceFlags(torch.backends.miopen.flags)


class _RecordFunction(Row):
    """A block with a name for a profiler, while none runs."""

    def make(self, machine: Machine, args: Args, kwargs: Kwargs) -> ContextValue:
        # read_state installs a guard, so a call under a profiler recompiles and breaks here.
        if read_state(machine, is_profiler_enabled).truth(machine):
            why = "a profiler is running"
            raise GraphBreak(RefusedTorchCall.of(name="record_function", why=why))
        return super().make(machine, args, kwargs)

    def result(self, machine: Machine, context: ContextValue) -> Value:
        return context


_RecordFunction(record_function, "name", "args")


class _Refused(Row):
    """A context whose effect is not traced."""

    def __init__(self, kind: ContextClass, why: str) -> None:
        super().__init__(kind)
        self.why = why

    def make(self, machine: Machine, args: Args, kwargs: Kwargs) -> ContextValue:
        raise GraphBreak(RefusedTorchCall.of(name=self.kind.__qualname__, why=self.why))


_WARNS = "it warns that it is deprecated"
_DETECTS = "anomaly detection changes the state of the process"
_Refused(torch.cuda.amp.autocast, _WARNS)
_Refused(torch.cpu.amp.autocast_mode.autocast, _WARNS)
_Refused(torch.autograd.set_detect_anomaly, _DETECTS)
_Refused(torch.autograd.detect_anomaly, _DETECTS)
_Refused(torch.autograd.profiler.profile, "profiling runs as plain Python")
