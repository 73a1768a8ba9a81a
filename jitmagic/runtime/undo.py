"""Graphs that write to their inputs and may raise: the inputs get their old contents back.

Comes in: a compiled graph and the positions of what it writes to. Goes out: the same, but when it
raises, eager, run after it from the frame's start, finds what the graph found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["undoing"]


def undoing(run: Callable[..., Any], written: Sequence[int]) -> Callable[..., Any]:
    """`run` with copies of the inputs at `written`."""

    def undo(*inputs: Any) -> Any:
        kept = [inputs[n].detach().clone() for n in written]
        try:
            return run(*inputs)
        except Exception as error:
            # hooks on saved tensors (checkpointing) end a run on purpose: what it wrote stays
            if not getattr(error, "__jitmagic_from_hook__", False):
                for n, before in zip(written, kept, strict=True):
                    inputs[n].data.copy_(before)  # data: no write that autograd has to know of
            raise

    return undo
