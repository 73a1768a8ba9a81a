"""Maps autograd nodes to the operations of the program that created them.

New autograd nodes are marked with their operation. While C++ autograd runs a node, the operations
that it calls get the lines of that operation, and an error refuses that operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.autograd.graph import Node as GradNode
from torch.fx import Node

from ...graph.linked_history import history_of

__all__ = [
    "Edge",
    "edges_of",
    "mark_new",
    "mark_origin",
    "origin_of",
    "reach_of",
]

Edge = tuple[GradNode, int]  # an autograd node, and the position of the result
_ORIGIN = "jitmagic.origin"


def metadata_of(node: GradNode) -> dict[str, object]:
    """Return the dict of a node; torch's stub declares a method."""
    metadata: object = node.metadata
    assert isinstance(metadata, dict)
    return metadata


def mark_new(tensors: Iterable[torch.Tensor], key: str, mark: object) -> list[GradNode]:
    """Mark the nodes that have no mark of this key, and return them. A marked node ends the walk:
    the nodes before it were marked when its own operation ran.
    """
    found = list(history_of(tensors, lambda node: key in metadata_of(node)))
    for node in found:
        metadata_of(node)[key] = mark
    return found


def mark_origin(tensor: torch.Tensor, operation: Node) -> None:
    """Mark the new autograd nodes of `tensor`'s history with the graph operation that created
    them.
    """
    mark_new([tensor], _ORIGIN, operation)


def origin_of(node: GradNode | None) -> Node | None:
    """Return the operation that `mark_origin` stored on an autograd node, or None."""
    origin = None if node is None else metadata_of(node).get(_ORIGIN)
    return origin if isinstance(origin, Node) else None


def edges_of(result: torch.Tensor) -> set[Edge]:
    """Return the edges of the result's autograd graph."""
    if result.grad_fn is None:
        return set()
    edges = [edge for node in history_of([result]) for edge in node.next_functions]
    return {(result.grad_fn, result.output_nr), *((n, at) for n, at in edges if n is not None)}


def reach_of(
    histories: Sequence[set[Edge]], inputs: Sequence[torch.Tensor]
) -> list[tuple[int, ...]]:
    """Return, for each input, the positions of the results whose history contains it. Given a
    tangent for one of them, the input has a gradient, even if it is zero.
    """
    # A leaf has no grad_fn: it is found as the variable of an AccumulateGrad node.
    leaves = [{id(n.variable) for n, _ in edges if hasattr(n, "variable")} for edges in histories]
    return [
        tuple(
            index
            for index, edges in enumerate(histories)
            if id(tensor) in leaves[index] or (tensor.grad_fn, tensor.output_nr) in edges
        )
        for tensor in inputs
    ]
