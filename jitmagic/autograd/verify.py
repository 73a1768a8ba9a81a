"""Verifies joint graphs: each node's spec matches what its operation gives on meta tensors.

In: an ATen graph with int sizes that was specialised from one with Sizes. Raises CompileFailed with
the name of the node whose result at these sizes differs from its spec.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.fx import GraphModule, Node

from ..errors import CompileFailed
from ..graph.nested import map_nodes
from ..graph.node_meta import check_keys
from ..graph.symbolic.number_ranges import READS_NUMBER
from ..spec import TensorSpec
from .recording.recorder import Recorder, Sym

__all__ = ["verify_joint"]

aten = torch.ops.aten


def verify_joint(gm: GraphModule) -> None:
    """Run the graph on meta tensors, call by call."""
    recorder = Recorder({})
    made: dict[Node, Sym | Sequence[Sym] | float] = {}
    for node in gm.graph.nodes:
        check_keys(node)
        if node.op == "placeholder":
            made[node] = recorder.placeholder(node.name, node.meta["spec"])
        elif node.op == "get_attr":
            made[node] = recorder.constant(operator.attrgetter(str(node.target))(gm))
        elif node.op == "call_function":
            args, kwargs = (map_nodes(p, made.__getitem__) for p in (node.args, node.kwargs))
            if node.target is READS_NUMBER:
                made[node] = 0.5  # any number: nothing in a spec depends on it
                continue
            is_item = node.target is operator.getitem
            made[node] = (
                args[0][args[1]] if is_item else recorder.call(node.target, *args, **kwargs)
            )
            _check(node, made[node])


def _check(node: Node, found: object) -> None:
    spec = node.meta.get("spec")
    if not isinstance(spec, TensorSpec) or not isinstance(found, Sym):
        return
    said, made = (
        replace(_normalized_strides(one), requires_grad=False, is_leaf=True, cls=torch.Tensor)
        for one in (spec, found.spec)
    )
    if found.node.op == "placeholder" or node.target is aten.copy_.default:
        # The meta run returns the input itself for a slice of everything or an in-place write, and
        # that may be a parameter with a storage offset. Specs count offsets from the input's start.
        made = replace(made, storage_offset=said.storage_offset)
    if said != made:
        raise CompileFailed(f"{node.name} is {found.spec} at these sizes, not {spec}")


def _normalized_strides(spec: TensorSpec) -> TensorSpec:
    """Drop the strides of size-0 and size-1 dimensions and the layout of empty tensors. A joint
    graph for all sizes does not determine them.
    """
    if 0 in spec.shape:
        return replace(spec, stride=(0,) * len(spec.shape), storage_offset=0)
    sides = zip(spec.shape, spec.stride, strict=True)
    return replace(spec, stride=tuple(step if extent > 1 else 0 for extent, step in sides))
