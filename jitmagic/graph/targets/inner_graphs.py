"""Defines the base of targets that run graphs of their own."""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import Graph

__all__ = ["WithGraphs"]


class WithGraphs:
    """A target whose call runs nodes of graphs, and raises where one of them does."""

    def graphs(self) -> Iterable[Graph]:
        """Return these graphs."""
        raise NotImplementedError
