"""Finds what eager autograd holds for the backward of a program.

In: calls of the saved-tensor hooks while a program is traced and then differentiated. Out: the
graph values that are held (`Held`). A tensor counts only if backward fetches it: a value saved by
an operation is freed with its node if no result needs its gradient (`x.abs() > 0.5`). Invariant: a
tensor written to since it was saved is not fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Node

from ..errors import CompileFailed
from .nodes import alias_root
from .result import Held
from .traced import Traced

__all__ = ["SavedTensors"]


class SavedTensors:
    """Hooks: `keep` when autograd saves a tensor, `fetch` when a backward asks for it."""

    __slots__ = ("_behind", "_held", "_of_nodes", "_refuse", "_spent")

    def __init__(self, refuse: Callable[[], Exception]) -> None:
        """`refuse` makes the error for a tensor that has been written to since it was saved."""
        self._refuse = refuse
        # Autograd nodes of the program's backward once it runs, with bits of their tangents.
        self._behind: dict[Any, int] = {}
        self._of_nodes: dict[Any, list[Traced]] = {}
        self._held: list[tuple[Traced, int]] = []
        self._spent: dict[int, None] = {}

    def keep(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Pack a tensor with its version: hooks disable autograd's own check."""
        return (tensor, tensor.counter.writes) if isinstance(tensor, Traced) else (tensor, 0)

    def fetch(self, packed: tuple[torch.Tensor, int]) -> torch.Tensor:
        """Unpack a tensor, and record that the backward of these tangents reads it."""
        tensor, version = packed
        behind = self._behind.get(torch._C._current_autograd_node()) if self._behind else None
        if behind is not None:
            self._spent[behind] = None
        if isinstance(tensor, Traced):
            if tensor.counter.writes != version:
                raise self._refuse()
            if self._behind:
                self.hold(tensor, Held.ALL_TANGENTS if behind is None else behind)
        return tensor

    def of_node(self, node: Any, tensor: Traced) -> None:
        """Record a tensor that an autograd node saved without calling hooks."""
        self._of_nodes.setdefault(node, []).append(tensor)

    def hold(self, tensor: Traced, tangents: int = Held.ALL_TANGENTS) -> None:
        """Record that eager holds the tensor's memory for the backward of `tangents`."""
        self._held.append((tensor, tangents))

    def differentiate(self, histories: Sequence[set[tuple[Any, int]]]) -> None:
        """Start recording the backward of the results, given the autograd edges of each."""
        behind: dict[Any, int] = {}
        for place, edges in enumerate(histories):
            for node in {node for node, _ in edges}:
                behind[node] = behind.get(node, 0) | 1 << place
        with torch._C._DisableTorchDispatch():  # unpacking may create an alias
            self._spent = {flow: None for node, flow in behind.items() if _holds_number(node)}
        self._behind = behind
        for node, tangents in self._behind.items():
            for tensor in self._of_nodes.get(node, ()):
                self.hold(tensor, tangents)

    def spent(self) -> tuple[int, ...]:
        """Return, for each node that fetched something, the bits of the tangents that flow through
        it. Their backward can run it once, even if it saved a constant (of `x * 3`).
        """
        return tuple(self._spent)

    def values(self) -> dict[Node, Held]:
        """Return what is held, keyed by the value in that memory at the end. Call it after the
        trace: views are resolved to final values.
        """
        held: dict[Node, Held] = {}
        for tensor, tangents in self._held:
            node, place = alias_root(tensor.sym.node), tensor.cell.input
            own = Held(tangents, frozenset(() if place is None else (place,)))
            held[node] = held.get(node, Held(0)) | own
        return held


def _holds_number(node: Any) -> bool:
    """Return whether the node saved a number as torch's wrapper tensor, which hooks do not see."""
    return any(_is_number(node, name) for name in _names_of_saved(node.__class__))


@lru_cache(maxsize=4096)
def _names_of_saved(kind: type) -> tuple[str, ...]:
    """Return attribute names of saved values of a C++ node; Python functions save tensors alone."""
    names = dir(kind)
    return tuple(name for name in names if name.startswith("_saved_") and f"_raw{name}" in names)


def _is_number(node: Any, name: str) -> bool:
    try:
        value = getattr(node, name)
    except CompileFailed:  # a tensor that was written to since
        return False
    return isinstance(value, torch.Tensor) and not isinstance(value, Traced) and not value.dim()
