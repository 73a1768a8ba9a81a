"""Tracks which storages of a graph under construction were created under inference mode.

Input: the tensors of each node as it is recorded. Output: whether eager would have an inference
tensor there. A view shares the state of its storage, wherever it is taken.
"""

from __future__ import annotations

import torch

from .memory import storage_under, storages_in

__all__ = ["InferenceMemory"]


class InferenceMemory:
    """Storages created under inference mode. `is_on`: the program is in such a block now; `used`:
    it has been in one.
    """

    __slots__ = ("_made_inside", "is_on", "used")

    def __init__(self) -> None:
        self.is_on = self.used = False
        self._made_inside: dict[int, bool] = {}

    def note(self, value: object, is_input: bool) -> None:
        """Record the storages of a node's value; storages that are known already keep their
        state.
        """
        inside = self.is_on and not is_input
        for memory in storages_in(value):
            self._made_inside.setdefault(memory, inside)

    def holds(self, value: object) -> bool:
        """Return whether the tensor's storage was created under inference mode."""
        if not self.used or not isinstance(value, torch.Tensor):
            return False
        return self._made_inside.get(storage_under(value), False)
