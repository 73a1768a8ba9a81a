"""Escaped tensors: made inside a function under a torch.func transform, and used after it returned.

In eager such a tensor is wrapped for a functorch level that has ended, which no graph can
represent. Using its node is a graph break, and so is returning the tensor from the frame.
"""

from __future__ import annotations

from typing import NoReturn

from .breaks import GraphBreak, TransformRefused

__all__ = ["EscapedNode"]


class EscapedNode:
    """Replaces the node of an escaped tensor; `born`: the root-frame instruction to break at."""

    def __init__(self, name: str, born: int) -> None:
        self.reason = TransformRefused.of(name=name, why="a tensor that it made escapes")
        self.born = born

    def __getattr__(self, name: str) -> NoReturn:
        raise GraphBreak(self.reason)
