"""Which operation of the program an autograd node belongs to: whose formula a backward records.

The autograd nodes of an operation are told of it when they come into being; while C++ autograd runs
one, the operations that it calls are given its lines, and one that is refused refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

__all__ = ["history_of", "mark_origin", "origin_of", "reach_of"]

_ORIGIN = "jitmagic.origin"


def mark_origin(tensor: torch.Tensor, operation: Node) -> None:
    """Tell the new autograd nodes behind `tensor` which operation of the graph made them."""
    stack = [tensor.grad_fn]
    while stack:
        node = stack.pop()
        metadata: Any = {} if node is None else node.metadata
        if node is not None and _ORIGIN not in metadata:
            metadata[_ORIGIN] = operation
            stack.extend(before for before, _ in node.next_functions)


def origin_of(node: Any) -> Node | None:
    """What `mark_origin` told an autograd node, None where it was not told."""
    return None if node is None else node.metadata.get(_ORIGIN)


def history_of(result: torch.Tensor) -> set[tuple[Any, int]]:
    """The edges of the autograd graph behind it."""
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
    """For each input, the positions of the results whose history leads to it: with a tangent for
    one of them it has a gradient, be it of zeros.
    """
    leaves = [{id(n.variable) for n, _ in edges if hasattr(n, "variable")} for edges in histories]
    return [
        tuple(
            index
            for index, edges in enumerate(histories)
            if id(tensor) in leaves[index] or (tensor.grad_fn, tensor.output_nr) in edges
        )
        for tensor in inputs
    ]
