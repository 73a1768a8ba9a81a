"""`tensor.data = other`, where the tensor lies there already: `w.data -= step`, `module.to(dtype)`.

Comes in: the tensor's value and what is assigned. Goes out: nothing, since nothing changes. Break
where the tensor would get other memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ...graph.builder import storage_of
from .base import Machine, Value

__all__ = ["write_data"]


def write_data(machine: Machine, owner: Any, value: Value) -> None:
    """`owner` is a TensorValue."""
    node = getattr(value, "node", None)
    known = machine.graph.unknown_strides
    if node is None or {node, owner.node} & known or not _lies_where(owner.node, node):
        owner.refuse(machine, "setting attribute 'data'")


def _lies_where(node: Node, other: Node) -> bool:
    """Whether two tensors are the same numbers in the same memory."""
    if node is other:
        return True
    memory = storage_of(node)
    return memory is not None and memory == storage_of(other) and _place(node) == _place(other)


def _place(node: Node) -> tuple[Any, ...]:
    meta: torch.Tensor = node.meta["val"]
    flags = meta.is_conj(), meta.is_neg()
    return meta.dtype, meta.shape, meta.stride(), meta.storage_offset(), *flags
