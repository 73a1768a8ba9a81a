"""Models the sizes of nested tensors, of which the ragged one is an object that stands for offsets.

Input: `x.shape`, `x.size()` and `x.size(dim)` of a nested tensor. Output: its sizes; the ragged one
is read from the tensor again where it is an argument of a call, or leaves the frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ....graph.symbolic.sym_node import as_dimension
from ....graph.wrappers.nodes import ragged_size
from ...result import Recipe
from ..base import Builder, Machine, Value
from ..containers.sequences import SizeValue
from ..objects.opaque import WithoutOperators
from ..tensor_base import TensorBase

__all__ = ["RaggedSize", "sizes_of_nested"]


def sizes_of_nested(machine: Machine, tensor: TensorBase) -> SizeValue:
    """Return the shape of a nested tensor."""
    sizes = [_size(machine, tensor, dim) for dim in range(tensor.meta.dim())]
    return SizeValue(sizes)


def _size(machine: Machine, tensor: TensorBase, dim: int) -> Value:
    size = tensor.meta.shape[dim]
    is_ragged = isinstance(size, torch.SymInt) and as_dimension(size) is size
    return RaggedSize(tensor, dim, size) if is_ragged else machine.constant(size)


class RaggedSize(WithoutOperators):
    """The size of a nested tensor in its ragged dimension, which is equal for equal offsets."""

    __slots__ = ("dim", "size", "tensor")

    def __init__(self, tensor: TensorBase, dim: int, size: Any) -> None:
        super().__init__()
        self.tensor, self.dim, self.size = tensor, dim, size

    def python_type(self, machine: Machine) -> type:
        return torch.SymInt

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if op not in ("==", "!="):
            self.refuse(machine, f"comparison {op}")
        same = isinstance(other, RaggedSize) and bool(self.size == other.size)
        return machine.constant(same == (op == "=="))

    def as_node(self, machine: Machine) -> Node:
        """Return a node that reads the size."""
        args = self.tensor.node, self.dim
        return machine.graph.add_computed(ragged_size, args, self.size, None, machine.lines())

    def recipe(self, builder: Builder) -> Recipe:
        tensor, dim = builder(self.tensor), builder.constant(self.dim)
        return builder.invoke(torch.Tensor.size, (tensor, dim))

    def parts(self) -> Sequence[Value]:
        return (self.tensor,)

    def describe(self) -> str:
        return "size of a ragged dimension"
