"""Finds the ancestors and descendants of nodes in any fx graph; both include the given nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch.fx import Node

__all__ = ["ancestors", "descendants"]


def ancestors(roots: Iterable[Node], until: Collection[Node] = ()) -> set[Node]:
    """Return the roots and all nodes they are computed from. The search stops at nodes in `until`,
    which are included.
    """
    found: set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            if node not in until:
                stack.extend(node.all_input_nodes)
    return found


def descendants(seeds: Iterable[Node], among: Iterable[Node]) -> set[Node]:
    """Return the seeds and all nodes of `among` computed from them, in the graph's order."""
    found = set(seeds)
    for node in among:
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found
