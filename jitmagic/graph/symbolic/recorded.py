"""Defines what analyses of values read of a graph, under construction or finished."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Graph, Node

from ...protocols import Protocol

__all__ = ["Recorded"]


class _Writers(Protocol):
    def to(self, node: Node) -> Sequence[Node]:
        """Return the calls that write to a tensor's storage, in the program's order."""


class Recorded(Protocol):
    """A graph and the writes to its tensors: a GraphBuilder, or a finished graph."""

    @property
    def graph(self) -> Graph: ...
    @property
    def modes_vary(self) -> bool: ...
    @property
    def writes(self) -> _Writers: ...
