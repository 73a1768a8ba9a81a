"""Which memory of a graph under construction was made inside a block of inference mode.

Comes in: the tensors of each node as it is recorded. Goes out: whether eager would have an
inference tensor there. Views belong to the memory that they show, wherever they are made.
"""

from __future__ import annotations

from typing import Any

import torch

from .memory import storage_under, storages_in

__all__ = ["InferenceMemory"]


class InferenceMemory:
    """`is_on`: the program is inside such a block; `used`: it was in one."""

    __slots__ = ("_made_inside", "is_on", "used")

    def __init__(self) -> None:
        self.is_on = self.used = False
        self._made_inside: dict[int, bool] = {}

    def note(self, value: Any, is_input: bool) -> None:
        """What a node gives: its memory is older, or made here and now."""
        inside = self.is_on and not is_input
        for memory in storages_in(value):
            self._made_inside.setdefault(memory, inside)

    def holds(self, value: Any) -> bool:
        """Whether a tensor lies there."""
        if not self.used or not isinstance(value, torch.Tensor):
            return False
        return self._made_inside.get(storage_under(value), False)
