"""Models `register_hook(f)` and `retain_grad()` of tensors computed in the trace.

If the backward is in the same graph, it runs the hooks where eager does, as traced code, and sets
`.grad` (trace/builtins/pytorch/differentiation.py). A hook that would run in a later backward
cannot be in the graph; a check at the exit then makes its registration a graph break.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ...breaks import GraphBreak, RefusedTorchCall
from ...builtins.pytorch.torch_rules import REFUSED_METHODS
from ...builtins.registry import handles, method
from ...graph_notes import GraphNotes
from ..base import Args, Builder, CannotRebuild, Kwargs, Machine, Value
from ..objects.callables import bind_builtin
from ..objects.opaque import WithoutOperators

__all__ = ["TensorHook", "add_hook", "check_hooks", "hooks_run_by", "retains_gradient"]


@dataclass(slots=True, eq=False)
class TensorHook:
    """A hook of a tensor; `hook` is None for retain_grad()."""

    tensor: Any  # TensorValue
    hook: Value | None
    history: Any  # the tensor's grad_fn at the registration
    created_at_step: int

    @property
    def reason(self) -> RefusedTorchCall:
        """Return the reason for a graph break at the registration."""
        name = "retain_grad" if self.hook is None else "register_hook"
        return RefusedTorchCall.of(name=f"Tensor.{name}", why=REFUSED_METHODS[name])


class _TensorHooks(list[TensorHook]):
    """The hooks of one graph."""


class HandleValue(WithoutOperators):
    """The RemovableHandle that `register_hook` returns."""

    __slots__ = ("registered",)

    def __init__(self, registered: TensorHook) -> None:
        super().__init__()
        self.registered = registered

    def python_type(self, machine: Machine) -> type:
        return RemovableHandle

    def truth(self, machine: Machine) -> bool:
        return True

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name != "remove":
            self.refuse(machine, f"attribute {name!r}")
        return bind_builtin(machine, self, RemovableHandle, name)

    def recipe(self, builder: Builder) -> Any:
        raise CannotRebuild(
            "the handle of a hook", self.registered.created_at_step, self.registered.reason
        )

    def describe(self) -> str:
        return "handle of a hook"


@handles(torch.Tensor.retain_grad)
def _retain(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    tensor: Any = args[0] if args else None
    meta = getattr(tensor, "meta", None)
    is_leaf = isinstance(meta, torch.Tensor) and meta.is_leaf and meta.requires_grad
    if not is_leaf and not retains_gradient(machine, tensor):
        add_hook(machine, tensor, None, len(args) != 1)
    return machine.constant(None)


@handles(torch.Tensor.register_hook)
def _register(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    tensor, hook = [*args, None, None][:2]
    return HandleValue(add_hook(machine, tensor, hook, len(args) != 2))


@method(RemovableHandle, "remove")
def _remove(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    assert isinstance(owner, HandleValue)
    if args or kwargs:
        owner.refuse(machine, "a call with arguments")
    hooks = machine.notes.of(_TensorHooks)
    # A second remove() is no error in torch either.
    if owner.registered in hooks:
        hooks.remove(owner.registered)
    return machine.constant(None)


def add_hook(machine: Machine, tensor: Any, hook: Value | None, unsupported: bool) -> TensorHook:
    """Register a hook that runs with the tensor's gradient; None retains the gradient."""
    graph = machine.graph
    meta = getattr(tensor, "meta", None)
    registered = TensorHook(tensor, hook, getattr(meta, "grad_fn", None), machine.step)
    # The hooks of a tensor that existed before the call also run in backwards of other graphs.
    inside = graph.root is graph and not graph.modes_vary and not graph.is_transformed
    # A leaf has no grad_fn: its hooks belong to its AccumulateGrad node, which later backwards run
    # as well.
    if unsupported or not inside or registered.history is None or tensor.live is not None:
        raise GraphBreak(registered.reason)
    machine.notes.of(_TensorHooks).append(registered)
    return registered


def retains_gradient(machine: Machine, tensor: Any) -> bool:
    """Return whether `retain_grad()` was called for the tensor."""
    return any(w.tensor is tensor and w.hook is None for w in machine.notes.of(_TensorHooks))


def hooks_run_by(machine: Machine, outputs: list[Any]) -> list[TensorHook]:
    """Return the hooks that a backward of these tensors runs, in the order of the autograd engine.

    Hooks of tensors that were computed last come first.
    """
    hooks = machine.notes.of(_TensorHooks)
    if not hooks:
        return []
    history = machine.graph.history([output.node for output in outputs])
    found = [registered for registered in hooks if registered.history in history]
    for registered in found:
        # An in-place write has moved the tensor to a new grad_fn since the registration.
        if registered.tensor.meta.grad_fn is not registered.history:
            raise GraphBreak(registered.reason)
    # The engine's ready queue is a heap by sequence number, the highest first.
    return sorted(found, key=lambda registered: -registered.history._sequence_nr())


def check_hooks(notes: GraphNotes) -> None:
    """Raise CannotRebuild if a hook could run, or be missed, after the exit of the trace."""
    graph, hooks = notes.graph, notes.of(_TensorHooks)
    outputs = graph.differentiable_outputs() if hooks else []
    history = graph.history(outputs)
    for registered in hooks:
        runs = registered.hook is not None and registered.history in history
        if runs or graph.is_output(registered.tensor.node):
            raise CannotRebuild(
                "a tensor with a hook", registered.created_at_step, registered.reason
            )
