"""Leaked tensors: the node of one that outlives the function under a transform of torch.func.

In eager such a tensor is still there, at a level that is gone; no graph can have it. Whoever looks
at the node breaks, and so does an exit that hands the tensor on.
"""

from __future__ import annotations

from typing import NoReturn

from .breaks import GraphBreak, TransformRefused

__all__ = ["LostNode"]


class LostNode:
    """`born`: the instruction of the root frame to break at."""

    def __init__(self, name: str, born: int) -> None:
        self.reason = TransformRefused.of(name=name, why="a tensor of its own is kept elsewhere")
        self.born = born

    def __getattr__(self, name: str) -> NoReturn:
        raise GraphBreak(self.reason)
