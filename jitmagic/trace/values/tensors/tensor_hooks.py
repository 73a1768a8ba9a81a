"""Hooks of a tensor that the traced code has computed, and its `retain_grad()`.

Comes in: `t.register_hook(f)`, `t.retain_grad()`. A backward in the same graph runs the hooks
where eager does, as more of the traced code, and leaves `.grad`
(trace/builtins/pytorch/differentiation.py). What hooks would do in a later backward no graph can
tell: then the call is a graph break, found out at the exit.
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
from ..base import Args, Builder, Kwargs, Machine, Unrestorable, Value
from ..objects.callables import bind_builtin
from ..objects.opaque import WithoutOperators

__all__ = ["Watched", "check_watched", "retains_gradient", "watch", "watched_behind"]


@dataclass(slots=True, eq=False)
class Watched:
    """A hook of a tensor; None: its gradient is to be retained."""

    tensor: Any  # TensorValue
    hook: Value | None
    history: Any  # the tensor's grad_fn then
    born: int

    @property
    def reason(self) -> RefusedTorchCall:
        """Why it stays outside of a graph."""
        name = "retain_grad" if self.hook is None else "register_hook"
        return RefusedTorchCall.of(name=f"Tensor.{name}", why=REFUSED_METHODS[name])


class _WatchedTensors(list[Watched]):
    """The hooks of one graph."""


class HandleValue(WithoutOperators):
    """What `register_hook` gives."""

    __slots__ = ("watched",)

    def __init__(self, watched: Watched) -> None:
        super().__init__()
        self.watched = watched

    def python_type(self, machine: Machine) -> type:
        return RemovableHandle

    def truth(self, machine: Machine) -> bool:
        return True

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name != "remove":
            self.refuse(machine, f"attribute {name!r}")
        return bind_builtin(machine, self, RemovableHandle, name)

    def recipe(self, builder: Builder) -> Any:
        raise Unrestorable("the handle of a hook", self.watched.born, self.watched.reason)

    def describe(self) -> str:
        return "handle of a hook"


@handles(torch.Tensor.retain_grad)
def _retain(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    tensor: Any = args[0] if args else None
    meta = getattr(tensor, "meta", None)
    is_leaf = isinstance(meta, torch.Tensor) and meta.is_leaf and meta.requires_grad
    if not is_leaf and not retains_gradient(machine, tensor):
        watch(machine, tensor, None, len(args) != 1 or bool(kwargs))
    return machine.constant(None)


@handles(torch.Tensor.register_hook)
def _register(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    given = {**dict(zip(("self", "hook"), args, strict=False)), **kwargs}
    strange = len(args) + len(kwargs) != 2 or set(given) != {"self", "hook"}
    return HandleValue(watch(machine, given.get("self"), given.get("hook"), strange))


@method(RemovableHandle, "remove")
def _remove(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    assert isinstance(owner, HandleValue)
    if args or kwargs:
        owner.refuse(machine, "a call with arguments")
    hooks = machine.notes.of(_WatchedTensors)
    if owner.watched in hooks:
        hooks.remove(owner.watched)
    return machine.constant(None)


def watch(machine: Machine, tensor: Any, hook: Value | None, strange: bool) -> Watched:
    """Run the hook with the tensor's gradient; None: retain that."""
    graph = machine.graph
    meta = getattr(tensor, "meta", None)
    watched = Watched(tensor, hook, getattr(meta, "grad_fn", None), machine.step)
    inside = graph.root is graph and not graph.modes_vary
    if strange or not inside or watched.history is None or tensor.live is not None:
        raise GraphBreak(watched.reason)
    machine.notes.of(_WatchedTensors).append(watched)
    return watched


def retains_gradient(machine: Machine, tensor: Any) -> bool:
    """Whether `retain_grad()` was called for it."""
    return any(w.tensor is tensor and w.hook is None for w in machine.notes.of(_WatchedTensors))


def watched_behind(machine: Machine, outputs: list[Any]) -> list[Watched]:
    """Hooks that a backward of these tensors runs, in the engine's order: what was computed last
    comes first.
    """
    hooks = machine.notes.of(_WatchedTensors)
    if not hooks:
        return []
    history = machine.graph.history([output.node for output in outputs])
    found = [watched for watched in hooks if watched.history in history]
    for watched in found:
        if watched.tensor.meta.grad_fn is not watched.history:  # written to since
            raise GraphBreak(watched.reason)
    return sorted(found, key=lambda watched: -watched.history._sequence_nr())


def check_watched(notes: GraphNotes) -> None:
    """Raise Unrestorable where somebody could see a hook, or that it is missing, after the exit."""
    graph, hooks = notes.graph, notes.of(_WatchedTensors)
    outputs = graph.differentiable_outputs() if hooks else []
    history = graph.history(outputs)
    for watched in hooks:
        runs = watched.hook is not None and watched.history in history
        if runs or graph.is_output(watched.tensor.node):
            raise Unrestorable("a tensor with a hook", watched.born, watched.reason)
