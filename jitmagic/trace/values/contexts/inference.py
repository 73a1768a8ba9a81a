"""Models inference tensors, which blocks of torch.inference_mode create.

Input: a graph that was traced under no_grad in such a block (torch_contexts.py). Output: recipes
that turn the block's results into inference tensors at an exit. After the block, uses for which
eager raises break the graph: writing to an inference tensor, or saving it for a backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ....compat.distributed import make_async
from ....graph.distributed.objects import is_marked_async
from ....graph.nested import tensor_nodes_in
from ....graph.wrappers.wrapping import is_wrapper
from ...breaks import GraphBreak, RefusedTorchCall
from ...builtins.registry import handles
from ...graph_notes import GraphNotes
from ...residual_torch_calls import as_inference_tensor, with_class
from ...result import Recipe
from ..base import Args, Builder, Kwargs, Machine, Value
from ..tensor_base import TensorBase

__all__ = [
    "is_inference_result",
    "output_recipe",
    "refuse_inference_arguments",
    "refuse_inference_writes",
]

_DETACHING = ("Tensor.detach", "torch detach", "torch getattr")


def output_recipe(builder: Builder, owner: TensorBase) -> Recipe:
    """Return the recipe of a TensorValue that the trace computed."""
    if is_wrapper(owner.meta):
        return builder.rewrapped(owner)
    output = builder.output(owner, owner.node)
    if is_marked_async(owner.meta):
        return builder.invoke(make_async, (output,))
    if is_inference_result(owner.node):
        return builder.invoke(as_inference_tensor, (output,))
    if owner.live is None and owner.kind is not torch.Tensor:
        return builder.invoke(with_class, (output, builder.constant(owner.kind)))
    return output


def is_inference_result(node: Node) -> bool:
    """Return whether an inference_mode block allocated the tensor's memory."""
    return bool(node.meta.get("inference"))


def refuse_inference_arguments(notes: GraphNotes, name: str, *parts: object) -> dict[Node, int]:
    """Break if eager may raise because an argument of the call is an inference tensor.

    Also breaks if the result may be an inference tensor in eager but not here, or vice versa.
    Returns the versions of the tensors that the call must not write to.
    """
    graph = notes.graph
    if graph.inference.is_on or torch.is_inference_mode_enabled():
        return {}
    if name in _DETACHING:  # eager allows writes to a detached tensor, but not to a view
        tensors = tensor_nodes_in(parts)
        if any(is_inference_result(n) or _is_inference_input(notes, n) for n in tensors):
            raise GraphBreak(RefusedTorchCall.of(name=name, why="it is an inference tensor"))
    if not graph.inference.used:
        return {}
    arguments = tensor_nodes_in(parts)
    inside = [node for node in arguments if is_inference_result(node)]
    if inside and graph.grad_enabled and any(n.meta["val"].requires_grad for n in arguments):
        raise GraphBreak(RefusedTorchCall.of(name=name, why="it might save an inference tensor"))
    return {node: node.meta["val"]._version for node in inside}


def refuse_inference_writes(name: str, versions: dict[Node, int]) -> None:
    """Break if the call wrote to a tensor that `refuse_inference_arguments` returned."""
    if any(node.meta["val"]._version != version for node, version in versions.items()):
        raise GraphBreak(RefusedTorchCall.of(name=name, why="it writes to an inference tensor"))


def _is_inference_input(notes: GraphNotes, node: Node) -> bool:
    live = notes.live(node)
    return live is not None and live.is_inference()


@handles(torch.Tensor.is_inference, torch.is_inference)
def _is_inference(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    graph = machine.graph
    tensor: Any = args[0]
    if graph.root is not graph or not hasattr(tensor, "node"):
        raise GraphBreak(RefusedTorchCall.of(name="is_inference", why="its tensor is not known"))
    if tensor.live is not None:  # its guard compares the dispatch keys, which show inference mode
        return machine.constant(tensor.live.is_inference())
    ambient = torch.is_inference_mode_enabled()
    # In inference mode a view of a normal tensor is a normal tensor; a new result is not.
    if ambient and graph.inputs_sharing(tensor.node):
        raise GraphBreak(RefusedTorchCall.of(name="is_inference", why="it may be a view"))
    return machine.constant(ambient or is_inference_result(tensor.node))


@handles(torch.is_inference_mode_enabled)
def _is_enabled(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    # The GlobalState guard of every entry covers the mode outside of traced blocks.
    return machine.constant(torch.is_inference_mode_enabled() or machine.graph.inference.is_on)
