"""Maps the meta tensors of a graph under construction to their nodes.

The map is by identity, since tensors compare element by element. Invariant: a tensor with a node is
kept alive, so that no other tensor gets its address. A node's `meta["val"]` alone does not ensure
that: a number replaces it where a transform captures one.
"""

from __future__ import annotations

import torch
from torch.fx import Node

__all__ = ["TensorNodes"]


class TensorNodes:
    """Maps meta tensors to nodes."""

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
        """Return the tensor's node, or None."""
        return self[tensor] if tensor in self else None  # noqa: SIM401 - no mapping
