"""Which memory the tensors of a graph lie in, and who writes there.

In: nodes with their meta tensors, which share memory as the program's tensors do; each call that
writes, as it is recorded. Out: the names of that memory, and the writers of a tensor's in the
program's order. A name is that of a storage which lives: it holds as long as a node, or whoever
asks, has a tensor there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import Node

from .node_meta import tensors_in, value_of

__all__ = ["Writes", "memory_of", "storage_of", "storage_under", "storages_in"]


def storage_under(tensor: torch.Tensor) -> int:
    """Which memory a tensor lies in."""
    return int(tensor.untyped_storage()._cdata)


def storage_of(node: Node) -> int | None:
    """Which memory the tensor of a node lies in; None where it is none."""
    value = value_of(node)
    return storage_under(value) if isinstance(value, torch.Tensor) else None


def storages_in(value: Any) -> set[int]:
    """Where the tensors of a nested value lie."""
    return {storage_under(tensor) for tensor in tensors_in(value)}


def memory_of(node: Node) -> set[int]:
    """Where all the tensors that a node gives lie."""
    return storages_in(node.meta.get("val"))


class Writes:
    """The calls of a graph under construction that write, by the memory that they write to.
    `count` of them so far, once for each memory.
    """

    __slots__ = ("_writers", "count")

    def __init__(self) -> None:
        self._writers: dict[int, list[Node]] = {}
        self.count = 0

    def note(self, writer: Node, written: Iterable[Node]) -> None:
        """A call that was recorded, and the tensors among its arguments that it writes to."""
        for memory in {storage_under(value_of(node)) for node in written}:
            self._writers.setdefault(memory, []).append(writer)
            self.count += 1

    def to(self, node: Node) -> Sequence[Node]:
        """Who writes to the memory of a tensor, in the program's order."""
        memory = storage_of(node)
        return () if memory is None else self._writers.get(memory, ())
