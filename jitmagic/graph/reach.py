"""What a node is computed from, and what is computed from it.

Comes in: nodes of any one fx graph. Goes out: sets of them, to which the given ones belong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch.fx import Node

__all__ = ["ancestors", "descendants"]


def ancestors(roots: Iterable[Node], until: Collection[Node] = ()) -> set[Node]:
    """What the roots are computed from. The search ends at the nodes in `until`, which belong to it
    where they are reached.
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
    """What is computed from the seeds by way of `among` alone: nodes in the graph's order."""
    found = set(seeds)
    for node in among:
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found
