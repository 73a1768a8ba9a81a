"""Minimum s-t cut by Dinic's algorithm (Dinitz 1970: level graph, blocking flow).

A graph of a few thousand vertices takes some tens of milliseconds in plain Python.
"""

from __future__ import annotations

from collections import deque

from ..budget import check

__all__ = ["INFINITE", "FlowNetwork"]

INFINITE = 1 << 60


class FlowNetwork:
    """Directed edges with integer capacities between vertices 0 .. count-1."""

    def __init__(self, count: int) -> None:
        self.out: list[list[int]] = [[] for _ in range(count)]  # edge numbers leaving a vertex
        self.head: list[int] = []  # target vertex of an edge; edge ^ 1 is its reverse
        self.residual: list[int] = []  # residual capacity

    def edge(self, source: int, target: int, capacity: int) -> None:
        self.out[source].append(len(self.head))
        self.out[target].append(len(self.head) + 1)
        self.head += (target, source)
        self.residual += (capacity, 0)

    def cut(self, source: int, sink: int) -> tuple[int, set[int]]:
        """Return the capacity of a minimum cut and the vertices on the source's side of it."""
        total = 0
        while (levels := self._levels(source, sink))[sink] >= 0:
            check()
            total += self._blocking_flow(source, sink, levels)
            if total >= INFINITE:
                break
        return total, {vertex for vertex, level in enumerate(levels) if level >= 0}

    def _levels(self, source: int, sink: int) -> list[int]:
        """Return breadth-first distances from the source along residual edges, -1 if
        unreachable.
        """
        head, residual, out = self.head, self.residual, self.out
        levels = [-1] * len(out)
        levels[source] = 0
        queue = deque((source,))
        while queue:
            vertex = queue.popleft()
            for edge in out[vertex]:
                target = head[edge]
                if residual[edge] and levels[target] < 0:
                    levels[target] = levels[vertex] + 1
                    queue.append(target)
        return levels

    def _blocking_flow(self, source: int, sink: int, levels: list[int]) -> int:
        """Augment along shortest paths until none is left; depth-first without recursion."""
        head, residual, out = self.head, self.residual, self.out
        tried = [0] * len(out)
        path: list[int] = []
        vertex, total = source, 0
        while True:
            if vertex == sink:
                check()
                amount = min(residual[edge] for edge in path)
                total += amount
                first_full = len(path)
                for i in range(len(path) - 1, -1, -1):
                    residual[path[i]] -= amount
                    residual[path[i] ^ 1] += amount
                    if not residual[path[i]]:
                        first_full = i
                vertex = head[path[first_full] ^ 1]
                del path[first_full:]
                continue
            edges = out[vertex]
            while tried[vertex] < len(edges):
                edge = edges[tried[vertex]]
                if residual[edge] and levels[head[edge]] == levels[vertex] + 1:
                    break
                tried[vertex] += 1
            else:
                if vertex == source:
                    return total
                back = path.pop()
                vertex = head[back ^ 1]
                tried[vertex] += 1
                continue
            path.append(edge)
            vertex = head[edge]
