"""Checks the invariants of a torch-level graph at the stage boundary, under `options.verify`.

Input: a GraphModule as `GraphBuilder.finish` made it. Output: nothing, or a `VerifyError` naming
the node. Checked: placeholders come first, each with a TensorSpec; targets are callable; arguments
are nodes or plain constants; metas agree with their specs; one output, a flat tuple of nodes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ..errors import VerifyError
from ..spec import TensorSpec
from .nested import map_leaves
from .node_meta import check_keys

__all__ = ["verify"]

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    type(None),
    type(Ellipsis),
)


def verify(module: GraphModule) -> None:
    """Raise VerifyError if the graph breaks an invariant of this package."""
    graph = module.graph
    try:
        graph.lint()
    except RuntimeError as error:
        raise VerifyError(f"graph: {error}") from error
    _check_order(graph)
    for node in graph.nodes:
        check_keys(node)
        if node.op == "output":
            _check_output(node)
        elif node.op == "placeholder":
            _check_placeholder(node)
        else:
            _check_call(node)


def _fail(node: Node, what: str) -> None:
    raise VerifyError(f"graph: node {node.name} ({node.op} {node.target}): {what}")


def _check_order(graph: Graph) -> None:
    inputs_done = False
    for node in graph.nodes:
        inputs_done = inputs_done or node.op != "placeholder"
        if inputs_done and node.op == "placeholder":
            _fail(node, "a placeholder after the first call")
        if node.op not in ("placeholder", "call_function", "call_method", "output"):
            _fail(node, "this kind of node is not used")
    if sum(node.op == "output" for node in graph.nodes) != 1:
        raise VerifyError("graph: there must be one output node")


def _check_output(node: Node) -> None:
    (results,) = node.args
    if not isinstance(results, tuple) or not all(isinstance(item, Node) for item in results):
        _fail(node, "the outputs are not a flat tuple of nodes")
    for item in node.all_input_nodes:
        if not isinstance(item.meta.get("spec"), TensorSpec):
            _fail(item, "an output that is not a tensor")


def _check_placeholder(node: Node) -> None:
    spec, value = node.meta.get("spec"), node.meta.get("val")
    if not isinstance(spec, TensorSpec) or not isinstance(value, torch.Tensor):
        _fail(node, "a placeholder without spec and val")


def _check_call(node: Node) -> None:
    if node.op == "call_function" and not callable(node.target):
        _fail(node, "the target cannot be called")
    if not {"val", "spec", "lines"} <= node.meta.keys():
        _fail(node, "val, spec or lines is missing")
    map_leaves((node.args, node.kwargs), partial(_check_argument, node))
    _check_spec(node, node.meta["val"], node.meta["spec"])


def _check_argument(node: Node, value: object) -> None:
    if not isinstance(value, (Node, *_PLAIN)):
        _fail(node, f"argument of type {type(value).__name__}")


def _check_spec(node: Node, value: Any, spec: Any) -> None:
    if isinstance(value, torch.Tensor):
        if not isinstance(spec, TensorSpec) or spec.dtype != value.dtype:
            _fail(node, f"spec {spec} does not describe val {value.dtype}{list(value.shape)}")
    elif isinstance(value, tuple | list):
        if not isinstance(spec, tuple) or len(spec) != len(value):
            _fail(node, "spec and val differ in structure")
        for one, its_spec in zip(value, spec, strict=True):
            _check_spec(node, one, its_spec)
