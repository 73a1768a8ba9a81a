"""SavedTensors: what eager autograd holds for the backward behind a program.

In: the hooks for saved tensors, while a program is traced and then differentiated. Out: what is
held of the graph's values (`Held`). A tensor counts once that backward fetches it: what an
operation saves is gone with its node where no result needs its gradient (`x.abs() > 0.5`).
Invariant: what was written since it was saved is not fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from .nodes import alias_root
from .result import Held
from .traced import Traced

__all__ = ["SavedTensors"]


class SavedTensors:
    """Hooks: `keep` when autograd saves a tensor, `fetch` when a backward asks for it."""

    __slots__ = ("_behind", "_held", "_of_nodes", "_refuse")

    def __init__(self, refuse: Callable[[], Exception]) -> None:
        """`refuse`: the error for a tensor that has been written to since it was saved."""
        self._refuse = refuse
        # The nodes of the backward behind the program, once that is at work: bits of tangents.
        self._behind: dict[Any, int] = {}
        self._of_nodes: dict[Any, list[Traced]] = {}
        self._held: list[tuple[Traced, int]] = []

    def keep(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Note its version: hooks switch autograd's own check off."""
        return (tensor, tensor.counter.writes) if isinstance(tensor, Traced) else (tensor, 0)

    def fetch(self, packed: tuple[torch.Tensor, int]) -> torch.Tensor:
        """What was kept."""
        tensor, version = packed
        if isinstance(tensor, Traced):
            if tensor.counter.writes != version:
                raise self._refuse()
            if self._behind:
                node = torch._C._current_autograd_node()
                self.hold(tensor, self._behind.get(node, Held.ALL_TANGENTS))
        return tensor

    def of_node(self, node: Any, tensor: Traced) -> None:
        """An autograd node that was made without hooks keeps the tensor."""
        self._of_nodes.setdefault(node, []).append(tensor)

    def hold(self, tensor: Traced, tangents: int = Held.ALL_TANGENTS) -> None:
        """Eager holds the tensor's memory for the backward of these."""
        self._held.append((tensor, tangents))

    def differentiate(self, histories: Sequence[set[tuple[Any, int]]]) -> None:
        """From now on the backward of the results is at work; the edges behind each of them."""
        for place, edges in enumerate(histories):
            for node in {node for node, _ in edges}:
                self._behind[node] = self._behind.get(node, 0) | 1 << place
        for node, tangents in self._behind.items():
            for tensor in self._of_nodes.get(node, ()):
                self.hold(tensor, tangents)

    def values(self) -> dict[Node, Held]:
        """What is held, by the values that are in its memory in the end. Not while the trace is at
        work: views are followed to them.
        """
        held: dict[Node, Held] = {}
        for tensor, tangents in self._held:
            node, place = alias_root(tensor.sym.node), tensor.cell.input
            own = Held(tangents, frozenset(() if place is None else (place,)))
            held[node] = held.get(node, Held(0)) | own
        return held
