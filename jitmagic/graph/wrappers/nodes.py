"""Adds the nodes that make wrapper subclasses of inner tensors and take them apart.

Input: a graph under construction, and nodes of inner tensors or of a wrapper. Output: the node of
the wrapper, or those of its inner tensors. Metas of wrappers are instances of the class around
metas of the inner tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from ...spec import TensorSpec
from ..node_meta import device_of, spec_on, value_of
from ..propagate import noting_inner_calls
from .wrapping import Layout, Rewrap, Unwrap, tangent_of

if TYPE_CHECKING:
    from ..builder import GraphBuilder

__all__ = ["ragged_size", "rewrap", "unwrapped"]


def rewrap(graph: GraphBuilder, target: Rewrap, inner: Sequence[Node], spec: TensorSpec) -> Node:
    """Add the wrapper around inner tensors that is an input of the program."""
    values, layout = tuple(map(value_of, inner)), target.layout
    with torch.inference_mode(False), noting_inner_calls():
        if spec.requires_grad and spec.is_leaf:
            # For the program it is a leaf; when the graph runs, it has the history of the call.
            detached = [one.detach() if one.requires_grad else one for one in values]
            value = layout.around(detached, spec.shape, spec.stride).requires_grad_()
        else:
            value = target(values, spec.shape, spec.stride)
    return graph.add_computed(target, (tuple(inner), spec.shape, spec.stride), value, spec, ())


def ragged_size(wrapper: torch.Tensor, dim: int) -> Any:
    """Return the size of a nested tensor in its ragged dimension: the target of a node."""
    return wrapper.shape[dim]


def unwrapped(graph: GraphBuilder, node: Node) -> list[Node]:
    """Return nodes for the inner tensors of a wrapper, in the order of their names."""
    wrapper = value_of(node)
    layout = Layout.of(wrapper)
    known = [graph.known(one) for one in layout.inner(wrapper)]
    if not wrapper.requires_grad and all(one is not None for one in known):
        return [one for one in known if one is not None]
    with torch.inference_mode(False), noting_inner_calls():
        target = Unwrap(layout, tangent=tangent_of(wrapper))
        values = target(wrapper)
    lines, spec = node.meta["lines"], spec_on(values, device_of(node))
    taken = graph.results(graph.add_computed(target, (node,), values, spec, lines), lines)
    # Those without a gradient may be tensors that the graph has already, such as its inputs.
    found = [own or one for own, one in zip(known, taken, strict=True)] if any(known) else taken
    return [one for one in found if one is not None]
