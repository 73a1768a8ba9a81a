"""Compares the specs of an ATen graph with what its operations give on meta tensors.

`verify_joint` raises CompileFailed with the name of the node whose result differs from its spec;
its graph has int sizes and was specialised from one with Sizes. `describe_calls` sets the specs of
calls that a pass has added or changed.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch.fx import GraphModule, Node

from ..errors import CompileFailed
from ..graph.nested import map_nodes
from ..graph.node_meta import check_keys
from ..graph.symbolic.number_ranges import READS_NUMBER
from ..spec import TensorSpec
from .recording.recorder import Recorder, Sym

__all__ = ["describe_calls", "normalized_strides", "verify_joint"]

aten = torch.ops.aten


def verify_joint(gm: GraphModule) -> None:
    """Raise CompileFailed if a spec differs from what its call gives on meta tensors."""
    for node, found in _calls_on_meta(gm):
        if (wrong := _difference(node, found)) is not None:
            raise CompileFailed(f"{node.name} is {wrong} at these sizes, not {node.meta['spec']}")


def describe_calls(gm: GraphModule) -> None:
    """Set the specs that are missing or differ from what the calls give, and missing lines."""
    for node, found in _calls_on_meta(gm):
        if isinstance(found, Sym) and ("spec" not in node.meta or _difference(node, found)):
            node.meta["spec"] = found.spec
        near = (*node.all_input_nodes, *node.users)
        lines = next((arg.meta["lines"] for arg in near if arg.meta.get("lines")), ())
        node.meta.setdefault("lines", lines)


def _calls_on_meta(gm: GraphModule) -> Iterator[tuple[Node, object]]:
    """Run the graph on meta tensors, call by call; yield each call and constant with its result."""
    recorder = Recorder({}, is_sized=True)
    made: dict[Node, Sym | Sequence[Sym] | float] = {}
    for node in gm.graph.nodes:
        check_keys(node)
        if node.op == "placeholder":
            made[node] = recorder.placeholder(node.name, node.meta["spec"])
        elif node.op == "get_attr":
            made[node] = recorder.constant(operator.attrgetter(str(node.target))(gm))
            yield node, made[node]
        elif node.op == "call_function":
            args, kwargs = (map_nodes(p, made.__getitem__) for p in (node.args, node.kwargs))
            if node.target is READS_NUMBER:
                made[node] = 0.5  # any number: nothing in a spec depends on it
                continue
            is_item = node.target is operator.getitem
            made[node] = (
                args[0][args[1]] if is_item else recorder.call(node.target, *args, **kwargs)
            )
            yield node, made[node]


def _difference(node: Node, found: object) -> TensorSpec | None:
    """Return the spec of the result if it differs from the node's."""
    spec = node.meta.get("spec")
    if not isinstance(spec, TensorSpec) or not isinstance(found, Sym):
        return None
    said, made = (
        replace(normalized_strides(one), requires_grad=False, is_leaf=True, cls=torch.Tensor)
        for one in (spec, found.spec)
    )
    if found.node.op == "placeholder" or node.target is aten.copy_.default:
        # The meta run returns the input itself for a slice of everything or an in-place write, and
        # that may be a parameter with a storage offset. Specs count offsets from the input's start.
        made = replace(made, storage_offset=said.storage_offset)
    return None if said == made else found.spec


def normalized_strides(spec: TensorSpec) -> TensorSpec:
    """Drop the strides of size-0 and size-1 dimensions and the layout of empty tensors. A joint
    graph for all sizes does not determine them.
    """
    if 0 in spec.shape:
        return replace(spec, stride=(0,) * len(spec.shape), storage_offset=0)
    sides = zip(spec.shape, spec.stride, strict=True)
    return replace(spec, stride=tuple(step if extent > 1 else 0 for extent, step in sides))
