"""Identifies the storages of a graph's tensors and the calls that write to them.

Input: nodes with their meta tensors, which share memory as the program's tensors do; each call that
writes, as it is recorded. Output: storage ids, the writers of a storage in the program's order, and
the node of a meta tensor.
An id is valid as long as a node, or the caller, holds a tensor with that storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.fx import Node

from .node_meta import tensors_in, value_of

__all__ = ["TensorNodes", "Writes", "memory_of", "storage_of", "storage_under", "storages_in"]


def storage_under(tensor: torch.Tensor) -> int:
    """Return the id of a tensor's storage."""
    return int(tensor.untyped_storage()._cdata)


def storage_of(node: Node) -> int | None:
    """Return the id of the storage of a node's tensor; None for other values."""
    value = value_of(node)
    return storage_under(value) if isinstance(value, torch.Tensor) else None


def storages_in(value: object) -> set[int]:
    """Return the ids of the storages of a nested value's tensors."""
    return {storage_under(tensor) for tensor in tensors_in(value)}


def memory_of(node: Node) -> set[int]:
    """Return the ids of the storages of all of a node's results."""
    return storages_in(node.meta.get("val"))


class Writes:
    """The calls of a graph under construction that write, by storage. `count`: how many so far,
    once for each storage.
    """

    __slots__ = ("_writers", "count")

    def __init__(self) -> None:
        self._writers: dict[int, list[Node]] = {}
        self.count = 0

    def note(self, writer: Node, written: Iterable[Node]) -> None:
        """Record a call and the arguments that it writes to."""
        for memory in {storage_under(value_of(node)) for node in written}:
            self._writers.setdefault(memory, []).append(writer)
            self.count += 1

    def to(self, node: Node) -> Sequence[Node]:
        """Return the calls that write to a tensor's storage, in the program's order."""
        memory = storage_of(node)
        return () if memory is None else self._writers.get(memory, ())


class TensorNodes:
    """Maps the meta tensors of a graph under construction to their nodes, by identity.

    A tensor with a node is kept alive, so that no other tensor gets its address. The node's
    `meta["val"]` alone does not: a number replaces it where a transform captures one.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, tuple[torch.Tensor, Node]] = {}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._known

    def __getitem__(self, tensor: torch.Tensor) -> Node:
        return self._known[id(tensor)][1]

    def __setitem__(self, tensor: torch.Tensor, node: Node) -> None:
        self._known[id(tensor)] = tensor, node

    def get(self, tensor: torch.Tensor) -> Node | None:
        """Return the tensor's node, or None."""
        return self[tensor] if tensor in self else None  # noqa: SIM401 - no mapping
