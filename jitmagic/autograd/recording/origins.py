"""Maps autograd nodes to the operations of the program that created them.

New autograd nodes are marked with their operation. While C++ autograd runs a node, the operations
that it calls get the lines of that operation, and an error refuses that operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

__all__ = ["history_of", "mark_origin", "origin_of", "reach_of"]

_ORIGIN = "jitmagic.origin"


def mark_origin(tensor: torch.Tensor, operation: Node) -> None:
    """Mark the new autograd nodes of `tensor`'s history with the graph operation that created
    them.
    """
    stack = [tensor.grad_fn]
    while stack:
        node = stack.pop()
        metadata: Any = {} if node is None else node.metadata
        # A marked node ends the walk: what lies before it was marked when its own operation ran.
        if node is not None and _ORIGIN not in metadata:
            metadata[_ORIGIN] = operation
            stack.extend(before for before, _ in node.next_functions)


def origin_of(node: Any) -> Node | None:
    """Return the operation that `mark_origin` stored on an autograd node, or None."""
    return None if node is None else node.metadata.get(_ORIGIN)


def history_of(result: torch.Tensor) -> set[tuple[Any, int]]:
    """Return the edges of the result's autograd graph."""
    edges: set[tuple[Any, int]] = set()
    stack = [(result.grad_fn, result.output_nr)]
    while stack:
        edge = stack.pop()
        if edge[0] is not None and edge not in edges:
            edges.add(edge)
            stack.extend(edge[0].next_functions)
    return edges


def reach_of(
    histories: Sequence[set[tuple[Any, int]]], inputs: Sequence[torch.Tensor]
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
