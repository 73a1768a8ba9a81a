"""Escaped tensors: made inside a function under a torch.func transform, and used after it returned.

In eager such a tensor is wrapped for a functorch level that has ended, which no graph can
represent. Using its node is a graph break, and so is returning the tensor from the frame.
"""

from __future__ import annotations

from typing import NoReturn

from .breaks import GraphBreak, TransformRefused

__all__ = ["EscapedNode"]


class EscapedNode:
    """Replaces the node of an escaped tensor; a break is at the instruction `created_at_step`."""

    def __init__(self, name: str, created_at_step: int) -> None:
        self.reason = TransformRefused.of(name=name, why="a tensor that it made escapes")
        self.created_at_step = created_at_step

    def __getattr__(self, name: str) -> NoReturn:
        raise GraphBreak(self.reason)
