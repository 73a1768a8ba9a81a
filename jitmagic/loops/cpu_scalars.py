"""Moves arithmetic on CPU scalars into the GPU kernels that use it.

In: a graph whose nests run on a GPU. Out: the nodes that compute 0-dim CPU tensors for those nests
alone: a learning rate, 1 - beta ** step. They are lowered as if they were on the GPU; kernels take
the input scalars by value (LoopBuilder.is_cpu_scalar) and repeat the arithmetic. Other CPU scalars
stay ATen calls on the CPU.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ..compat.operators import OpOverload
from ..graph.operators.raising import may_raise_on_data
from ..graph.symbolic.number_ranges import READS_NUMBER
from ..spec import TensorSpec
from .builder import LOOP_DTYPES
from .ops.extern import returns_view
from .registry import lowering_of

__all__ = ["cpu_scalars_for"]


def cpu_scalars_for(device: torch.device, gm: GraphModule) -> frozenset[Node]:
    """Return the nodes whose arithmetic moves into the kernels on `device`."""
    nodes: set[Node] = set()
    if device.type == "cpu":
        return frozenset()
    for node in reversed(gm.graph.nodes):
        if _is_arithmetic(node) and all(
            user in nodes or _runs_on(user, device) for user in _readers(node)
        ):
            nodes.add(node)
    return frozenset(nodes)


def _readers(node: Node) -> list[Node]:
    """Return the calls that take the tensor, or the number in it."""
    users = [*node.users]
    numbers = [user for user in users if user.target is READS_NUMBER]
    others = [user for user in users if user.target is not READS_NUMBER]
    return [*others, *(reader for number in numbers for reader in number.users)]


def _is_arithmetic(node: Node) -> bool:
    """Return whether a node computes a CPU scalar from CPU scalars alone, without raising."""
    if not (_is_lowered(node) and _is_scalar(node) and node.meta["spec"].dtype in LOOP_DTYPES):
        return False
    draws = torch.Tag.nondeterministic_seeded in node.target.tags  # type: ignore[union-attr]
    alone = all(_is_scalar(part) for part in node.all_input_nodes)
    return alone and bool(node.users) and not draws and not may_raise_on_data(node)


def _is_scalar(node: Node) -> bool:
    spec = node.meta.get("spec")
    return isinstance(spec, TensorSpec) and not spec.shape and spec.device.type == "cpu"


def _runs_on(node: Node, device: torch.device) -> bool:
    spec = node.meta.get("spec")
    return _is_lowered(node) and isinstance(spec, TensorSpec) and spec.device == device


def _is_lowered(node: Node) -> bool:
    return (
        isinstance(node.target, OpOverload)
        and lowering_of(str(node.target)) is not None
        and not returns_view(node.target)
    )
