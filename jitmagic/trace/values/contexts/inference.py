"""inference_mode: a block whose new tensors are inference tensors.

Comes in: `torch.inference_mode()` where the mode is off. Goes out: a block without gradients, and
recipes that make inference tensors of what was made in it and leaves the frame. What eager refuses
such a tensor behind its block breaks: being written to, being saved for a backward. A graph break
inside a block goes before it, where the real context is entered.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ....graph.nested import tensor_nodes_in
from ...breaks import GraphBreak, RefusedTorchCall
from ...builtins.registry import handles
from ...graph_notes import GraphNotes
from ...result import Recipe
from ..base import Args, Builder, Kwargs, Machine, Unrestorable, Value
from ..objects.opaque import WithoutOperators

__all__ = [
    "InferenceBlock",
    "handed_out",
    "is_made_inside",
    "refuse_behind_block",
    "refuse_written",
]

_DETACHING = ("Tensor.detach", "torch detach", "torch getattr")


class InferenceBlock(WithoutOperators):
    """What `inference_mode()` gives. `set_grad_mode` is that of contexts.py, which imports this."""

    __slots__ = ("set_grad_mode",)

    def __init__(self, set_grad_mode: Any) -> None:
        super().__init__()
        self.set_grad_mode = set_grad_mode

    def python_type(self, machine: Machine) -> type:
        return torch.inference_mode

    def truth(self, machine: Machine) -> bool:
        return True

    def enter(self, machine: Machine) -> tuple[Value, Value]:
        graph = machine.graph
        end = _EndOfBlock(self, graph.grad_enabled, graph.inference.is_on, machine.step)
        if not torch.is_inference_mode_enabled():
            self.set_grad_mode(machine, False)
            graph.inference.is_on = graph.inference.used = True
        return end, machine.constant(None)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(torch.inference_mode, ())


class _EndOfBlock(WithoutOperators):
    """The bound `__exit__` of a block that has been entered."""

    __slots__ = ("block", "born", "grad_mode", "was_on")

    def __init__(self, block: InferenceBlock, grad_mode: bool, was_on: bool, born: int) -> None:
        super().__init__()
        self.block, self.born = block, born
        self.grad_mode, self.was_on = grad_mode, was_on

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if not torch.is_inference_mode_enabled():
            machine.graph.inference.is_on = self.was_on
            self.block.set_grad_mode(machine, self.grad_mode)
        return machine.constant(None)

    def recipe(self, builder: Builder) -> Recipe:
        raise Unrestorable("a block of inference mode", self.born)


def as_inference_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, as eager has it inside inference mode."""
    with torch._C._InferenceMode(True):  # type: ignore[attr-defined]
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(tensor)  # type: ignore[call-overload, no-any-return]


def handed_out(builder: Builder, owner: Any) -> Recipe:
    """The recipe of a TensorValue that the trace made."""
    made = builder.output(owner, owner.node)
    if is_made_inside(owner.node):
        return builder.invoke(as_inference_tensor, (made,))
    if owner.live is None and owner.kind is not torch.Tensor:
        return builder.invoke(_of_class, (made, builder.constant(owner.kind)))
    return made


def _of_class(tensor: torch.Tensor, kind: type) -> torch.Tensor:
    tensor.__class__ = kind
    return tensor


def is_made_inside(node: Node) -> bool:
    """Whether a block was where the memory of a tensor was made."""
    return bool(node.meta.get("inference"))


def refuse_behind_block(notes: GraphNotes, name: str, *parts: Any) -> dict[Node, int]:
    """Break where eager might refuse an inference tensor among the arguments of a call, or give a
    tensor of the other kind. Goes out: those that the call must not write to, by their versions.
    """
    graph = notes.graph
    if graph.inference.is_on or torch.is_inference_mode_enabled():
        return {}
    if name in _DETACHING:  # what eager detaches may be written to, a view may not
        inside = [n for n in tensor_nodes_in(parts) if is_made_inside(n) or _came_so(notes, n)]
        if inside:
            raise GraphBreak(RefusedTorchCall.of(name=name, why="it is an inference tensor"))
    if not graph.inference.used:
        return {}
    given = tensor_nodes_in(parts)
    inside = [node for node in given if is_made_inside(node)]
    if inside and graph.grad_enabled and any(n.meta["val"].requires_grad for n in given):
        raise GraphBreak(RefusedTorchCall.of(name=name, why="it might save an inference tensor"))
    return {node: node.meta["val"]._version for node in inside}


def refuse_written(name: str, kept: dict[Node, int]) -> None:
    """Break if the call wrote to one of what `refuse_behind_block` gave."""
    if any(node.meta["val"]._version != version for node, version in kept.items()):
        raise GraphBreak(RefusedTorchCall.of(name=name, why="it writes to an inference tensor"))


def _came_so(notes: GraphNotes, node: Node) -> bool:
    live = notes.live(node)
    return live is not None and live.is_inference()


@handles(torch.Tensor.is_inference, torch.is_inference)
def _is_inference(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    graph = machine.graph
    tensor: Any = args[0]
    if graph.root is not graph or not hasattr(tensor, "node"):
        raise GraphBreak(RefusedTorchCall.of(name="is_inference", why="its tensor is not known"))
    if tensor.live is not None:  # guarded by the keys that it dispatches on
        return machine.constant(tensor.live.is_inference())
    ambient = torch.is_inference_mode_enabled()
    if ambient and graph.inputs_sharing(tensor.node):
        raise GraphBreak(RefusedTorchCall.of(name="is_inference", why="it may be a view"))
    return machine.constant(ambient or is_made_inside(tensor.node))


@handles(torch.is_inference_mode_enabled)
def _is_enabled(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """The GlobalState guard of every entry covers what it is outside of blocks."""
    return machine.constant(torch.is_inference_mode_enabled() or machine.graph.inference.is_on)
