"""TensorNodes: which node of a graph under construction stands for a meta tensor.

By identity, since tensors compare element by element. Invariant: what has a node is held, so that
no other tensor comes to be at its address. A node's `meta["val"]` alone does not hold it: a number
takes its place where a transform captures one, and the next result would pass for that number.
"""

from __future__ import annotations

import torch
from torch.fx import Node

__all__ = ["TensorNodes"]


class TensorNodes:
    """Meta tensors and their nodes."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, tuple[torch.Tensor, Node]] = {}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._known

    def __getitem__(self, tensor: torch.Tensor) -> Node:
        return self._known[id(tensor)][1]

    def __setitem__(self, tensor: torch.Tensor, node: Node) -> None:
        self._known[id(tensor)] = tensor, node

    def get(self, tensor: torch.Tensor) -> Node | None:
        """None: it has no node."""
        return self[tensor] if tensor in self else None  # noqa: SIM401 - no mapping
