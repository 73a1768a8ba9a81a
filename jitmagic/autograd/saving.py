"""SavedTensors: what eager autograd holds for the backward behind a program.

In: the hooks for saved tensors, while a program is traced and then differentiated. Out: what is
held of the graph's values (`Held`). A tensor counts once that backward fetches it: what an
operation saves is gone with its node where no result needs its gradient (`x.abs() > 0.5`).
Invariant: what was written since it was saved is not fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Node

from ..errors import CompileFailed
from .nodes import alias_root
from .recording.functionalize import Functionalizer
from .recording.traced import Traced
from .result import Held

__all__ = ["SavedTensors"]

_Packed = tuple[torch.Tensor, int, Any]


class SavedTensors:
    """Hooks: `keep` when autograd saves a tensor, `fetch` when a backward asks for it."""

    __slots__ = ("_behind", "_held", "_mode", "_of_nodes", "_refuse", "_spent")

    def __init__(self, mode: Functionalizer, refuse: Callable[[], Exception]) -> None:
        """`refuse`: the error for a tensor that has been written to since it was saved."""
        self._mode, self._refuse = mode, refuse
        # The nodes of the backward behind the program, once that is at work: bits of tangents.
        self._behind: dict[Any, int] = {}
        self._of_nodes: dict[Any, list[Traced]] = {}
        self._held: list[tuple[Traced, int]] = []
        self._spent: dict[int, None] = {}

    def keep(self, tensor: torch.Tensor) -> _Packed:
        """Note its version, as hooks switch autograd's own check off, and the checkpointed region
        whose backward reads it.
        """
        writes = tensor.counter.writes if isinstance(tensor, Traced) else 0
        return tensor, writes, self._mode.recorder.region

    def fetch(self, packed: _Packed) -> torch.Tensor:
        """Return the tensor that was kept, or the same of the second run of its region."""
        tensor, version, region = packed
        behind = self._behind.get(torch._C._current_autograd_node()) if self._behind else None
        if behind is not None:
            self._spent[behind] = None
        if isinstance(tensor, Traced):
            if tensor.counter.writes != version:
                raise self._refuse()
            if self._behind:
                self.hold(tensor, Held.ALL_TANGENTS if behind is None else behind)
                return tensor if region is None else self._mode.again(tensor, region)
        return tensor

    def of_node(self, node: Any, tensor: Traced) -> None:
        """An autograd node that was made without hooks keeps the tensor."""
        self._of_nodes.setdefault(node, []).append(tensor)

    def hold(self, tensor: Traced, tangents: int = Held.ALL_TANGENTS) -> None:
        """Eager holds the tensor's memory for the backward of these."""
        self._held.append((tensor, tangents))

    def differentiate(self, histories: Sequence[set[tuple[Any, int]]]) -> None:
        """From now on the backward of the results is at work; the edges behind each of them."""
        behind: dict[Any, int] = {}
        for place, edges in enumerate(histories):
            for node in {node for node, _ in edges}:
                behind[node] = behind.get(node, 0) | 1 << place
        with torch._C._DisableTorchDispatch():  # unpacking may make an alias
            self._spent = {flow: None for node, flow in behind.items() if _holds_number(node)}
        self._behind = behind
        for node, tangents in self._behind.items():
            for tensor in self._of_nodes.get(node, ()):
                self.hold(tensor, tangents)

    def spent(self) -> tuple[int, ...]:
        """For each node that has fetched something: bits of the tangents that flow through it, for
        whose backward it can run once, be what it saved a constant (of `x * 3`).
        """
        return tuple(self._spent)

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


def _holds_number(node: Any) -> bool:
    """Whether it has saved a number, as the tensor that torch wraps it in: no hook sees those."""
    return any(_is_number(node, name) for name in _names_of_saved(node.__class__))


@lru_cache(maxsize=4096)
def _names_of_saved(kind: type) -> tuple[str, ...]:
    """Of nodes of C++: a function of Python's saves tensors alone."""
    names = dir(kind)
    return tuple(name for name in names if name.startswith("_saved_") and f"_raw{name}" in names)


def _is_number(node: Any, name: str) -> bool:
    try:
        value = getattr(node, name)
    except CompileFailed:  # a tensor that was written to since then
        return False
    return isinstance(value, torch.Tensor) and not isinstance(value, Traced) and not value.dim()
