"""Models the hooks that a program registers on tensors, and `retain_grad()`.

If the backward is in the same graph, it runs the hooks where eager does, as traced code, and sets
`.grad` (trace/builtins/pytorch/differentiation.py). The exit registers the hooks that a later
backward may run (../autograd/later_hooks.py).
"""

from __future__ import annotations

from collections import OrderedDict
from operator import getitem
from typing import Any

import torch
from torch.fx import Node
from torch.utils.hooks import RemovableHandle

from ....errors import UserLine
from ....graph.targets.regions import FunctionCall
from ....graph.wrappers.wrapping import is_wrapper
from ....lazy_dataclass import dataclass
from ...breaks import GraphBreak, RefusedTorchCall
from ...builtins.pytorch.torch_rules import REFUSED_METHODS
from ...builtins.registry import handles, method
from ...graph_notes import GraphNotes
from ...result import Recipe
from ..base import Args, Builder, CannotRebuild, Kwargs, Machine, Value
from ..objects.callables import bind_builtin
from ..objects.opaque import WithoutOperators

__all__ = [
    "TensorHook", "TensorHooks", "add_hook", "check_hooks", "hooked_output", "hooks_run_by",
    "in_engine_order", "is_hooked", "retains_gradient",
]  # fmt: skip

_RETAIN, _AFTER = "retain_grad", "register_post_accumulate_grad_hook"


@dataclass(slots=True, eq=False)
class TensorHook:
    """A hook of a tensor. `name`: the method that registers it; `hook` is None for retain_grad().
    `in_rerun`: it was registered by code that a backward runs again. `registers_itself`: the live
    hook does so when it is built.
    """

    tensor: Any  # TensorValue
    hook: Value | None
    name: str
    history: Any  # the tensor's grad_fn at the registration; None: a leaf
    created_at_step: int
    lines: tuple[UserLine, ...]
    in_rerun: bool
    registers_itself: bool = False
    handle: HandleValue | None = None
    is_registered: bool = False  # at the exit

    @property
    def reason(self) -> RefusedTorchCall:
        """Return the reason for a graph break at the registration."""
        why = REFUSED_METHODS[self.name]
        if self.is_written:
            why = "the tensor is written to after it"
        elif self.in_rerun:
            why = "a backward runs the code around it again"
        return RefusedTorchCall.of(name=f"Tensor.{self.name}", why=why)

    def lost(self) -> CannotRebuild:
        return CannotRebuild("a tensor with a hook", self.created_at_step, self.reason)

    @property
    def is_written(self) -> bool:
        """Return whether an in-place write has moved the tensor to a new grad_fn since then."""
        return getattr(self.tensor, "meta", None) is not None and (
            self.tensor.meta.grad_fn is not self.history
        )


class TensorHooks(list[TensorHook]):
    """The hooks of one graph."""


class HandleValue(WithoutOperators):
    """The RemovableHandle that a registration returns."""

    __slots__ = ("is_removed", "registered")

    def __init__(self, registered: TensorHook) -> None:
        super().__init__()
        self.registered, self.is_removed = registered, False

    def python_type(self, machine: Machine) -> type:
        return RemovableHandle

    def truth(self, machine: Machine) -> bool:
        return True

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name != "remove":
            self.refuse(machine, f"attribute {name!r}")
        return bind_builtin(machine, self, RemovableHandle, name)

    def recipe(self, builder: Builder) -> Recipe:
        if self.is_removed:
            return builder.invoke(RemovableHandle, (builder.invoke(OrderedDict, ()),))
        # The registration fills it (later_hooks.py), in the order of all registrations.
        return builder.invoke(object.__new__, (builder.constant(RemovableHandle),))

    def describe(self) -> str:
        return "handle of a hook"


@handles(torch.Tensor.retain_grad)
def _retain(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    tensor: Any = args[0] if args else None
    meta = getattr(tensor, "meta", None)
    is_leaf = isinstance(meta, torch.Tensor) and meta.is_leaf and meta.requires_grad
    if not is_leaf and not retains_gradient(machine, tensor):
        add_hook(machine, tensor, None, len(args) != 1, _RETAIN)
    return machine.constant(None)


def _follow(name: str) -> None:
    @handles(getattr(torch.Tensor, name))
    def _register(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        tensor, hook = [*args, None, None][:2]
        return add_hook(machine, tensor, hook, len(args) != 2, name)


_follow("register_hook")
_follow(_AFTER)


@method(RemovableHandle, "remove")
def _remove(machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    assert isinstance(owner, HandleValue)
    if args or kwargs:
        owner.refuse(machine, "a call with arguments")
    hooks = machine.notes.of(TensorHooks)
    # A second remove() is no error in torch either.
    if owner.registered in hooks:
        hooks.remove(owner.registered)
    owner.is_removed = True
    return machine.constant(None)


def add_hook(
    machine: Machine,
    tensor: Any,
    hook: Value | None,
    unsupported: bool = False,
    name: str = "register_hook",
    registers_itself: bool = False,
) -> HandleValue:
    """Register a hook that runs with the tensor's gradient, and return its handle."""
    graph = machine.graph
    meta = getattr(tensor, "meta", None)
    history = getattr(meta, "grad_fn", None)
    place = machine.step, machine.lines(), machine.backward_facts is not None
    registered = TensorHook(tensor, hook, name, history, *place, registers_itself)
    registered.handle = HandleValue(registered)
    inside = graph.root is graph and not graph.modes_vary and not graph.is_transformed
    if unsupported or not inside or not _can_register(graph, tensor, registered):
        raise GraphBreak(registered.reason)
    machine.notes.of(TensorHooks).append(registered)
    return registered.handle


def _can_register(graph: Any, tensor: Any, registered: TensorHook) -> bool:
    """Return whether eager accepts the hook, and the exit can register it."""
    meta = getattr(tensor, "meta", None)
    if meta is None or not meta.requires_grad or is_wrapper(meta):
        return False
    if not meta.is_leaf:
        return registered.name != _AFTER
    # The hooks of a leaf belong to its AccumulateGrad node, which a leaf of the trace has not yet.
    return tensor.node in graph.inputs


def retains_gradient(machine: Machine, tensor: Any) -> bool:
    """Return whether `retain_grad()` was called for the tensor."""
    return any(w.tensor is tensor and w.hook is None for w in machine.notes.of(TensorHooks))


def is_hooked(machine: Machine, tensor: Any) -> bool:
    """Return whether the trace has registered a hook on the tensor."""
    return any(hook.tensor is tensor for hook in machine.notes.of(TensorHooks))


def hooks_run_by(machine: Machine, outputs: list[Any]) -> list[TensorHook]:
    """Return the hooks that a backward of these tensors runs, in the order of the autograd engine.

    Hooks of tensors that were computed last come first.
    """
    hooks = machine.notes.of(TensorHooks)
    if not hooks:
        return []
    history = machine.graph.history([output.node for output in outputs])
    found = [registered for registered in hooks if registered.history in history]
    for registered in found:
        # The hooks of a tensor that existed before the call belong to another graph's history.
        if registered.is_written or registered.tensor.live is not None:
            raise GraphBreak(registered.reason)
    return in_engine_order(found)


def in_engine_order(hooks: list[TensorHook]) -> list[TensorHook]:
    # The engine's ready queue is a heap by sequence number, the highest first.
    def number(registered: TensorHook) -> int:
        history = registered.history
        return 0 if history is None else -int(history._sequence_nr())

    return sorted(hooks, key=number)


def check_hooks(notes: GraphNotes) -> None:
    """Raise CannotRebuild if a hook could run, or be missed, that the exit does not register."""
    graph, hooks = notes.graph, notes.of(TensorHooks)
    waiting = [registered for registered in hooks if not registered.is_registered]
    history = graph.history(graph.differentiable_outputs() if waiting else [])
    for registered in waiting:
        runs = registered.hook is not None and registered.history in history
        if runs or graph.is_output(registered.tensor.node):
            raise registered.lost()


def hooked_output(builder: Builder, tensor: Any) -> Recipe:
    """Return the recipe of a tensor; its live counterpart has the history that eager gives it."""
    recipe = builder(tensor)
    if tensor.live is not None:
        return recipe
    node: Node = tensor.node
    node.meta["hooked"] = True
    call = node.args[0] if node.target is getitem else None
    if isinstance(call, Node) and isinstance(call.target, FunctionCall):
        inputs, made, *_ = call.args
        # It returns an input as it is, to which only the function itself gives this history.
        if made[node.args[1]] in inputs:  # type: ignore[index, operator]
            call.meta["data_dependent"] = True
    return recipe
