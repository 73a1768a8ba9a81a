"""SavedTensors: what eager autograd holds for the backward behind a program.

In: the hooks for saved tensors, while a program is traced and then differentiated. Out:
`meta["kept"]` of a graph value: its memory is held (`kept_in`: that of these inputs), and a write
to it between forward and backward is an error, in eager as well. A tensor counts once that backward
fetches it: what an operation saves is gone with its node where no result needs its gradient
(`x.abs() > 0.5`). Invariant: what was written since it was saved is not fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .nodes import alias_root
from .traced import Traced

__all__ = ["SavedTensors"]


class SavedTensors:
    """Hooks: `keep` when autograd saves a tensor, `fetch` when a backward asks for it."""

    __slots__ = ("_behind", "_held", "_of_nodes", "_refuse")

    def __init__(self, refuse: Callable[[], Exception]) -> None:
        """`refuse`: the error for a tensor that has been written to since it was saved."""
        self._refuse = refuse
        self._behind = False  # whether the backward at work is the one behind the program
        self._of_nodes: dict[Any, list[Traced]] = {}
        self._held: list[Traced] = []

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
                self.hold(tensor)
        return tensor

    def of_node(self, node: Any, tensor: Traced) -> None:
        """An autograd node that was made without hooks keeps the tensor."""
        self._of_nodes.setdefault(node, []).append(tensor)

    def hold(self, tensor: Traced) -> None:
        """Eager holds the tensor's memory for the backward."""
        self._held.append(tensor)

    def differentiate(self, history: Iterable[Any]) -> None:
        """From now on the backward of the results is at work; `history`: its autograd nodes."""
        self._behind = True
        for node in history:
            for tensor in self._of_nodes.get(node, ()):
                self.hold(tensor)

    def mark(self) -> None:
        """Mark what is held, by the values that are in its memory in the end. Not while the trace
        is at work: views are followed to them.
        """
        for tensor in self._held:
            meta = alias_root(tensor.sym.node).meta
            meta["kept"] = True
            if tensor.cell.input is not None:
                meta.setdefault("kept_in", set()).add(tensor.cell.input)
