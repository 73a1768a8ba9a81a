"""Escaped tensors: those that outlive the function under a transform of torch.func that made them.

Eager keeps such a tensor at a functorch level that has ended, which no graph can represent. Reading
its node is a graph break, and so is an exit that returns the tensor.
"""

from __future__ import annotations

from typing import NoReturn

from .breaks import GraphBreak, TransformRefused

__all__ = ["EscapedNode"]


class EscapedNode:
    """Stands for the node of an escaped tensor; `born`: the root-frame instruction to break at."""

    def __init__(self, name: str, born: int) -> None:
        self.reason = TransformRefused.of(name=name, why="a tensor that it made escapes")
        self.born = born

    def __getattr__(self, name: str) -> NoReturn:
        raise GraphBreak(self.reason)
