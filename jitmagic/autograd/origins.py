"""Which operation of the program an autograd node belongs to: whose formula a backward records.

The autograd nodes of an operation are told of it when they come into being; while C++ autograd runs
one, the operations that it calls are given its lines, and one that is refused refuses it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

__all__ = ["mark_origin", "origin_of"]

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
