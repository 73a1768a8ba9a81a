"""Finds which tensors eager autograd would save for the backward of a program.

In: calls of the saved-tensor hooks while a program is traced and then differentiated. Out: the
graph values that eager holds (`EagerSaved`). A tensor counts only if backward fetches it: a value
saved by an operation is freed with its node if no result needs its gradient (`x.abs() > 0.5`).
Invariant: a tensor written to since it was saved is not fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch.autograd.graph import Node as GradNode
from torch.fx import Node

from ..compat.autograd import current_node
from ..compat.modes import DispatchModesOff
from ..errors import CompileFailed
from ..graph.wrappers.wrapping import Layout, inner_tensors, is_wrapper, sizes_of_wrapper
from .nodes import alias_root
from .recording.functionalize import Functionalizer
from .recording.origins import Edge
from .recording.traced import Traced
from .result import EagerSaved

__all__ = ["SavedTensorHooks"]

_Packed = tuple[torch.Tensor, list[tuple[Traced, int]], object]


class SavedTensorHooks:
    """Hooks: `pack` when autograd saves a tensor, `unpack` when a backward asks for it."""

    __slots__ = ("_freed", "_mode", "_of_nodes", "_recorded", "_refuse", "_tangents_of")

    def __init__(self, mode: Functionalizer, refuse: Callable[[], Exception]) -> None:
        """`refuse` makes the error for a tensor that has been written to since it was saved."""
        self._mode, self._refuse = mode, refuse
        # While the backward is recorded: its autograd nodes, with bits of their tangents.
        self._tangents_of: dict[GradNode, int] = {}
        self._of_nodes: dict[GradNode, list[Traced]] = {}
        self._recorded: list[tuple[Traced, int]] = []
        self._freed: dict[int, None] = {}

    def pack(self, tensor: torch.Tensor) -> _Packed:
        """Pack a tensor with its version, as hooks disable autograd's own check, and with the
        checkpointed region whose backward reads it.
        """
        inner = inner_tensors(tensor)
        versions = [(one, one.counter.writes) for one in inner if isinstance(one, Traced)]
        return tensor, versions, self._mode.recorder.region

    def unpack(self, packed: _Packed) -> torch.Tensor:
        """Return the saved tensor, or its counterpart in the second run of its region."""
        tensor, versions, region = packed
        tangents = None
        if self._tangents_of:
            tangents = self._tangents_of.get(current_node())
        if tangents is not None:
            self._freed[tangents] = None
        for inner, version in versions:
            if inner.counter.writes != version:
                raise self._refuse()
            if self._tangents_of:
                # A backward inside the program has freed its saved tensors by the time it returns.
                self.record(inner, EagerSaved.ALL_TANGENTS if tangents is None else tangents)
        if region is None or not self._tangents_of or not versions:
            return tensor
        return self._recomputed(tensor, region)

    def _recomputed(self, tensor: torch.Tensor, region: object) -> torch.Tensor:
        """Return the counterpart of a tensor in the second run of the region."""
        if isinstance(tensor, Traced):
            return self._mode.recomputed(tensor, region)
        if not is_wrapper(tensor):
            return tensor
        layout = Layout.of(tensor)
        inner = [self._recomputed(one, region) for one in layout.inner(tensor)]
        return layout.around(inner, *sizes_of_wrapper(tensor))

    def record_of_node(self, node: GradNode, tensor: Traced) -> None:
        """Record a tensor that an autograd node saved without calling hooks."""
        self._of_nodes.setdefault(node, []).append(tensor)

    def record(self, tensor: Traced, tangents: int = EagerSaved.ALL_TANGENTS) -> None:
        """Record that eager holds the tensor's memory for the backward of `tangents`."""
        self._recorded.append((tensor, tangents))

    def differentiate(self, histories: Sequence[set[Edge]]) -> None:
        """Start recording the backward of the results, given the autograd edges of each."""
        tangents_of: dict[GradNode, int] = {}
        for place, edges in enumerate(histories):
            for node in {node for node, _ in edges}:
                tangents_of[node] = tangents_of.get(node, 0) | 1 << place
        with DispatchModesOff():  # unpacking may create an alias
            self._freed = {flow: None for node, flow in tangents_of.items() if _holds_number(node)}
        self._tangents_of = tangents_of
        for node, tangents in self._tangents_of.items():
            for tensor in self._of_nodes.get(node, ()):
                self.record(tensor, tangents)

    def freed(self) -> tuple[int, ...]:
        """Return, for each node that fetched something, the bits of the tangents that flow through
        it. Their backward can run it once, even if it saved a constant (of `x * 3`).
        """
        return tuple(self._freed)

    def values(self) -> dict[Node, EagerSaved]:
        """Return what eager holds, keyed by the final value of that memory. Call it after the
        trace: views are resolved to final values.
        """
        eager_saved: dict[Node, EagerSaved] = {}
        for tensor, tangents in self._recorded:
            node, place = alias_root(tensor.sym.node), tensor.cell.input
            own = EagerSaved(tangents, frozenset(() if place is None else (place,)))
            eager_saved[node] = eager_saved.get(node, EagerSaved(0)) | own
        return eager_saved


def _holds_number(node: GradNode) -> bool:
    """Return whether the node saved a number as torch's wrapper tensor, which hooks do not see."""
    return any(_is_number(node, name) for name in _names_of_saved(node.__class__))


@lru_cache(maxsize=4096)
def _names_of_saved(kind: type) -> tuple[str, ...]:
    """Return attribute names of saved values of a C++ node; Python functions save tensors alone."""
    names = dir(kind)
    return tuple(name for name in names if name.startswith("_saved_") and f"_raw{name}" in names)


def _is_number(node: object, name: str) -> bool:
    try:
        value = getattr(node, name)
    except CompileFailed:  # a tensor that was written to since
        return False
    return isinstance(value, torch.Tensor) and not isinstance(value, Traced) and not value.dim()
