"""User lines on autograd's nodes: what a formula of the backward is recorded for.

The forward's nodes are told their lines when they come into being; while C++ autograd runs one, the
operations that it calls are given those.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import UserLine

__all__ = ["mark_lines", "marked_lines"]

_LINES = "jitmagic.lines"


def mark_lines(tensor: torch.Tensor, lines: tuple[UserLine, ...]) -> None:
    """Tell the new autograd nodes behind `tensor` which user lines they come from."""
    stack = [tensor.grad_fn]
    while stack:
        node = stack.pop()
        metadata: Any = {} if node is None else node.metadata
        if node is not None and _LINES not in metadata:
            metadata[_LINES] = lines
            stack.extend(before for before, _ in node.next_functions)


def marked_lines(node: Any) -> tuple[UserLine, ...]:
    """What `mark_lines` told an autograd node, () where it was not told."""
    lines: tuple[UserLine, ...] = () if node is None else node.metadata.get(_LINES, ())
    return lines
