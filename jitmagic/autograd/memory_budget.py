"""Chooses costly operations that a backward computes again, to keep less memory from the forward.

In: the forward nodes whose results the minimum cut would save, and a share of the memory. Out: the
nodes that it may recompute as well. A share of 1 recomputes nothing that is costly; 0 keeps as
little as possible: inputs, random draws, and what only runs once. Between them the nodes that free
most bytes for their work are taken first, until the saved bytes are within that share of the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.fx import Node

from ..graph.node_meta import specs_in
from ..spec import TensorSpec
from ..symbols.size import hint_of

__all__ = ["recomputed_within", "saved_bytes", "spec_bytes", "spec_elements"]

aten = torch.ops.aten


def spec_elements(spec: TensorSpec) -> int:
    """Return the number of elements in memory at this call's sizes; expanded ones count once."""
    count = 1  # any cut is correct for all sizes
    for extent, stride in zip(spec.shape, spec.stride, strict=True):
        count *= hint_of(extent) if hint_of(stride) else 1
    return count


def spec_bytes(spec: TensorSpec) -> int:
    """Return the bytes of these elements."""
    return spec_elements(spec) * spec.dtype.itemsize


def saved_bytes(node: Node) -> int:
    """Return the bytes of a node's results."""
    return sum(map(spec_bytes, _results(node)))


def _results(node: Node) -> list[TensorSpec]:
    """Return the specs of a node's results, which its items have if there are several."""
    nodes = node.users if node.meta.get("spec") is None else (node,)
    return [spec for one in nodes for spec in specs_in(one)]


def recomputed_within(
    share: float, costly: Sequence[Node], bytes_saved: Callable[[frozenset[Node]], int]
) -> frozenset[Node]:
    """Return the nodes to recompute. `bytes_saved(nodes)`: what a cut that may recompute them
    saves.
    """
    ranked = sorted(costly, key=lambda node: _work(node) / max(saved_bytes(node), 1))
    most, least = bytes_saved(frozenset()), bytes_saved(frozenset(ranked))
    target = least + share * (most - least)
    few, many = 0, len(ranked)  # more nodes never save more bytes, so a bisection finds the fewest
    while few < many:
        middle = (few + many) // 2
        if bytes_saved(frozenset(ranked[:middle])) <= target:
            many = middle
        else:
            few = middle + 1
    return frozenset(ranked[:many])


def _work(node: Node) -> int:
    """Return about how many multiplications the node takes."""
    elements = sum(map(spec_elements, _results(node)))
    read = [spec for source in node.all_input_nodes for spec in specs_in(source)]
    if node.target in _PRODUCTS and len(read) >= 2:
        return elements * hint_of(read[-1].shape[-2])
    if node.target is aten.convolution.default and len(read) >= 2:
        return elements * spec_elements(read[1]) // max(hint_of(read[1].shape[0]), 1)
    return elements + sum(map(spec_elements, read)) * _OF_OTHERS


_PRODUCTS = frozenset({aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default})
_OF_OTHERS = 64  # attention, sorts and scans: more than one operation for each element read
