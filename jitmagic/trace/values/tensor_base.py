"""Defines the data of a modelled tensor, for modules that tensors/tensor.py imports."""

from __future__ import annotations

import torch
from torch.fx import Node

from ...guards.source import Source
from .base import Value

__all__ = ["TensorBase"]


class TensorBase(Value):
    """One tensor object of class `kind`; `live` is the object if it existed before the call."""

    __slots__ = ("grad", "kind", "live", "node")
    holds_data = True

    def __init__(
        self,
        node: Node,
        kind: type = torch.Tensor,
        live: torch.Tensor | None = None,
        source: Source | None = None,
    ) -> None:
        super().__init__(source)
        self.node = node
        self.kind = kind
        self.live = live
        self.grad: Value | None = None  # what the traced code stored in `.grad`

    @property
    def meta(self) -> torch.Tensor:
        """Return the meta tensor of the current node."""
        meta: torch.Tensor = self.node.meta["val"]
        return meta
